"""The page's account of the two gates: of the data before training, of the model before it becomes champion."""

from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, measure
from tasks.text.page import Cell, Code, Link, Section, Text, prose, table, word


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
            _value(e, "observed"),
            _value(e, "expected"),
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
    """Which version it became, and how the gate against the present champion was decided."""
    gate = register.inside("gate")
    rows: list[tuple[str | Cell, ...]] = [
        ("Name", word(register.text("name", required=True))),
        ("Version", word(register.text("version"))),
        ("Aliases", Code(", ".join(register.strings("aliases")) or "none")),
    ]
    rows += [(key.replace("_", " "), _scalar(gate.values[key])) for key in gate.values]
    return Section(
        "registry",
        "Registry and gate against the champion",
        (table("The decision", ("Figure", "Value"), rows),),
    )


def _value(expectation: Figures, key: str) -> Cell:
    value = expectation.values.get(key)
    if isinstance(value, bool) or value is None:
        return Text({True: "yes", False: "no", None: NOT_MEASURED}[value])
    return Text(measure(value)) if isinstance(value, int | float) else Code(str(value), 160)


def _scalar(value: object) -> Cell:
    if value is None:
        return Text(NOT_MEASURED)
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int | float):
        return Text(f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        return Text(" to ".join(f"{v:,.4g}" for v in value))
    return Code(str(value), 240)
