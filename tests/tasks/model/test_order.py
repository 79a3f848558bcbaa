"""The order of sequences: bijective, a function of the position alone."""

import numpy as np
import pytest

from tasks.model.order import sequences_at


@pytest.mark.parametrize("num_sequences", [1, 2, 3, 5, 16, 255, 256, 257, 1000, 65_537])
def test_each_epoch_reads_every_sequence_once(num_sequences: int) -> None:
    for epoch in (0, 1, 7):
        positions = np.arange(epoch * num_sequences, (epoch + 1) * num_sequences)
        assert sorted(sequences_at(positions, num_sequences, seed=3)) == list(range(num_sequences))


def test_epochs_and_seeds_differ() -> None:
    first, second = np.arange(200), np.arange(200, 400)
    orders = [
        sequences_at(positions, 200, seed).tolist() for positions in (first, second) for seed in (1, 2, -5)
    ]
    assert len({tuple(order) for order in orders}) == 6
    assert tuple(range(200)) not in {tuple(order) for order in orders}


def test_a_position_gives_its_sequence_whatever_is_asked_beside_it() -> None:
    whole = sequences_at(np.arange(1000), 300, seed=9)
    assert [int(sequences_at(np.array([position]), 300, seed=9)[0]) for position in range(290, 320)] == whole[
        290:320
    ].tolist()


def test_the_shape_of_the_batch_is_kept_so_ranks_only_slice_it() -> None:
    flat = sequences_at(np.arange(24), 50, seed=1)
    assert sequences_at(np.arange(24).reshape(3, 2, 4), 50, seed=1).tolist() == flat.reshape(3, 2, 4).tolist()


def test_the_order_is_the_same_in_every_version() -> None:
    # A changed order would resume an old checkpoint on other sequences; the fingerprint's code digest guards that too.
    assert sequences_at(np.arange(8), 100, seed=1234).tolist() == [52, 45, 59, 43, 48, 72, 58, 76]


def test_neighbours_are_spread_evenly() -> None:
    order = sequences_at(np.arange(10_000), 10_000, seed=0)
    correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
    assert abs(correlation) < 0.05  # five standard deviations of a random order
    halves = order.reshape(10, 1000) < 5000
    assert np.abs(halves.mean(axis=1) - 0.5).max() < 0.08
