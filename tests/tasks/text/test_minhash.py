"""Band keys: near texts share one, others do not, and nothing depends on the batch."""

import numpy as np
import pyarrow as pa

from tasks.text.minhash import signatures
from tasks.text.shingles import fold, shingle_sets

WORDS = np.array([f"word{number}" for number in range(5000)])


def keys(texts: list[str], *, num_bands: int = 20, rows_per_band: int = 7, seed: int = 1) -> np.ndarray:
    folded = fold(pa.array(texts, pa.large_string()))
    return signatures(folded, ngram=5, num_bands=num_bands, rows_per_band=rows_per_band, seed=seed)[1]


def pairs(number: int, changed: float) -> tuple[list[str], list[str], np.ndarray]:
    """Texts of 300 words, their copies with a share of words changed, and the true similarities."""
    random = np.random.default_rng(3)
    first = [random.choice(WORDS, 300) for _ in range(number)]
    second = [np.where(random.random(300) < changed, "other", words) for words in first]
    texts = [" ".join(words) for words in first], [" ".join(words) for words in second]
    sets = [
        list(map(set, shingle_sets(fold(pa.array(side, pa.large_string())), 5).to_pylist())) for side in texts
    ]
    similarities = [len(a & b) / len(a | b) for a, b in zip(*sets, strict=True)]
    return *texts, np.array(similarities)


def test_pairs_above_the_threshold_are_found():
    first, second, similarity = pairs(400, 0.02)
    shared = (keys(first) == keys(second)).any(axis=1)
    near = similarity >= 0.8
    assert near.sum() > 100
    assert shared[near].mean() > 0.98


def test_pairs_are_found_as_often_as_the_formula_says():
    first, second, similarity = pairs(1500, 0.06)
    found = (keys(first) == keys(second)).any(axis=1).mean()
    expected = (1 - (1 - similarity**7) ** 20).mean()
    assert 0.2 < expected < 0.8
    assert abs(found - expected) < 0.05


def test_unlike_texts_share_no_key():
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(WORDS, 200)) for _ in range(500)]
    found = keys(texts)
    assert all(len(set(column.tolist())) == 500 for column in found.T)


def test_keys_depend_on_the_seed_only():
    texts = ["one two three four five six seven", "seven six five four three two one"]
    assert (keys(texts) == keys(texts)).all()
    assert (keys(texts)[1:] == keys(texts[1:])).all()
    assert (keys(texts) != keys(texts, seed=2)).all()
