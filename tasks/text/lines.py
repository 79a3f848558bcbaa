"""Bytes of an object as lines and whole texts: the encoding found, the mark gone, nothing larger than its limit."""

import io
from collections.abc import Iterator
from typing import BinaryIO

from tasks.text.decoding import SAMPLE_BYTES, Utf8Transcoder, detect_encoding
from tasks.text.records import Limits, ObjectFault, RecordFault, excerpt


def decoded_stream(
    stream: BinaryIO, *, is_html: bool = False, by_lines: bool = False
) -> tuple[BinaryIO, str]:
    """The stream without its mark, and its encoding; UTF-16 and UTF-32 are turned into UTF-8 on the way.

    `by_lines`: the caller can refuse single lines, so an object of which most lines are UTF-8 is taken as such.

    Raises:
        ObjectFault: the encoding cannot be known.
    """
    sample = _peek(stream)
    encoding = detect_encoding(sample, whole=len(sample) < SAMPLE_BYTES, is_html=is_html)
    if encoding is None and by_lines and _has_mostly_utf8_lines(sample):
        encoding = "utf-8"
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


def _has_mostly_utf8_lines(sample: bytes) -> bool:
    lines = sample.split(b"\n")
    return b"\0" not in sample and sum(is_valid(line, "utf-8") for line in lines) > len(lines) / 2


def is_valid(line: bytes, encoding: str) -> bool:
    """Whether `line` is sound text of `encoding`."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


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
            return self._rest.readinto(buffer)  # type: ignore[attr-defined]
        size = min(len(buffer), len(self._head))
        buffer[:size] = self._head[:size]
        self._head = self._head[size:]
        return size


def read_all(stream: BinaryIO, max_bytes: int, limit: str) -> bytes:
    content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ObjectFault("too_large", f"is larger than {max_bytes:,} bytes ({limit})")
    return content


def split_lines(stream: BinaryIO, limits: Limits) -> Iterator[tuple[int, bytes | RecordFault]]:
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
