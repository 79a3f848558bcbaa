"""Charts as SVG that stands in the page itself: no script, no font, no image from elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 88, 18, 12, 44
BAR_LEFT, BAR_RIGHT, BAR_HEIGHT = 120, 110, 30
MAX_POINTS = 400

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One line of a chart. `style` is `one` or `two`: colour and dash differ, so that grey prints can be read."""

    label: str
    points: tuple[Point, ...]
    style: str = "one"


@dataclass(frozen=True)
class Chart:
    """What a chart shows; `description` says in words what the eye would see."""

    name: str
    title: str
    description: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]

    @property
    def svg(self) -> Markup:
        """The chart as an `<svg>` element; a chart without two points to join has none."""
        return draw(self)


@dataclass(frozen=True)
class Bars:
    """Amounts of one kind, as bars of one scale: (label, amount, amount in words)."""

    name: str
    title: str
    bars: tuple[tuple[str, float, str], ...]
    y_label: str = ""
    lines: tuple[Line, ...] = ()

    @property
    def svg(self) -> Markup:
        """The bars as an `<svg>` element."""
        return draw_bars(self)


def draw_bars(chart: Bars) -> Markup:
    """Horizontal bars, the amount written beside each."""
    most = max((amount for _, amount, _ in chart.bars), default=0) or 1
    room = WIDTH - BAR_LEFT - BAR_RIGHT
    described = "; ".join(f"{label}: {words}" for label, _, words in chart.bars)
    parts = [_opening(chart.name, chart.title, described, len(chart.bars) * BAR_HEIGHT)]
    for index, (label, amount, words) in enumerate(chart.bars):
        top, length = index * BAR_HEIGHT, max(1.0, amount / most * room)
        parts += [
            f'<text x="{BAR_LEFT - 8}" y="{top + 20}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="bar" x="{BAR_LEFT}" y="{top + 4}" width="{length:.1f}" height="{BAR_HEIGHT - 8}"/>',
            f'<text x="{BAR_LEFT + length + 8:.1f}" y="{top + 20}">{escape(words)}</text>',
        ]
    return Markup("\n".join([*parts, "</svg>"]))


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most about `limit` points: of every stretch its lowest and its highest, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    kept: set[int] = {0, len(points) - 1}
    stretches = limit // 2
    for index in range(stretches):
        stretch = range(index * len(points) // stretches, (index + 1) * len(points) // stretches)
        kept.add(min(stretch, key=lambda i: points[i][1]))
        kept.add(max(stretch, key=lambda i: points[i][1]))
    return [points[index] for index in sorted(kept)]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high], at most `most`."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(s * power for s in (1, 2, 2.5, 5, 10, 20) if (high - low) / (s * power) < most)
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(math.floor(high / step + 1e-9) - first + 1)]


def draw(chart: Chart) -> Markup:
    """The chart as an accessible `<svg>`: title and description are read out, colours come from the page's CSS."""
    lines = [(line, [p for p in line.points if all(map(math.isfinite, p))]) for line in chart.lines]
    everything = [point for _, points in lines for point in points]
    if len(everything) < 2:
        return Markup("")
    x_low, x_high = _span([x for x, _ in everything])
    y_low, y_high = _span([y for _, y in everything])

    def place(point: Point) -> str:
        x = LEFT + (point[0] - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [
        _opening(chart.name, chart.title, chart.description, HEIGHT),
        *(_y_tick(value, place((x_low, value))) for value in ticks(y_low, y_high)),
        *(_x_tick(value, place((value, y_low))) for value in ticks(x_low, x_high)),
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(chart.x_label)}</text>',
    ]
    for line, points in lines:
        joined = " ".join(place(point) for point in thinned(points))
        parts.append(f'<polyline class="line {escape(line.style)}" points="{joined}"/>')
        if line.style == "two":
            parts += [_dot(place(point)) for point in points[:: max(1, len(points) // 40)]]
    return Markup("\n".join([*parts, "</svg>"]))


def _opening(name: str, title: str, description: str, height: int) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{escape(name)}-title {escape(name)}-description">\n'
        f'<title id="{escape(name)}-title">{escape(title)}</title>\n'
        f'<desc id="{escape(name)}-description">{escape(description)}</desc>'
    )


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _y_tick(value: float, place: str) -> str:
    y = float(place.split(",")[1])
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_tick_label(value)}</text>'
    )


def _x_tick(value: float, place: str) -> str:
    x = float(place.split(",")[0])
    anchor = "end" if x > WIDTH - RIGHT - 20 else "middle"
    return f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{_tick_label(value)}</text>'


def _dot(place: str) -> str:
    x, y = place.split(",")
    return f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>'


def _tick_label(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-2):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"
