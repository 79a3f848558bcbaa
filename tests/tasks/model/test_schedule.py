"""The learning rate's formula and the number of steps."""

import math

import pytest

from tasks.model.schedule import learning_rate, total_steps
from tasks.params.train import TrainParams


def test_warm_up_rises_linearly_to_the_peak() -> None:
    params = TrainParams(learning_rate=1e-3, warmup_steps=4)
    rates = [learning_rate(step, 100, params) for step in range(5)]
    assert rates == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_last_step_has_the_floor(schedule: str) -> None:
    params = TrainParams(learning_rate=1e-3, warmup_steps=10, min_learning_rate_share=0.1, schedule=schedule)
    assert learning_rate(10, 111, params) == pytest.approx(1e-3)
    assert learning_rate(60, 111, params) == pytest.approx(5.5e-4)
    assert learning_rate(110, 111, params) == pytest.approx(1e-4)


def test_cosine_follows_the_cosine() -> None:
    params = TrainParams(learning_rate=1.0, warmup_steps=0, min_learning_rate_share=0.0)
    assert learning_rate(25, 101, params) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_constant_stays_at_the_peak() -> None:
    params = TrainParams(learning_rate=1e-3, warmup_steps=2, schedule="constant")
    assert {learning_rate(step, 10, params) for step in range(2, 10)} == {1e-3}


def test_a_warm_up_longer_than_the_run_never_exceeds_the_peak() -> None:
    params = TrainParams(learning_rate=1e-3, warmup_steps=50)
    assert max(learning_rate(step, 10, params) for step in range(10)) < 1e-3


def test_epochs_become_whole_batches_and_at_least_one() -> None:
    assert total_steps(TrainParams(max_steps=None, epochs=2.0, global_batch_size=8), 30) == 7
    assert total_steps(TrainParams(max_steps=None, epochs=0.01, global_batch_size=8), 30) == 1
    assert total_steps(TrainParams(max_steps=5, epochs=3.0), 1000) == 5
