"""Which documents share a band key: found by sorting, one band and one range of keys at a time."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_RANGE_ROWS = 1 << 23
"""Keys sorted at once: 200 MB."""


class Buckets(NamedTuple):
    """Groups of at least two documents with the same key in one band; entries sorted by document."""

    documents: npt.NDArray[np.int64]
    buckets: npt.NDArray[np.int64]
    num_buckets: int


def shared_buckets(
    bands: Iterable[npt.NDArray[np.uint64]], documents: npt.NDArray[np.int64], range_rows: int = _RANGE_ROWS
) -> Buckets:
    """Buckets of `documents`, given their keys of each band, in the same order; keys that stand alone are left out."""
    found: list[npt.NDArray[np.int64]] = []
    numbers: list[npt.NDArray[np.int64]] = []
    num_buckets = 0
    for keys in bands:
        for part in _ranges(keys, range_rows):
            order = part[np.argsort(keys[part], kind="stable")]
            starts = np.flatnonzero(np.r_[True, keys[order][1:] != keys[order][:-1]]) if len(order) else order
            lengths = np.diff(np.r_[starts, len(order)])
            shared = np.repeat(lengths > 1, lengths)
            found.append(documents[order[shared]])
            groups = lengths[lengths > 1]
            numbers.append(np.repeat(np.arange(num_buckets, num_buckets + len(groups)), groups))
            num_buckets += len(groups)
    members = np.concatenate(found) if found else np.empty(0, np.int64)
    buckets = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
    order = np.argsort(members, kind="stable")
    return Buckets(members[order], buckets[order], num_buckets)


def _ranges(keys: npt.NDArray[np.uint64], range_rows: int) -> Iterable[npt.NDArray[np.int64]]:
    """Positions of the keys, in as many ranges of keys as keep each near `range_rows` (keys are hashes: even)."""
    number = -(-len(keys) // range_rows)
    if number <= 1:
        yield np.arange(len(keys))
        return
    place = (keys >> np.uint64(32)) * np.uint64(number) >> np.uint64(32)
    for part in range(number):
        yield np.flatnonzero(place == part)
