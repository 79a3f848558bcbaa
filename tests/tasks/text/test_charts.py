"""Charts: round ticks, no spike lost, nothing drawn outside, nothing drawn from nothing."""

import math
import re

import pytest

from tasks.text.charts import HEIGHT, WIDTH, Bars, Chart, Line, thinned, ticks


def chart(*points: tuple[float, float], label: str = "train") -> Chart:
    return Chart("loss", "Loss", "falls", "step", "nats/token", (Line(label, points),))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (3.6, 7.6, [4, 5, 6, 7]),
        (0, 0.0015, [0, 0.0005, 0.001, 0.0015]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_thinning_keeps_the_spike_and_both_ends() -> None:
    points = [(float(i), 1.0) for i in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    kept = thinned(points)
    assert len(kept) <= 402
    assert (54_321.0, 99.0) in kept
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert kept == sorted(kept)


def test_every_point_lies_inside_the_picture() -> None:
    svg = str(chart(*((i, math.sin(i) * 1e-5) for i in range(1000))).svg)
    joined = re.search(r'points="([^"]+)"', svg)
    assert joined
    for place in joined.group(1).split():
        x, y = map(float, place.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_a_loss_that_is_no_number_is_left_out_of_the_line() -> None:
    svg = str(chart((1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)).svg)
    assert "nan" not in svg
    assert "inf" not in svg
    assert svg.count(",", svg.index("points=")) == 2


def test_a_flat_line_is_drawn_and_a_single_point_is_not() -> None:
    assert "polyline" in chart((1, 3.0), (2, 3.0)).svg
    assert chart((1, 3.0)).svg == ""


def test_labels_are_escaped() -> None:
    svg = Bars("funnel", "<b>", (("</svg><script>", 3.0, "3 & more"),)).svg
    assert "<script>" not in svg
    assert "3 &amp; more" in svg


def test_bars_of_nothing_divide_by_nothing() -> None:
    assert "nan" not in Bars("funnel", "Documents", (("read", 0.0, "0"),)).svg
