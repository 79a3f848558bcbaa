"""Compressed objects as streams: all members are read, a cut-off end is named, a bomb is stopped."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from tasks.text.records import ObjectFault

COMPRESSIONS = ("gz", "bz2", "xz", "zst")

_CHUNK_BYTES = 1 << 16
# zstd's decompressor gives all that its input holds, and four bytes can stand for 128 KiB: little is fed at a time,
# so that no input makes more than 32 MiB at once. The others take a limit.
_ZSTD_CHUNK_BYTES = 1 << 10
_MAX_OUTPUT_BYTES = 1 << 20


def open_decompressed(source: BinaryIO, compression: str | None, max_bytes: int) -> io.BufferedReader:
    """Read `source`, compressed as `compression` says (None: not at all), as a stream of at most `max_bytes`.

    Raises:
        ObjectFault: on reading, where the data are cut off, damaged, or unpack to more than `max_bytes`.
    """
    return io.BufferedReader(_Decompressed(source, compression, max_bytes), 1 << 18)


class _Decompressed(io.RawIOBase):
    def __init__(self, source: BinaryIO, compression: str | None, max_bytes: int) -> None:
        self._source = source
        self._compression = compression
        self._max_bytes = max_bytes
        self._total = 0
        self._pending = memoryview(b"")
        self._input = b""
        self._member: Any = None
        self._source_ended = False
        self._may_hold_more = False  # zlib kept output back

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        while not self._pending:
            chunk = self._next_chunk()
            if chunk is None:
                return 0
            self._pending = memoryview(chunk)
            self._total += len(chunk)
            if self._total > self._max_bytes:
                raise ObjectFault(
                    "unpacks_too_large", f"holds more than ingest.max_object_bytes ({self._max_bytes:,})"
                )
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size

    def _next_chunk(self) -> bytes | None:
        """Some unpacked bytes (maybe none yet), or None at the end."""
        if self._compression is None:
            return self._source.read(_CHUNK_BYTES) or None
        if self._member is not None and self._member.eof:
            self._input = self._member.unused_data + self._input
            self._member = None
        wants_input = self._member is None or getattr(self._member, "needs_input", not self._may_hold_more)
        if not self._input and not self._source_ended and wants_input:
            self._input = self._source.read(_ZSTD_CHUNK_BYTES if self._compression == "zst" else _CHUNK_BYTES)
            self._source_ended = not self._input
        if self._member is None:
            # Some writers fill the last block with zeros behind the last member.
            if not self._input.strip(b"\0"):
                self._input = b""
                return None if self._source_ended else b""
            self._member = _DECOMPRESSORS[self._compression]()
        elif not self._input and self._source_ended and wants_input:
            raise ObjectFault(
                "truncated", f"the .{self._compression} data end in the middle (an upload cut off?)"
            )
        return self._unpack()

    def _unpack(self) -> bytes:
        try:
            data, self._input = self._input, b""
            if self._compression == "zst":
                return bytes(self._member.decompress(data))
            if self._compression == "gz":
                chunk = self._member.decompress(data, _MAX_OUTPUT_BYTES)
                # At the end of a member the tail is in `unused_data` too.
                self._input = b"" if self._member.eof else self._member.unconsumed_tail
                self._may_hold_more = len(chunk) == _MAX_OUTPUT_BYTES
                return bytes(chunk)
            return bytes(self._member.decompress(data, _MAX_OUTPUT_BYTES))
        except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
            raise ObjectFault("damaged", f"not sound .{self._compression} data: {error}") from None
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise ObjectFault("damaged", f"not sound .zst data: {error}") from None


def _zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    "zst": _zstd,
}
