"""MinHash signatures folded into one 64-bit key a band: texts that share a key are worth comparing.

Two texts of Jaccard similarity s share one of b bands of r rows with probability 1 - (1 - s^r)^b
(Broder 1997; Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, 3.4).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.text.compiled import compiled
from tasks.text.measures import string_buffers
from tasks.text.scripts import code_point_table, spaceless_scripts
from tasks.text.shingles import Contents, combine, mix, read_text

_SPLITMIX = np.uint64(0x9E3779B97F4A7C15)


def signatures(
    folded: pa.LargeStringArray, *, ngram: int, num_bands: int, rows_per_band: int, seed: int
) -> tuple[Contents, npt.NDArray[np.uint64]]:
    """Contents, and the band keys (texts x bands) of texts from `fold`; keys below `ngram` tokens mean nothing."""
    content, offsets = string_buffers(folded)
    high, low = np.empty((2, len(folded)), np.uint64)
    size, tokens = np.empty((2, len(folded)), np.int64)
    keys = np.zeros((len(folded), num_bands), np.uint64)
    multipliers, masks = _permutations(num_bands * rows_per_band, seed)
    _sign(
        content, offsets, code_point_table(), spaceless_scripts(), ngram, rows_per_band, multipliers, masks,
        high, low, size, tokens, keys,
    )  # fmt: skip
    return Contents(high, low, size, tokens), keys


def _permutations(number: int, seed: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Odd multipliers and xor masks of the 32-bit permutations, by SplitMix64 (NumPy's streams may change)."""
    with np.errstate(over="ignore"):
        state = (np.arange(1, number + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(1 << 32)) * _SPLITMIX
    drawn = np.array([mix(value) for value in state], np.uint64)
    return (drawn >> np.uint64(32)).astype(np.uint32) | np.uint32(1), drawn.astype(np.uint32)


@compiled
def _sign(content, offsets, table, spaceless, ngram, rows, multipliers, masks, high, low, size, tokens, keys):  # type: ignore[no-untyped-def]
    num_bands = keys.shape[1]
    for text in range(len(offsets) - 1):
        start, end = offsets[text], offsets[text + 1]
        hashes = np.empty(end - start + 1, np.uint64)
        shingles = np.empty(end - start + 1, np.uint64)
        count, high[text], low[text], size[text] = read_text(content, start, end, table, spaceless, hashes)
        tokens[text] = count
        least = np.full(len(multipliers), 0xFFFFFFFF, np.uint32)
        for shingle in range(combine(hashes, count, ngram, shingles)):
            value = np.uint32(shingles[shingle] >> np.uint64(32))
            for row in range(len(multipliers)):  # the inner loop over rows becomes SIMD code
                permuted = np.uint32((value ^ masks[row]) * multipliers[row])
                least[row] = permuted if permuted < least[row] else least[row]
        for band in range(num_bands):
            key = np.uint64(band)
            for row in range(band * rows, (band + 1) * rows):
                key = mix(key ^ np.uint64(least[row]))
            keys[text, band] = key
