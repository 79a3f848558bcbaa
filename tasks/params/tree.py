"""params.yaml as one typed tree: loaded, checked all at once, overridden by dotted keys."""

import dataclasses
import difflib
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tasks.kit.errors import ParamsError
from tasks.kit.files import write_atomically
from tasks.params.base import Section
from tasks.params.clean import CleanParams
from tasks.params.dedupe import DedupeParams
from tasks.params.evaluate import EvaluateParams
from tasks.params.ingest import IngestParams
from tasks.params.quantize import QuantizeParams
from tasks.params.register import RegisterParams
from tasks.params.report import ReportParams
from tasks.params.runtime import RuntimeParams
from tasks.params.snapshot import SnapshotParams
from tasks.params.split import SplitParams
from tasks.params.tokenize import TokenizeParams
from tasks.params.train import TrainParams
from tasks.params.validate import ValidateParams


@dataclasses.dataclass(frozen=True)
class Params:
    """All sections, in the order of the DAG; every one but `runtime` is identity.

    A dataclass, not a pydantic model: `validate` and `register` are taken there.
    """

    snapshot: SnapshotParams
    ingest: IngestParams
    clean: CleanParams
    dedupe: DedupeParams
    tokenize: TokenizeParams
    split: SplitParams
    validate: ValidateParams
    train: TrainParams
    evaluate: EvaluateParams
    quantize: QuantizeParams
    register: RegisterParams
    report: ReportParams
    runtime: RuntimeParams

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values, every field spelled out: what params.yaml must hold."""
        return {name: getattr(self, name).model_dump(mode="json") for name in SECTIONS}


SECTIONS: dict[str, type[Section]] = {field.name: field.type for field in dataclasses.fields(Params)}  # type: ignore[misc]


def default_params() -> Params:
    """Every field at its default."""
    return Params(**{name: section() for name, section in SECTIONS.items()})  # type: ignore[arg-type]


def load_params(path: Path) -> Params:
    """Read params.yaml.

    Raises:
        ParamsError: with every problem of the file at once, each with its line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ParamsError(f"{path} is missing: run from the project's root, or restore it with git") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    return parse_params(text, str(path))


def parse_params(text: str, name: str) -> Params:
    """Check the text of a params.yaml; `name` stands in the messages. Raises ParamsError like `load_params`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ParamsError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{name} must hold one section a stage, found {type(values).__name__}")
    lines: dict[tuple[str, ...], int] = {}
    problems = list(_index_lines(root, (), lines))
    problems.extend(
        (lines.get((str(key),), 1), f"{key}: no such section{_suggest(str(key), SECTIONS)}")
        for key in values
        if key not in SECTIONS
    )
    sections: dict[str, Section] = {}
    for section_name, section in SECTIONS.items():
        given = values.get(section_name)
        try:
            sections[section_name] = section.model_validate({} if given is None else given)
        except ValidationError as error:
            problems.extend(_describe(section_name, section, detail, lines) for detail in error.errors())
    if problems:
        listing = "\n".join(f"  {name}:{line}: {problem}" for line, problem in sorted(problems))
        raise ParamsError(f"{len(problems)} problem{'s' * (len(problems) > 1)} in {name}:\n{listing}")
    return Params(**sections)  # type: ignore[arg-type]


def override_params(path: Path, overrides: Iterable[str]) -> list[str]:
    """Write `section.key=value` overrides into params.yaml, keeping its comments, as `dvc exp run -S` does.

    The file is checked as a whole before it is replaced. Returns one line a change, `key: old -> new`.

    Raises:
        ParamsError: for a key that does not exist or a value that does not fit; the file stays as it was.
    """
    from ruamel.yaml import YAML  # 0.1 s: only where a file is edited

    overrides = list(overrides)
    if not overrides:
        return []
    load_params(path)
    yaml_file = YAML()
    yaml_file.preserve_quotes = True
    yaml_file.width = 4096
    document = yaml_file.load(path.read_text(encoding="utf-8"))
    changes = []
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise ParamsError(f"override {override!r} is not of the form section.key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ParamsError(f"override {override!r}: {text!r} is not a YAML value") from None
        *parents, last = key.strip().split(".")
        node: Any = document
        for depth, part in enumerate([*parents, last]):
            if not isinstance(node, Mapping) or part not in node:
                valid = node if isinstance(node, Mapping) else {}
                where = ".".join(parents[:depth]) or path.name
                raise ParamsError(f"override {override!r}: {where} has no {part!r}{_suggest(part, valid)}")
            if depth < len(parents):
                node = node[part]
        if node[last] != value:
            changes.append(f"{key.strip()}: {node[last]} -> {value}")
        node[last] = value
    out = io.StringIO()
    yaml_file.dump(document, out)
    parse_params(out.getvalue(), f"{path.name} with {' '.join(overrides)}")
    if changes:
        write_atomically(path, out.getvalue().encode())
    return changes


def _index_lines(
    node: yaml.Node | None, prefix: tuple[str, ...], lines: dict[tuple[str, ...], int]
) -> Iterator[tuple[int, str]]:
    """Fill `lines` with the line of each key; yields a problem for each key given twice (YAML takes the last)."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        path = (*prefix, str(key_node.value))
        line = key_node.start_mark.line + 1
        if path in lines:
            yield line, f"{'.'.join(path)}: given twice (first on line {lines[path]})"
        lines[path] = line
        yield from _index_lines(value_node, path, lines)


def _describe(
    section_name: str, section: type[Section], detail: ErrorDetails, lines: dict[tuple[str, ...], int]
) -> tuple[int, str]:
    path = (section_name, *(str(part) for part in detail["loc"]))
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), 1)
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        owner: Any = section
        for part in path[1:-1]:
            owner = owner.model_fields[part].annotation
        return line, f"{key}: no such key{_suggest(path[-1], owner.model_fields)}"
    message = detail["msg"].removeprefix("Value error, ")
    whole = isinstance(detail["input"], Mapping)  # of a section: the message has the numbers
    found = "" if whole else f", found {detail['input']!r}"
    return line, f"{key}: {message[0].lower()}{message[1:]}{found}"


def _suggest(name: str, valid: Iterable[str]) -> str:
    names = [str(key) for key in valid]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; valid are {', '.join(names)}" if names else ""
