"""Readers of .csv, .tsv and .parquet: tables whose columns hold the text and what belongs to it."""

import csv
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from tasks.text.lines import decoded_stream, split_lines
from tasks.text.records import Limits, ObjectFault, Record, RecordFault, excerpt

_SPOOL_BYTES = 32 << 20


def read_csv(stream: BinaryIO, limits: Limits, delimiter: str = ",") -> Iterator[Record | RecordFault]:
    """Rows below a header. An open quote takes the lines up to where the reader notices: all counted as lost."""
    decoded, encoding = decoded_stream(stream, by_lines=True)
    csv.field_size_limit(limits.max_document_bytes)
    lines = _TextLines(decoded, encoding, limits)
    header: list[str] | None = None
    number = 0
    while not lines.ended:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                first_line, taken, text = lines.take()
                if header is None:
                    header = _check_header(row, limits)
                    continue
                if not row:
                    continue  # a blank line
                number += 1
                if len(row) != len(header):
                    found = f"{len(row)} fields where the header has {len(header)}: {text}"
                    yield RecordFault(first_line, "field_count", excerpt(found), lost=taken)
                else:
                    yield Record(number, dict(zip(header, row, strict=True)), first_line)
        except (csv.Error, _LineFault) as error:
            first_line, taken, text = lines.take()
            number += 1
            reason = error.reason if isinstance(error, _LineFault) else _reason(error)
            if header is None:
                raise ObjectFault("invalid_header", f"the header cannot be read ({reason})") from None
            yield RecordFault(first_line, reason, excerpt(text), lost=taken)


def _reason(error: csv.Error) -> str:
    """An open quote shows at the file's end, or where a later quote closes it in front of other text."""
    message = str(error)
    return "open_quote" if "unexpected end" in message or "expected after" in message else "malformed_row"


def read_tsv(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    return read_csv(stream, limits, "\t")


def _check_header(header: list[str], limits: Limits) -> list[str]:
    if len(set(header)) < len(header):
        raise ObjectFault("invalid_header", f"a column name stands twice in the header: {', '.join(header)}")
    if not set(limits.text_fields).intersection(header):
        raise ObjectFault(
            "no_text_field",
            f"none of {', '.join(limits.text_fields)} is among its columns: {', '.join(header)}",
        )
    return header


class _LineFault(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _TextLines:
    """Lines for the csv module that remember those of the row under way and stop it where it grows too large."""

    def __init__(self, stream: BinaryIO, encoding: str, limits: Limits) -> None:
        self._lines = split_lines(stream, limits)
        self._encoding = encoding
        self._max_bytes = limits.max_document_bytes
        self.ended = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._first_line, self._taken, self._size, self._text = 0, 0, 0, ""

    def take(self) -> tuple[int, int, str]:
        """First line, number of lines and beginning of the row that was just read; the next row starts anew."""
        taken = self._first_line, self._taken, self._text
        self._start_anew()
        return taken

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        item = next(self._lines, None)
        if item is None:
            self.ended = True
            raise StopIteration
        number, line = item
        self._first_line = self._first_line or number
        self._taken += 1
        if isinstance(line, RecordFault):
            self._text = self._text or line.excerpt
            raise _LineFault(line.reason)
        self._text = self._text or excerpt(line)
        self._size += len(line)
        if self._size > self._max_bytes:
            raise _LineFault("open_quote" if self._taken > 1 else "line_too_long")
        try:
            return line.decode(self._encoding)
        except UnicodeDecodeError:
            raise _LineFault("invalid_encoding") from None


def read_parquet(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    """Rows by row group, with the checksums of pages verified, where the writer made them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as file:
        while chunk := stream.read(1 << 20):
            file.write(chunk)
        if not file.tell():
            return
        file.seek(0)
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            columns = [
                f.name for f in parquet.schema_arrow if f.name in limits.text_fields or _is_scalar(f.type)
            ]
            if not set(limits.text_fields).intersection(columns):
                names = ", ".join(parquet.schema_arrow.names)
                raise ObjectFault(
                    "no_text_field", f"none of {', '.join(limits.text_fields)} is among its columns: {names}"
                )
            number = 0
            for batch in parquet.iter_batches(batch_size=256, columns=columns):
                values = {name: _values(batch.column(name)) for name in columns}
                for row in range(batch.num_rows):
                    number += 1
                    fields = {name: column[row] for name, column in values.items()}
                    yield _checked(number, fields, limits)
        except (pa.ArrowException, OSError) as error:
            raise ObjectFault("damaged", f"not a sound Parquet file: {excerpt(str(error))}") from None


def _is_scalar(type_: Any) -> bool:
    import pyarrow as pa

    return not (pa.types.is_nested(type_) or pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def _values(column: Any) -> list[Any]:
    """Values of a column; strings as bytes, since Arrow does not check that they are UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_string_view(column.type)
    ):
        column = column.cast(pa.large_binary())
    values: list[Any] = column.to_pylist()
    return values


def _checked(number: int, fields: dict[str, Any], limits: Limits) -> Record | RecordFault:
    for name, value in fields.items():
        if isinstance(value, bytes):
            if len(value) > limits.max_document_bytes:
                return RecordFault(number, "line_too_long", excerpt(value))
            try:
                fields[name] = value.decode()
            except UnicodeDecodeError:
                return RecordFault(number, "invalid_encoding", excerpt(value))
    return Record(number, fields)
