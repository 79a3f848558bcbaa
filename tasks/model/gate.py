"""The gate between a candidate and the champion: a paired bootstrap over the same test blocks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.model.bootstrap import interval, resampled_ratios

# With fewer blocks a bootstrap knows nothing of the spread: of one block every resample is the same.
MIN_BLOCKS = 8


@dataclass(frozen=True)
class GateVerdict:
    """What the gate found; bits a byte of both, and the interval of candidate minus champion."""

    verdict: str
    """`promote`, `refuse`, `inconclusive`, or `same` for the champion itself."""
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
    if len(num_bytes) < MIN_BLOCKS:
        verdict, meaning = "inconclusive", f"fewer than {MIN_BLOCKS} test blocks cannot tell"
    elif high < 0:
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


def first_champion(confidence: float, improvement: float) -> GateVerdict:
    """The verdict on a candidate that beat its untrained twin when there is no champion to compare with."""
    reason = f"no champion yet, and the test loss is {improvement:.1%} below the untrained twin's"
    return _uncompared("promote", reason, confidence)


def same_model(confidence: float, version: str) -> GateVerdict:
    """The verdict on a candidate with the very weights of the champion."""
    return _uncompared("same", f"this very model is the champion already (version {version})", confidence)


def _uncompared(verdict: str, reason: str, confidence: float) -> GateVerdict:
    return GateVerdict(verdict, reason, None, None, None, None, confidence, 0)
