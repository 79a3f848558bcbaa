"""Objects of a corpus as records: which format a key says, and one short reader a format.

Text files are one record; .json, .jsonl, .csv, .tsv and .parquet hold many. A record that cannot be read is a
fault with its line; an object that cannot be trusted as a whole raises ObjectFault.
"""

import csv
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from tasks.text.decoding import SAMPLE_BYTES, Utf8Transcoder, detect_encoding
from tasks.text.decompression import COMPRESSIONS, open_decompressed
from tasks.text.records import ObjectFault, Record, RecordFault, excerpt

_MAX_JSON_DOCUMENTS = 16
"""A .json object must be held whole: so many times `max_document_bytes` at most."""
_SPOOL_BYTES = 32 << 20


@dataclass(frozen=True)
class Format:
    """What a key says about its object: `name` is the suffix of the format, `compression` that behind it, if any."""

    name: str
    compression: str | None


@dataclass(frozen=True)
class Limits:
    """Bytes of one record, bytes of an unpacked object, and the fields in which a record may hold its text."""

    max_document_bytes: int
    max_object_bytes: int
    text_fields: tuple[str, ...]


Reader = Callable[[BinaryIO, "Limits"], Iterator[Record | RecordFault]]


def format_of(key: str) -> Format:
    """Format and compression by the suffixes of `key`.

    Raises:
        ObjectFault: no suffix, or one that no reader is for.
    """
    suffixes = [suffix[1:].lower() for suffix in PurePosixPath(key).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else None
    name = suffixes[-1] if suffixes else ""
    if name not in _READERS:
        found = f"the suffix .{name}" if name else "no suffix of a format"
        raise ObjectFault(
            "unknown_format", f"{found}; known are {', '.join(f'.{n}' for n in sorted(_READERS))}"
        )
    return Format(name, compression)


def read_records(source: BinaryIO, format_: Format, limits: Limits) -> Iterator[Record | RecordFault]:
    """Records of an object, in order, with bounded memory.

    Raises:
        ObjectFault: when the object as a whole cannot be read; what was yielded before must not be used.
    """
    return _READERS[format_.name](
        open_decompressed(source, format_.compression, limits.max_object_bytes), limits
    )


def _decoded(stream: BinaryIO, is_html: bool = False) -> tuple[BinaryIO, str]:
    """The stream without its mark, and its encoding; UTF-16 and UTF-32 are turned into UTF-8 on the way."""
    sample = _peek(stream)
    encoding = detect_encoding(sample, whole=len(sample) < SAMPLE_BYTES, is_html=is_html)
    rest = _Rejoined(sample, stream)
    if encoding is None:
        raise ObjectFault(
            "encoding_unknown", f"no encoding can be told from its bytes, which begin {excerpt(sample)!r}"
        )
    if encoding.startswith(("utf-16", "utf-32")):
        return io.BufferedReader(Utf8Transcoder(io.BufferedReader(rest), encoding)), "utf-8"
    buffered = io.BufferedReader(rest, 1 << 18)
    if encoding == "utf-8-sig":
        buffered.read(3)
        encoding = "utf-8"
    return buffered, encoding


def _peek(stream: BinaryIO) -> bytes:
    parts, size = [], 0
    while size < SAMPLE_BYTES and (part := stream.read(SAMPLE_BYTES - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class _Rejoined(io.RawIOBase):
    """The bytes that were looked at, then the rest of their stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        if not self._head:
            return self._rest.readinto(buffer)  # type: ignore[attr-defined,no-any-return]
        size = min(len(buffer), len(self._head))
        buffer[:size] = self._head[:size]
        self._head = self._head[size:]
        return size


def _read_all(stream: BinaryIO, max_bytes: int, limit: str) -> bytes:
    content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ObjectFault("too_large", f"is larger than {max_bytes:,} bytes ({limit})")
    return content


def _read_text(stream: BinaryIO, limits: Limits, is_html: bool = False) -> Iterator[Record | RecordFault]:
    """A whole file is one document; an empty one is none."""
    decoded, encoding = _decoded(stream, is_html)
    content = _read_all(decoded, limits.max_document_bytes, "ingest.max_document_bytes")
    if not content:
        return
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ObjectFault("encoding_unknown", f"byte {error.start:,} is not {encoding}") from None
    yield Record(1, {limits.text_fields[0]: text})


def _read_html(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    return _read_text(stream, limits, is_html=True)


def _lines(stream: BinaryIO, limits: Limits) -> Iterator[tuple[int, bytes | RecordFault]]:
    """Lines with their numbers, split at the byte 0x0A only: U+2028, U+0085 and form feeds are text."""
    number = 0
    while line := stream.readline(limits.max_document_bytes + 1):
        number += 1
        if len(line) > limits.max_document_bytes and not line.endswith(b"\n"):
            yield number, RecordFault(number, "line_too_long", excerpt(line))
            while (line := stream.readline(1 << 20)) and not line.endswith(b"\n"):
                pass
        else:
            yield number, line


def _read_json_lines(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    import orjson

    decoded, encoding = _decoded(stream)
    for number, line in _lines(decoded, limits):
        if isinstance(line, RecordFault):
            yield line
            continue
        if not line.strip():
            continue
        try:
            value = orjson.loads(line if encoding == "utf-8" else line.decode(encoding))
        except UnicodeDecodeError:
            yield RecordFault(number, "invalid_encoding", excerpt(line))
        except orjson.JSONDecodeError:
            yield RecordFault(
                number, "invalid_encoding" if not _is_utf8(line, encoding) else "invalid_json", excerpt(line)
            )
        else:
            if isinstance(value, dict):
                yield Record(number, value, number)
            else:
                yield RecordFault(number, "not_an_object", excerpt(line))


def _is_utf8(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _read_json(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    """An array of objects, one object, or an object whose one list of objects holds the records."""
    import orjson

    decoded, encoding = _decoded(stream)
    content = _read_all(
        decoded, _MAX_JSON_DOCUMENTS * limits.max_document_bytes, "a .json is held whole; write it as .jsonl"
    )
    if not content.strip():
        return
    try:
        value = orjson.loads(content if encoding == "utf-8" else content.decode(encoding))
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        raise ObjectFault("invalid_json", str(error)) from None
    for number, element in enumerate(_json_records(value, limits.text_fields), start=1):
        if isinstance(element, dict):
            yield Record(number, element)
        else:
            yield RecordFault(None, "not_an_object", excerpt(f"element {number}: {element!r}"))


def _json_records(value: Any, text_fields: Sequence[str]) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and not any(name in value for name in text_fields):
        lists = [
            v for v in value.values() if isinstance(v, list) and v and all(isinstance(e, dict) for e in v)
        ]
        if len(lists) == 1:
            return lists[0]
    return [value]


def _read_csv(stream: BinaryIO, limits: Limits, delimiter: str = ",") -> Iterator[Record | RecordFault]:
    """Rows below a header. An open quote takes the lines up to where the reader notices: all counted as lost."""
    decoded, encoding = _decoded(stream)
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
            reason = error.reason if isinstance(error, _LineFault) else "open_quote"
            if header is None:
                raise ObjectFault("invalid_header", f"the header cannot be read ({reason})") from None
            yield RecordFault(first_line, reason, excerpt(text), lost=taken)


def _read_tsv(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    return _read_csv(stream, limits, "\t")


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
    """Lines for the csv module, which remembers those of the row under way, and stops it where a row grows too large."""

    def __init__(self, stream: BinaryIO, encoding: str, limits: Limits) -> None:
        self._lines = _lines(stream, limits)
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


def _read_parquet(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
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


_READERS: dict[str, Reader] = {
    "txt": _read_text,
    "md": _read_text,
    "html": _read_html,
    "htm": _read_html,
    "json": _read_json,
    "jsonl": _read_json_lines,
    "ndjson": _read_json_lines,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
}
