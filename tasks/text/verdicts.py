"""The page's account of the two gates: of the data before training, of the model before it becomes champion."""

import json

from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, count, decimal, share
from tasks.text.page import Cell, Code, Link, Mark, Section, Text, prose, table, word


def gate_section(validate: Figures, data_docs: str | None) -> Section:
    """What the data were held to before anything was spent on training."""
    success = validate.flag("success", required=True)
    expectations = validate.records("expectations")
    met = sum(expectation.flag("success") is True for expectation in expectations)
    verdict = Text("passed", "good") if success else Text("refused", "bad")
    link: Cell = (
        Link("Data Docs of Great Expectations", data_docs)
        if data_docs
        else Text("Data Docs were not written")
    )
    rows = [
        (
            Code(e.text("name") or NOT_MEASURED, 120),
            word(e.text("suite")),
            Text("met", "good") if e.flag("success") else Text("not met", "bad"),
            _seen(e.values.get("observed")),
            _asked(e.values.get("expected")),
        )
        for e in sorted(expectations, key=lambda e: e.flag("success") is True)
    ]
    headers = ("Expectation", "Suite", "Verdict", "Observed", "Expected")
    return Section(
        "gate",
        "Data gate",
        (
            prose(
                "The gate ", verdict, f": {met} of {len(expectations)} expectations met. Details: ", link, "."
            ),
            table("Expectations, unmet ones first", headers, rows),
        ),
    )


def registry_section(register: Figures) -> Section:
    """Which version it became, and how the gate against the present champion was decided, in numbers."""
    gate = register.inside("gate")
    confidence = share(gate.number("confidence"), 0)
    champion = register.text("champion_version") if register.has("champion_version") else None
    rows: list[tuple[str | Cell, ...]] = [
        ("Name", word(register.text("name", required=True))),
        ("Version", word(register.text("version"))),
        ("New version", _new(register.flag("new_version"))),
        ("Aliases", Code(", ".join(register.strings("aliases")) or "none")),
        ("Loss taken away from the untrained twin's", share(register.number("improvement_over_untrained"))),
        ("Gate", _gate_verdict(gate.text("verdict"))),
        ("Reason", Code(gate.text("reason") or NOT_MEASURED, 240)),
        ("Champion compared with", "none" if champion is None else Code(f"version {champion}")),
        ("This model", _compared(gate, "candidate_bits_per_byte", champion)),
        ("Champion", _compared(gate, "champion_bits_per_byte", champion)),
        ("Difference (below 0: this model is better)", _compared(gate, "difference", champion)),
        (f"Interval of the difference ({confidence})", _interval(gate, champion)),
        ("Test blocks compared", count(gate.number("blocks"), "blocks")),
    ]
    blocks = (table("The decision", ("Figure", "Value"), rows),)
    return Section("registry", "Registry and gate against the champion", blocks)


def _gate_verdict(verdict: str | None) -> Cell:
    marks: dict[str | None, Mark] = {
        "promote": "good",
        "same": "good",
        "refuse": "bad",
        "inconclusive": "warn",
    }
    return Text(verdict, marks[verdict]) if verdict in marks and verdict is not None else word(verdict)


def _new(flag: bool | None) -> str:
    return {True: "yes", False: "no: this very model was registered before", None: NOT_MEASURED}[flag]


def _compared(gate: Figures, key: str, champion: str | None) -> str:
    """Bits a byte of the comparison; without a champion there was none, which is no gap in the figures."""
    if champion is None and not gate.has(key):
        return "not compared"
    return decimal(gate.number(key), 4, "bits/byte")


def _interval(gate: Figures, champion: str | None) -> str:
    if champion is None and not gate.has("interval"):
        return "not compared"
    ends = gate.bounds("interval")
    return NOT_MEASURED if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f} bits/byte"


def _seen(value: object) -> Cell:
    """What an expectation observed: a number as it is, anything else as a stranger's word."""
    return _scalar(value) if value is None or isinstance(value, bool | int | float) else Code(str(value), 240)


def _asked(value: object) -> Cell:
    """What it was held to; Great Expectations' bounds as words."""
    if not isinstance(value, dict):
        return _seen(value)
    low, high = value.get("min_value"), value.get("max_value")
    if set(value) - {"min_value", "max_value"} or not all(isinstance(v, int | float) for v in value.values()):
        return Code(json.dumps(value, ensure_ascii=False, sort_keys=True), 240)
    if low is None or high is None:
        return Text(f"at least {_plain(low)}" if high is None else f"at most {_plain(high)}")
    return Text(_plain(low) if low == high else f"{_plain(low)} to {_plain(high)}")


def _plain(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def _scalar(value: object) -> Cell:
    if value is None:
        return Text(NOT_MEASURED)
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int | float):
        return Text(_plain(value))
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        return Text(" to ".join(_plain(v) for v in value))
    return Code(str(value), 240)
