"""Line charts as SVG, with nothing but the standard library, and a name at each line's end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

COLOURS = ("#d62728", "#ff7f0e", "#1f77b4", "#17becf", "#2ca02c", "#9467bd", "#8c564b", "#bcbd22", "#7f7f7f", "#333333")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 70, 190, 46, 52

Points = Sequence[tuple[float, float]]


class Logarithmic:
    """An axis over whole powers of ten."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._first, self._last = floor(log10(min(values))), ceil(log10(max(values)))
        if self._first == self._last:
            self._last += 1
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        part = (log10(value) - self._first) / (self._last - self._first)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**power for power in range(self._first, self._last + 1)]


class Linear:
    """An axis from zero, in about five round steps."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        power = 10.0 ** floor(log10(max(values) / 5))
        self._step = next(size * power for size in (1, 2, 5, 10) if size * power >= max(values) / 6)
        self._count = ceil(max(values) / self._step)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        return self._start + value / (self._step * self._count) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """The steps."""
        return [round(self._step * number, 9) for number in range(self._count + 1)]


Scale = Logarithmic | Linear


def line_chart(
    title: str,
    x_name: str,
    y_name: str,
    series: Mapping[str, Points],
    unit: str = "",
    kind: type[Scale] = Logarithmic,
) -> str:
    """Draw one line for each series. Values that are not positive have no place here and are left out."""
    kept = {name: [(x, y) for x, y in points if x > 0 and y > 0] for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    x = kind([x for points in kept.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    y = kind([y for points in kept.values() for _, y in points], HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 24, title, 'font-size="16" font-weight="bold"'),
        *grid(x, y, unit),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_name, 'font-size="12" text-anchor="middle"'),
        text(LEFT, TOP - 7, y_name, 'font-size="12"'),
        *curves(kept, list(series), x, y),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def grid(x: Scale, y: Scale, unit: str) -> Iterator[str]:
    """The lines of the powers of ten, with their numbers."""
    for tick in x.ticks():
        yield f'<path d="M{x(tick):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
        yield text(x(tick), HEIGHT - BOTTOM + 18, number(tick), 'font-size="12" text-anchor="middle"')
    for tick in y.ticks():
        yield f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield text(LEFT - 8, y(tick) + 4, unit + number(tick), 'font-size="12" text-anchor="end"')


def curves(series: Mapping[str, Points], names: Sequence[str], x: Scale, y: Scale) -> Iterator[str]:
    """The lines, with names that do not lie on one another."""
    places = label_places({name: y(points[-1][1]) for name, points in series.items()})
    for name, points in reversed(list(series.items())):  # the first lies on top
        colour = COLOURS[names.index(name) % len(COLOURS)]
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for a, b in points:
            yield f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5" fill="{colour}"/>'
        at, (a, b) = WIDTH - RIGHT + 14, points[-1]
        leader = f"M{x(a) + 4:.1f} {y(b):.1f}L{at - 2} {places[name]:.1f}"
        yield f'<path d="{leader}" stroke="{colour}" stroke-opacity="0.3"/>'
        yield text(at, places[name] + 4, name, f'font-size="12" fill="{colour}"')


def label_places(wanted: Mapping[str, float], distance: float = 15) -> dict[str, float]:
    """Move names apart, in the order of their lines."""
    names = sorted(wanted, key=lambda name: wanted[name])
    places: dict[str, float] = {}
    floor_at = float(TOP)
    for name in names:
        floor_at = places[name] = max(wanted[name], floor_at)
        floor_at += distance
    ceiling = float(HEIGHT - BOTTOM)
    for name in reversed(names):
        ceiling = places[name] = min(places[name], ceiling)
        ceiling -= distance
    return places


def text(x: float, y: float, words: str, style: str) -> str:
    """A text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def number(value: float) -> str:
    """A power of ten, short.

    >>> [number(10.0**power) for power in (-2, 0, 3, 6, 9)]
    ['0.01', '1', '1,000', '1 M', '1 G']
    """
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
