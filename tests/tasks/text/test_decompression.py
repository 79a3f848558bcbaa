"""Compressed objects: all members, cut-off ends named, bombs stopped."""

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tasks.text.decompression import open_decompressed
from tasks.text.records import ObjectFault

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}
DATA = os.urandom(200_000) + b"a" * 3_000_000
every_compression = pytest.mark.parametrize("compression", PACK)


def unpack(content: bytes, compression: str, max_bytes: int = 1 << 30) -> bytes:
    return open_decompressed(io.BytesIO(content), compression, max_bytes).read()


@every_compression
def test_what_was_packed_comes_out(compression: str) -> None:
    assert unpack(PACK[compression](DATA), compression) == DATA


@every_compression
def test_all_members_are_read(compression: str) -> None:
    pack = PACK[compression]
    assert unpack(pack(DATA) + pack(b"x") + pack(b"") + pack(DATA), compression) == DATA + b"x" + DATA


@every_compression
@pytest.mark.parametrize("cut", [1, 3, 5000])
def test_a_cut_off_end_is_named(compression: str, cut: int) -> None:
    with pytest.raises(ObjectFault) as fault:
        unpack(PACK[compression](DATA)[:-cut], compression)
    assert fault.value.reason == "truncated"


@every_compression
def test_a_second_member_cut_off_is_named(compression: str) -> None:
    pack = PACK[compression]
    with pytest.raises(ObjectFault):
        unpack(pack(DATA) + pack(DATA)[:1000], compression)


@every_compression
def test_damage_is_named(compression: str) -> None:
    packed = bytearray(PACK[compression](DATA))
    packed[100_000] ^= 0xFF
    if compression == "zst":  # its checksum is optional: damage the header of the first block
        packed[4:12] = b"\xff" * 8
    with pytest.raises(ObjectFault):
        unpack(bytes(packed), compression)


@every_compression
def test_a_bomb_is_stopped(compression: str) -> None:
    with pytest.raises(ObjectFault) as fault:
        unpack(PACK[compression](b"\0" * 5_000_000), compression, 1_000_000)
    assert fault.value.reason == "unpacks_too_large"


@every_compression
def test_an_empty_object_is_empty(compression: str) -> None:
    assert unpack(b"", compression) == b""


def test_golden_zstd_files_are_read(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("messy/zst/golden-decompression")
    sizes = {path.name: len(unpack(path.read_bytes(), "zst")) for path in folder.glob("*.zst")}
    assert sizes == {
        "block-128k.zst": 131068,
        "empty-block.zst": 0,
        "rle-first-block.zst": 1 << 20,
        "zeroSeq_2B.zst": 13,
    }


def test_corrupt_zstd_files_are_refused(shared_data: Callable[[str], Path]) -> None:
    paths = sorted(shared_data("messy/zst/golden-decompression-errors").glob("*.zst"))
    assert paths
    for path in paths:
        with pytest.raises(ObjectFault):
            unpack(path.read_bytes(), "zst")
