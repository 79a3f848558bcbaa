"""Buckets of equal keys, whatever the range of keys sorted at once."""

import numpy as np
import pytest

from tasks.text.bands import shared_buckets


def groups(buckets):
    found: dict[int, set[int]] = {}
    for document, bucket in zip(buckets.documents.tolist(), buckets.buckets.tolist(), strict=True):
        found.setdefault(bucket, set()).add(document)
    assert sorted(found) == list(range(buckets.num_buckets))
    return sorted(map(sorted, found.values()))


@pytest.mark.parametrize("range_rows", [1, 3, 1000])
def test_buckets_are_the_groups_of_equal_keys_of_each_band(range_rows):
    random = np.random.default_rng(1)
    documents = np.arange(100, 160)
    bands = [random.integers(0, 40, 60).astype(np.uint64) << np.uint64(58) for _ in range(3)]
    expected = []
    for keys in bands:
        for key in set(keys.tolist()):
            members = documents[keys == key].tolist()
            if len(members) > 1:
                expected.append(members)
    found = shared_buckets(iter(bands), documents, range_rows)
    assert groups(found) == sorted(expected)
    assert (np.diff(found.documents) >= 0).all()


def test_no_bands_and_no_documents_give_no_buckets():
    assert shared_buckets([], np.arange(5)).num_buckets == 0
    assert shared_buckets([np.empty(0, np.uint64)], np.empty(0, np.int64)).num_buckets == 0
