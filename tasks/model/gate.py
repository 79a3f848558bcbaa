"""The gate between a candidate and the champion: a paired bootstrap over the same test blocks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.model.bootstrap import interval, resampled_ratios


@dataclass(frozen=True)
class GateVerdict:
    """What the gate found; bits a byte of both, and the interval of candidate minus champion."""

    verdict: str
    """`promote`, `refuse` or `inconclusive`."""
    reason: str
    candidate_bits_per_byte: float | None
    champion_bits_per_byte: float | None
    difference: float | None
    interval: tuple[float, float] | None
    confidence: float
    blocks: int


def gate(
    candidate_nats: npt.NDArray[np.float64],
    champion_nats: npt.NDArray[np.float64],
    num_bytes: npt.NDArray[np.int64],
    *,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> GateVerdict:
    """Compare two models by their losses on the same blocks, which hold `num_bytes` of text each.

    The difference in bits a byte is resampled over blocks. The whole interval below zero: promote; above zero:
    refuse; zero inside, a tie included: inconclusive, and the champion stays.
    """
    bits = np.log(2) * max(int(num_bytes.sum()), 1)
    candidate, champion = float(candidate_nats.sum() / bits), float(champion_nats.sum() / bits)
    differences = (candidate_nats - champion_nats) / np.log(2)
    low, high = interval(resampled_ratios(differences, num_bytes, num_resamples, seed), confidence)
    percent = f"{confidence:.0%}"
    numbers = (
        f"{candidate:.4f} bits a byte against the champion's {champion:.4f}, difference "
        f"{candidate - champion:+.4f}, {percent} interval [{low:+.4f}, {high:+.4f}] over {len(num_bytes)} blocks"
    )
    if high < 0:
        verdict, meaning = "promote", "better than the champion"
    elif low > 0:
        verdict, meaning = "refuse", "worse than the champion"
    else:
        verdict, meaning = "inconclusive", "not better than the champion beyond chance"
    return GateVerdict(
        verdict=verdict,
        reason=f"{meaning}: {numbers}",
        candidate_bits_per_byte=candidate,
        champion_bits_per_byte=champion,
        difference=candidate - champion,
        interval=(low, high),
        confidence=confidence,
        blocks=len(num_bytes),
    )
