"""Shingles of texts as 64-bit hashes: n-grams of words, or of characters where a script has no spaces."""

import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.text.compiled import compiled
from tasks.text.measures import decode, string_buffers
from tasks.text.scripts import SCRIPT_MASK, TABLE_SIZE, WHITE_SPACE, WORD, code_point_table, spaceless_scripts

# numba turns a mix of int64 and uint64 into float64: every constant of the hashes is spelled as uint64.
_PRIME = np.uint64(0x100000001B3)  # FNV-1a's
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_ODD = np.uint64(0xD6E8FEB86659FD93)  # rrmxmx
_HIGH_SEED = np.uint64(0xCBF29CE484222325)
_LOW_SEED = np.uint64(0x84222325CBF29CE4)
_SHIFT = np.uint64(32)
_SPACE = np.uint64(0x20)


class Contents(NamedTuple):
    """Of each text, its normalised content (NFKC, case folded, white space folded)."""

    high: npt.NDArray[np.uint64]
    """First half of the 128-bit hash of the content: texts are the same when both halves are."""
    low: npt.NDArray[np.uint64]
    size: npt.NDArray[np.int64]
    """Code points of the content."""
    tokens: npt.NDArray[np.int64]
    """Words, each character of a script without spaces counting as one."""


def fold(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """NFKC and case folding of the texts beyond ASCII; the kernels lower the case of ASCII themselves."""
    plain = pc.string_is_ascii(texts).to_pylist()
    if all(plain):
        return texts
    folded = [
        text if ascii_only else unicodedata.normalize("NFKC", text).casefold()
        for text, ascii_only in zip(texts.to_pylist(), plain, strict=True)
    ]
    return pa.array(folded, pa.large_string())


def contents(folded: pa.LargeStringArray) -> Contents:
    """Content hashes, sizes and numbers of tokens of texts from `fold`."""
    content, offsets = string_buffers(folded)
    high, low = np.empty((2, len(folded)), np.uint64)
    size, tokens = np.empty((2, len(folded)), np.int64)
    _contents(content, offsets, code_point_table(), spaceless_scripts(), high, low, size, tokens)
    return Contents(high, low, size, tokens)


def shingle_sets(folded: pa.LargeStringArray, ngram: int) -> pa.LargeListArray:
    """Of each text from `fold`, the sorted set of the hashes of its n-grams (empty below `ngram` tokens)."""
    content, offsets = string_buffers(folded)
    sets = [
        np.unique(
            _shingles(content, offsets[row], offsets[row + 1], code_point_table(), spaceless_scripts(), ngram)
        )
        for row in range(len(folded))
    ]
    ends = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    values = np.concatenate(sets) if sets else np.empty(0, np.uint64)
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values, pa.uint64()))


@compiled
def mix(value):  # type: ignore[no-untyped-def]
    """Spread every bit of 64 over all others (the finalizer of MurmurHash3)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@compiled
def read_text(content, start, end, table, spaceless, tokens):  # type: ignore[no-untyped-def]
    """One pass over a text: fills `tokens` with hashes; number of tokens, content hash and size.

    The multiplications carry bits upwards only, `mix` spreads them at the end: a third of the time of doing both a
    character.
    """
    high, low, size, waiting = _HIGH_SEED, _LOW_SEED, 0, False
    count, word, inside = 0, np.uint64(0), False
    at = start
    while at < end:
        byte = content[at]
        if byte < 0x80:
            at += 1
            code_point = np.uint64(byte + 0x20) if 0x41 <= byte <= 0x5A else np.uint64(byte)
            flags = table[code_point]
        else:
            decoded, length = decode(content, at)
            at += length
            code_point = np.uint64(decoded)
            flags = table[code_point] if decoded < TABLE_SIZE else np.uint8(0)
        if flags & WHITE_SPACE:
            waiting = size > 0
        else:
            if waiting:
                high = (high ^ _SPACE) * _GOLDEN
                low = (low ^ _SPACE) * _ODD
                size += 1
                waiting = False
            high = (high ^ code_point) * _GOLDEN
            low = (low ^ code_point) * _ODD
            size += 1
        alone = (flags & WORD) and spaceless[flags & SCRIPT_MASK]
        if inside and (alone or not flags & WORD):
            tokens[count] = mix(word)
            count += 1
            word, inside = np.uint64(0), False
        if alone:
            tokens[count] = mix(code_point)
            count += 1
        elif flags & WORD:
            word = (word ^ code_point) * _PRIME
            inside = True
    if inside:
        tokens[count] = mix(word)
        count += 1
    return count, mix(high), mix(low), size


@compiled
def combine(tokens, count, ngram, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the hashes of the n-grams of `tokens[:count]`; their number."""
    number = count - ngram + 1
    for first in range(number):
        value = np.uint64(0)
        for token in range(first, first + ngram):
            value = (value ^ tokens[token]) * _GOLDEN
            value ^= value >> _SHIFT
        out[first] = mix(value)
    return max(number, 0)


@compiled
def _contents(content, offsets, table, spaceless, high, low, size, tokens):  # type: ignore[no-untyped-def]
    for text in range(len(offsets) - 1):
        hashes = np.empty(offsets[text + 1] - offsets[text] + 1, np.uint64)
        tokens[text], high[text], low[text], size[text] = read_text(
            content, offsets[text], offsets[text + 1], table, spaceless, hashes
        )


@compiled
def _shingles(content, start, end, table, spaceless, ngram):  # type: ignore[no-untyped-def]
    tokens = np.empty(end - start + 1, np.uint64)
    out = np.empty(end - start + 1, np.uint64)
    count, _, _, _ = read_text(content, start, end, table, spaceless, tokens)
    return out[: combine(tokens, count, ngram, out)]
