"""Objects of a corpus as records: which format a key says, and one short reader a format.

Text files are one record; .json, .jsonl, .csv, .tsv and .parquet hold many. A record that cannot be read is a
fault with its line; an object that cannot be trusted as a whole raises ObjectFault.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from tasks.text.decompression import COMPRESSIONS, open_decompressed
from tasks.text.lines import decoded_stream, is_valid, read_all, split_lines
from tasks.text.records import Limits, ObjectFault, Record, RecordFault, excerpt
from tasks.text.tables import read_csv, read_parquet, read_tsv

_MAX_JSON_DOCUMENTS = 16
"""A .json object must be held whole: so many times `max_document_bytes` at most."""


@dataclass(frozen=True)
class Format:
    """What a key says about its object: `name` is the suffix of the format, `compression` that behind it, if any."""

    name: str
    compression: str | None


Reader = Callable[[BinaryIO, Limits], Iterator[Record | RecordFault]]


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


def _read_text(stream: BinaryIO, limits: Limits, is_html: bool = False) -> Iterator[Record | RecordFault]:
    """A whole file is one document; an empty one is none."""
    decoded, encoding = decoded_stream(stream, is_html=is_html)
    content = read_all(decoded, limits.max_document_bytes, "ingest.max_document_bytes")
    if not content:
        return
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ObjectFault("encoding_unknown", f"byte {error.start:,} is not {encoding}") from None
    yield Record(1, {limits.text_fields[0]: text})


def _read_html(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    return _read_text(stream, limits, is_html=True)


def _read_json_lines(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    import orjson

    decoded, encoding = decoded_stream(stream, by_lines=True)
    for number, line in split_lines(decoded, limits):
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
                number, "invalid_encoding" if not is_valid(line, encoding) else "invalid_json", excerpt(line)
            )
        else:
            if isinstance(value, dict):
                yield Record(number, value, number)
            else:
                yield RecordFault(number, "not_an_object", excerpt(line))


def _read_json(stream: BinaryIO, limits: Limits) -> Iterator[Record | RecordFault]:
    """An array of objects, one object, or an object whose one list of objects holds the records."""
    import orjson

    decoded, encoding = decoded_stream(stream)
    content = read_all(
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


_READERS: dict[str, Reader] = {
    "txt": _read_text,
    "md": _read_text,
    "html": _read_html,
    "htm": _read_html,
    "json": _read_json,
    "jsonl": _read_json_lines,
    "ndjson": _read_json_lines,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
}
