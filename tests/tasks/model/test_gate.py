"""The gate promotes what is better beyond chance, and nothing else."""

import numpy as np
import pytest

from tasks.model.gate import GateVerdict, first_champion, gate, same_model

BLOCKS = 60


def judge(candidate: np.ndarray, champion: np.ndarray) -> GateVerdict:
    num_bytes = np.full(len(champion), 500)
    return gate(candidate, champion, num_bytes, confidence=0.95, num_resamples=1000, seed=1)


@pytest.fixture
def champion() -> np.ndarray:
    """Nats of 60 blocks that differ a lot from one another, as real blocks do."""
    return np.random.default_rng(3).normal(700, 120, BLOCKS)


def test_a_small_gain_on_every_block_promotes_though_blocks_differ_by_much_more(champion: np.ndarray) -> None:
    verdict = judge(champion * 0.99, champion)
    assert verdict.verdict == "promote"
    assert verdict.interval is not None and verdict.interval[1] < 0
    assert verdict.difference == pytest.approx(-0.01 * champion.sum() / np.log(2) / (500 * BLOCKS))


def test_a_loss_on_every_block_is_refused(champion: np.ndarray) -> None:
    assert judge(champion * 1.01, champion).verdict == "refuse"


def test_equal_losses_are_a_tie_and_a_tie_promotes_nothing(champion: np.ndarray) -> None:
    verdict = judge(champion, champion)
    assert (verdict.verdict, verdict.difference) == ("inconclusive", 0)


def test_a_gain_within_the_noise_is_inconclusive(champion: np.ndarray) -> None:
    noise = np.random.default_rng(4).normal(0, 20, BLOCKS)
    verdict = judge(champion + noise - noise.mean() - 1, champion)
    assert verdict.verdict == "inconclusive"
    assert verdict.interval is not None and verdict.interval[0] < 0 < verdict.interval[1]


def test_a_handful_of_blocks_cannot_promote(champion: np.ndarray) -> None:
    assert judge(champion[:3] * 0.5, champion[:3]).verdict == "inconclusive"


def test_the_same_numbers_give_the_same_verdict_and_the_reason_says_them(champion: np.ndarray) -> None:
    first, second = judge(champion * 0.99, champion), judge(champion * 0.99, champion)
    assert first == second
    assert f"{first.candidate_bits_per_byte:.4f}" in first.reason and "95%" in first.reason


def test_without_a_champion_the_first_model_is_promoted_and_the_champion_itself_is_not() -> None:
    assert first_champion(0.95, 0.3).verdict == "promote"
    assert same_model(0.95, "4").verdict == "same"
