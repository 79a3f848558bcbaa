"""What other stages wrote, read with care: a wrong type is an error by file and key, an absent figure is noted."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.kit.console import redact
from tasks.kit.errors import InputError
from tasks.text.numerals import Number


@dataclass(frozen=True)
class Figures:
    """A JSON object and the file it came from. `notes` gathers the figures that were asked for and are absent."""

    file: str
    values: dict[str, Any]
    notes: set[str]
    within: str = ""

    def number(self, key: str, required: bool = False) -> Number:
        """A number, or None where it is absent or null."""
        value = self._find(key, required)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise self._wrong(key, value, "a number")

    def text(self, key: str, required: bool = False) -> str | None:
        """A string, or a number written as one (versions)."""
        value = self._find(key, required)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise self._wrong(key, value, "a string")

    def flag(self, key: str, required: bool = False) -> bool | None:
        """True or false, or None where it is absent."""
        value = self._find(key, required)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(key, value, "true or false")

    def bounds(self, key: str) -> tuple[float, float] | None:
        """The two ends of an interval."""
        value = self._find(key, required=False)
        if value is None:
            return None
        if isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
            return value[0], value[1]
        raise self._wrong(key, value, "a list of two numbers")

    def inside(self, key: str, required: bool = False) -> "Figures":
        """The object under `key`; an empty one where it is absent."""
        value = self._find(key, required)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Figures(self.file, value, self.notes, f"{self.within}{key}.")

    def records(self, key: str) -> list["Figures"]:
        """The objects of the list under `key`."""
        value = self._find(key, required=False)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
            raise self._wrong(key, value, "a list of objects")
        return [
            Figures(self.file, record, self.notes, f"{self.within}{key}.{index}.")
            for index, record in enumerate(value)
        ]

    def strings(self, key: str) -> list[str]:
        """The strings of the list under `key`."""
        value = self._find(key, required=False)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return value

    def has(self, key: str) -> bool:
        """Whether `key` holds anything; asking does not note it as absent."""
        return self.values.get(key) is not None

    def groups(self) -> Iterator[tuple[str, "Figures"]]:
        """The objects of this one by key, in the order of the keys."""
        for key in sorted(self.values):
            if isinstance(self.values[key], dict):
                yield key, self.inside(key)

    def counts(self) -> list[tuple[str, int | float]]:
        """The numbers of this object by key, largest first."""
        numbers = ((key, value) for key, value in self.values.items() if isinstance(value, int | float))
        return sorted(numbers, key=lambda item: (-item[1], item[0]))

    def _find(self, key: str, required: bool) -> Any:
        value = self.values.get(key)
        if value is None:
            if required:
                raise InputError(
                    f"{self.file}: key {self.within}{key} is missing, and the report cannot do without it; "
                    f"run `dvc repro {Path(self.file).stem}`, which writes this file"
                )
            self.notes.add(f"{Path(self.file).stem}: {self.within}{key}")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> InputError:
        return InputError(f"{self.file}: key {self.within}{key} is {value!r:.80}, and should be {wanted}")


def read_figures(file: Path, notes: set[str], optional: bool = False) -> Figures:
    """A stage's figures with the secrets of the environment masked, before anything is cut or escaped."""
    if not file.exists() and optional:
        return Figures(str(file), {}, notes)
    value = _read_redacted(file)
    if not isinstance(value, dict):
        raise InputError(f"{file} holds {value!r:.80}, and should hold a JSON object")
    return Figures(str(file), value, notes)


def _read_redacted(file: Path) -> Any:
    """Any JSON file with secrets masked in keys and values."""
    try:
        return _redacted(json.loads(file.read_bytes()))
    except FileNotFoundError:
        raise InputError(f"{file} is missing: run `dvc repro`, whose stages write it") from None
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}): run `dvc repro` again") from None


def read_history(file: Path) -> dict[str, list[float | None]]:
    """The columns of a CSV of numbers; an empty field is None."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            rows = list(reader)
            columns: dict[str, list[float | None]] = {name: [] for name in reader.fieldnames or ()}
    except FileNotFoundError:
        raise InputError(f"{file} is missing: run `dvc repro train`, which writes it") from None
    for wanted in ("step", "train_loss"):
        if wanted not in columns:
            raise InputError(f"{file} has no column {wanted}; it has {', '.join(columns) or 'none'}")
    for number, row in enumerate(rows, 2):
        for name in columns:
            try:
                columns[name].append(float(row[name]) if row[name] else None)
            except (TypeError, ValueError):
                raise InputError(
                    f"{file}:{number}: column {name} is {row[name]!r:.80}, and should be a number"
                ) from None
    return columns


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if isinstance(value, dict):
        return {redact(key): _redacted(item) for key, item in value.items()}
    return value
