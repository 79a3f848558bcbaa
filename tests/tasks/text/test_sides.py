"""A document's side is a pure function of its group or cluster."""

from collections import Counter

import pytest

from tasks.params.split import SplitParams
from tasks.text.sides import SIDES, side_of, split_key

KEYS = [f"cluster-{number}" for number in range(20_000)]


def test_sides_get_their_share():
    params = SplitParams()
    counts = Counter(side_of(key, params) for key in KEYS)
    for side in SIDES:
        assert counts[side] / len(KEYS) == pytest.approx(getattr(params, side), abs=0.01)


def test_another_seed_places_documents_anew_by_the_same_shares():
    moved = sum(side_of(key, SplitParams()) != side_of(key, SplitParams(seed=18)) for key in KEYS)
    expected = 1 - (0.85**2 + 0.10**2 + 0.05**2)
    assert moved / len(KEYS) == pytest.approx(expected, abs=0.02)


def test_a_larger_train_share_takes_documents_from_the_other_sides_only():
    small, large = SplitParams(), SplitParams(train=0.9, validation=0.06, test=0.04)
    assert all(side_of(key, large) == "train" for key in KEYS if side_of(key, small) == "train")


def test_sides_stay_as_they_are_released():
    """A changed hash would move every document of every corpus: test documents would be trained on."""
    params = SplitParams(train=0.4, validation=0.3, test=0.3)
    sides = [side_of(key, params) for key in ("a", "b", "漢字", "0123456789abcdef", "")]
    assert sides == ["validation", "test", "train", "train", "validation"]


def test_the_group_keeps_documents_together_and_an_empty_group_is_none():
    assert split_key("book", "c1") == split_key("book", "c2") == "book"
    assert split_key(None, "c1") == split_key("", "c1") == "c1"
