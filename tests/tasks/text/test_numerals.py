"""Numbers with their units, and what is said where there is none."""

import math

import pytest

from tasks.text.numerals import count, decimal, duration, interval, measure, share, share_of, size


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(1_234_567, "tokens"), "1,234,567 tokens"),
        (decimal(3.80049, 3, "nats/token"), "3.800 nats/token"),
        (measure(2047.6), "2,048"),
        (measure(44.7), "44.70"),
        (measure(0.0123456), "0.01235"),
        (measure(1e-7), "1.000e-07"),
        (measure(0), "0"),
        (share(0.0022, 2, signed=True), "+0.22 %"),
        (share(-0.05), "-5.0 %"),
        (share_of(400, 8400), "4.8 %"),
        (share_of(0, 0), "–"),
        (size(999), "999 B"),
        (size(53_123_456), "53.12 MB"),
        (duration(4.24), "4.2 s"),
        (duration(59.97), "1 min 00 s"),
        (duration(185), "3 min 05 s"),
        (duration(3599.7), "1 h 00 min"),
        (duration(7620), "2 h 07 min"),
        (interval((43.1, 46.4)), "43.10 to 46.40"),
    ],
)
def test_numbers_carry_their_units(shown: str, expected: str) -> None:
    assert shown == expected


def test_absent_numbers_are_not_zero() -> None:
    shown = [
        count(None, "tokens"),
        decimal(None),
        measure(None),
        share(None),
        share_of(None, 3),
        size(None),
        duration(None),
    ]
    assert set(shown) | {interval(None)} == {"not measured"}


def test_numbers_that_are_none_say_so() -> None:
    assert {count(math.nan), measure(math.inf), share(-math.inf), size(math.nan), duration(math.inf)} == {
        "not finite"
    }
