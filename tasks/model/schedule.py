"""The learning rate of each step, as a formula: what the optimizer gets is what the history shows."""

import math

from tasks.params.train import TrainParams


def learning_rate(step: int, total_steps: int, params: TrainParams) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Linear warm-up reaches the peak at step `warmup_steps`, then the schedule falls to
    `min_learning_rate_share` of the peak, which the last step has.
    """
    peak, floor = params.learning_rate, params.learning_rate * params.min_learning_rate_share
    if step < params.warmup_steps:
        return peak * (step + 1) / (params.warmup_steps + 1)
    if params.schedule == "constant":
        return peak
    progress = min(1.0, (step - params.warmup_steps) / max(1, total_steps - 1 - params.warmup_steps))
    if params.schedule == "linear":
        return peak + (floor - peak) * progress
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def total_steps(params: TrainParams, num_sequences: int) -> int:
    """Optimizer steps of the run: `max_steps`, or as many whole batches as `epochs` holds, at least one."""
    if params.max_steps is not None:
        return params.max_steps
    return max(1, int(params.epochs * num_sequences) // params.global_batch_size)
