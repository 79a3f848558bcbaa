"""What happened at each step: one JSON line a step, written by rank 0, read by the stage; a CSV in the end."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from tasks.kit.files import write_atomically

COLUMNS = (
    "step",
    "tokens",
    "train_loss",
    "validation_loss",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "memory_bytes",
)

Row = dict[str, Any]


class HistoryWriter:
    """Appends rows; on opening, what lies beyond the step that a run resumes from is cut off."""

    def __init__(self, path: Path, resumed_step: int) -> None:
        rows = [row for row in read_history(path) if row["step"] <= resumed_step]
        write_atomically(path, "".join(_line(row) for row in rows).encode())
        self._file = path.open("a", encoding="utf-8")

    def append(self, row: Row) -> None:
        """Write one row; readers see it at once."""
        self._file.write(_line(row))
        self._file.flush()

    def sync(self) -> None:
        """Bring all rows to the disk: done before a checkpoint that counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class HistoryTail:
    """Reads the rows that another process appends, a few at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._inode = path, 0, -1

    def new_rows(self) -> list[Row]:
        """Rows written since the last call; all of them when the file was made anew."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.split(b"\n") if line]


def read_history(path: Path) -> list[Row]:
    """All whole rows of the file; a line that a kill cut off ends it. No file: no rows."""
    rows: list[Row] = []
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows


def write_csv(rows: list[Row], path: Path) -> None:
    """Write the rows as CSV with the columns of COLUMNS; a figure that a step does not have stays empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, out.getvalue().encode())


def _line(row: Row) -> str:
    return json.dumps({name: row[name] for name in COLUMNS}, allow_nan=False) + "\n"
