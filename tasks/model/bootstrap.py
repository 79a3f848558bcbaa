"""Confidence intervals by resampling blocks (percentile bootstrap; Efron and Tibshirani 1993, chapter 13)."""

import numpy as np
import numpy.typing as npt


def resampled_ratios(
    numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.int64], num_resamples: int, seed: int
) -> npt.NDArray[np.float64]:
    """sum(numerator) / sum(denominator) of `num_resamples` draws of as many blocks, with replacement.

    Blocks are drawn whole, since the tokens of a block are not independent.
    """
    random = np.random.default_rng(seed)
    count = len(numerator)
    ratios = np.empty(num_resamples, np.float64)
    for index in range(num_resamples):
        drawn = random.integers(0, count, count)
        ratios[index] = numerator[drawn].sum() / max(int(denominator[drawn].sum()), 1)
    return ratios


def interval(values: npt.NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """The central interval that holds `confidence` of the values."""
    edge = (1 - confidence) / 2
    low, high = np.quantile(values, [edge, 1 - edge])
    return float(low), float(high)
