"""The order in which sequences are read: a pure function of (seed, epoch, position), so resuming is one integer.

A keyed bijection of the block numbers (a Feistel network over the next power of four, values that fall outside
walked on: Black and Rogaway 2002, "Ciphers with arbitrary finite domains") gives each epoch its own permutation
without a table. Any number of ranks reads the same sequences in the same global order.
"""

import numpy as np

_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: splitmix64's step between streams
_MIN_HALF_BITS = 4  # halves of one or two bits mix badly; a domain of 256 costs tiny sets nothing that shows


def sequences_at(positions: np.ndarray, num_sequences: int, seed: int) -> np.ndarray:
    """Numbers of the sequences at global `positions` (0, 1, 2, ... over all epochs), int64 of the same shape.

    Within positions [e * num_sequences, (e + 1) * num_sequences) every sequence comes exactly once.
    """
    epochs, places = np.divmod(np.asarray(positions, np.int64), num_sequences)
    half_bits = max(_MIN_HALF_BITS, ((num_sequences - 1).bit_length() + 1) // 2)
    seeds = [_mix(np.uint64((seed + r * _GOLDEN) % 2**64)) for r in range(_ROUNDS)]
    keys = [_mix(value ^ epochs.astype(np.uint64)) for value in seeds]
    result = places.astype(np.uint64)
    outside = np.ones(result.shape, bool)
    while outside.any():
        result[outside] = _feistel(result[outside], [key[outside] for key in keys], half_bits)
        outside = result >= num_sequences
    return result.astype(np.int64)


def _feistel(values: np.ndarray, keys: list[np.ndarray], half_bits: int) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(values: np.ndarray | np.uint64) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
