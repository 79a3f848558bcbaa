"""Who survives: a document goes only when it is verified to be like one that stays.

Documents come in a canonical order, so the result depends neither on shards nor on workers; and since only
survivors are compared with, no chain A~B~...~Z takes Z away because of A (transitive closure would).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.text.bands import Buckets
from tasks.text.compiled import compiled
from tasks.text.sets import jaccard


class Verdicts(NamedTuple):
    """Of each document that shares a bucket, who it is like; positions count in the order of `Buckets.documents`."""

    documents: npt.NDArray[np.int64]
    kept_by: npt.NDArray[np.int64]
    """Position of the most similar survivor, -1: the document stays."""
    similarity: npt.NDArray[np.float64]
    candidate_pairs: int
    verified_pairs: int


def assign(
    buckets: Buckets,
    sets: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    threshold: float,
) -> Verdicts:
    """Go through the documents in ascending order and compare each with the survivors in its buckets.

    `sets[starts[i]:ends[i]]` is the sorted shingle set of the i-th distinct document; `sets` may be a memory map.
    """
    documents, firsts = np.unique(buckets.documents, return_index=True)
    offsets = np.r_[firsts, len(buckets.documents)].astype(np.int64)
    kept_by = np.full(len(documents), -1, np.int64)
    similarity = np.zeros(len(documents))
    candidates, verified = _assign(
        offsets, buckets.buckets, buckets.num_buckets, sets, starts, ends, threshold, kept_by, similarity
    )
    return Verdicts(documents, kept_by, similarity, candidates, verified)


@compiled
def _assign(offsets, buckets, num_buckets, sets, starts, ends, threshold, kept_by, similarity):  # type: ignore[no-untyped-def]
    last_entry = np.full(num_buckets, -1, np.int64)  # of each bucket, its newest survivor: a linked list
    previous = np.full(len(buckets), -1, np.int64)
    owner = np.empty(len(buckets), np.int64)
    compared_with = np.full(len(kept_by), -1, np.int64)
    candidates = verified = 0
    for document in range(len(kept_by)):
        for entry in range(offsets[document], offsets[document + 1]):
            node = last_entry[buckets[entry]]
            while node >= 0:
                other = owner[node]
                node = previous[node]
                if compared_with[other] == document:
                    continue
                compared_with[other] = document
                candidates += 1
                value = jaccard(sets, starts[document], ends[document], starts[other], ends[other], threshold)
                if value < threshold:
                    continue
                verified += 1
                best = kept_by[document]
                if value > similarity[document] or (value == similarity[document] and other < best):
                    kept_by[document], similarity[document] = other, value
        if kept_by[document] >= 0:
            continue
        for entry in range(offsets[document], offsets[document + 1]):
            owner[entry] = document
            previous[entry] = last_entry[buckets[entry]]
            last_entry[buckets[entry]] = entry
    return candidates, verified
