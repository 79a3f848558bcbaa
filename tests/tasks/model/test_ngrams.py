"""Count models are proper distributions with the counts of the train side only."""

from pathlib import Path

import numpy as np
import pytest

from tasks.model.ngrams import NgramModel


class ArrayBlocks:
    """Blocks that lie in memory."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = np.array(rows, np.int64)
        self.block_size = self.rows.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        return self.rows[indices]


TRAIN = ArrayBlocks([[0, 1, 0, 1], [0, 1, 2, 0]])


def test_a_bigram_is_the_interpolation_of_pair_and_token_counts() -> None:
    test = ArrayBlocks([[0, 1, 2, 2]])
    model = NgramModel(TRAIN, [test], 3)
    unigram = (np.array([4, 3, 1]) + 1) / 11
    pairs = {(0, 1): (3 + 2 * unigram[1]) / (3 + 2), (1, 2): (1 + 2 * unigram[2]) / (2 + 2)}
    unseen = (0 + 2 * unigram[2]) / (1 + 2)
    expected = -np.log([pairs[0, 1], pairs[1, 2], unseen]).sum()
    assert model.bigram_nats(test, 2.0).tolist() == pytest.approx([expected])
    assert model.unigram_nats(test).tolist() == pytest.approx([-np.log(unigram[[1, 2, 2]]).sum()])


def test_probabilities_after_a_context_add_up_to_one() -> None:
    judged = ArrayBlocks([[1, token] for token in range(5)])
    model = NgramModel(TRAIN, [judged], 5)
    assert np.exp(-model.bigram_nats(judged, 3.0)).sum() == pytest.approx(1)


def test_the_judged_text_leaves_no_trace_in_the_counts() -> None:
    test = ArrayBlocks([[2, 2, 2, 2]])
    model = NgramModel(TRAIN, [test], 3)
    assert model.token_counts.tolist() == [4, 3, 1]
    assert model.pair_counts.sum() == 0


def test_the_weight_is_fitted_where_it_is_told_to(trained_project: Path) -> None:
    from tasks.model.blocks import Blocks

    train, validation = (
        Blocks.open(trained_project / "data" / "split", side) for side in ("train", "validation")
    )
    model = NgramModel(train, [validation], 512)
    best = model.fit_concentration(validation)
    losses = [model.bigram_nats(validation, m).sum() for m in (best / 2, best, best * 2)]
    assert losses[1] == min(losses)
