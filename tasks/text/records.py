"""What readers of objects give: records, faults of single records, and the fault of a whole object."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

EXCERPT_CHARACTERS = 200


@dataclass(frozen=True)
class Record:
    """One record: `number` counts from 1 (line, row or element), `line` is where it begins, if lines count."""

    number: int
    fields: Mapping[str, Any]
    line: int | None = None


@dataclass(frozen=True)
class RecordFault:
    """A record that cannot be read; `lost` is how many lines or rows it took with it."""

    line: int | None
    reason: str
    excerpt: str = ""
    lost: int = 1


@dataclass(frozen=True)
class Limits:
    """Bytes of one record, bytes of an unpacked object, and the fields in which a record may hold its text."""

    max_document_bytes: int
    max_object_bytes: int
    text_fields: tuple[str, ...]


class ObjectFault(Exception):
    """An object cannot be read as a whole: nothing of it is used. `reason` is a word for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def document_id(key: str, number: int) -> str:
    """The id of a document: 32 hexadecimal digits of its object's key and its record's number."""
    return xxhash.xxh3_128(f"{key}#{number}".encode()).hexdigest()


def excerpt(content: bytes | str) -> str:
    """The first characters of something unreadable, printable on one line."""
    text = (
        content[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "replace")
        if isinstance(content, bytes)
        else content
    )
    short = text[:EXCERPT_CHARACTERS].encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(character if character.isprintable() else " " for character in short).strip()[
        :EXCERPT_CHARACTERS
    ]
