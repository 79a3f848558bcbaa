"""Who survives: only what is verified to be like a survivor goes."""

import numpy as np
import pytest

from tasks.text.bands import Buckets
from tasks.text.clusters import assign
from tasks.text.sets import jaccard


def run(sets: list[set[int]], groups: list[list[int]], threshold: float):
    entries = sorted((document, number) for number, group in enumerate(groups) for document in group)
    documents, buckets = np.array(entries, np.int64).T
    distinct = sorted(set(documents.tolist()))
    values = np.concatenate([np.array(sorted(sets[document]), np.uint64) for document in distinct])
    ends = np.cumsum([len(sets[document]) for document in distinct])
    starts = ends - [len(sets[document]) for document in distinct]
    return assign(Buckets(documents, buckets, len(groups)), values, starts, ends, threshold)


def test_a_document_like_a_survivor_goes():
    verdicts = run([set(range(10)), set(range(9))], [[0, 1]], 0.8)
    assert (verdicts.kept_by.tolist(), verdicts.similarity.tolist()) == ([-1, 0], [0.0, 0.9])
    assert (verdicts.candidate_pairs, verdicts.verified_pairs) == (1, 1)


def test_a_pair_exactly_at_the_threshold_goes():
    for size in range(2, 200):
        for part in range(1, size):
            kept_by = run([set(range(size)), set(range(part))], [[0, 1]], part / size).kept_by
            assert kept_by.tolist() == [-1, 0]
        if size > 30:
            break


def test_a_shared_bucket_alone_removes_nothing():
    verdicts = run([set(range(10)), set(range(100, 110))], [[0, 1]], 0.5)
    assert verdicts.kept_by.tolist() == [-1, -1]
    assert (verdicts.candidate_pairs, verdicts.verified_pairs) == (1, 0)


def test_a_chain_does_not_swallow_its_end():
    """Each is like the next (9/11), not like the one after (8/12): transitive closure would keep one of ten."""
    sets = [set(range(start, start + 10)) for start in range(10)]
    verdicts = run(sets, [list(range(10))], 0.8)
    assert verdicts.kept_by.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6, -1, 8]


def test_the_most_similar_survivor_is_named_and_a_pair_counts_once():
    sets = [set(range(20)), set(range(4, 24)), set(range(3, 23))]
    verdicts = run(sets, [[0, 1, 2], [1, 2], [0, 1, 2]], 0.7)
    assert verdicts.kept_by.tolist() == [-1, -1, 1]
    assert verdicts.candidate_pairs == 3


@pytest.mark.parametrize(("first", "second"), [(set(), {1}), (set(), set())])
def test_empty_sets_are_like_nothing(first, second):
    values = np.array(sorted(first | second), np.uint64)
    assert jaccard(values, 0, len(first), 0, len(second), 0.0) == -1.0
