"""Plots as SVG inside of a page: axes, lines, dots and bars. Pure. Colours are classes of the page's style.

Promises: every text is escaped; a line has at most a point or two per pixel, however many values it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from mcpmux.bench.plot_scale import Scale, Ticks

WIDE, HALF = (1000.0, 330.0), (480.0, 230.0)  # width and height; about as many pixels as on a screen
LEFT, RIGHT, TOP, BOTTOM = 82.0, 30.0, 14.0, 46.0
CLOSE = 0.4  # pixels; nearer points of a line are not told apart

Point = tuple[float, float | None]


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """What an axis shows: its first and last tick are its ends."""

    label: str
    ticks: Ticks
    log: bool = False


class Plot:
    """Collects what is drawn; `svg` gives it. Values outside of the axes lie on their edges."""

    def __init__(self, title: str, x: Axis, y: Axis, size: tuple[float, float] = WIDE) -> None:
        self.title = title
        self._width, self._height = size
        self._x = _scale(x, LEFT, self._width - RIGHT)
        self._y = _scale(y, self._height - BOTTOM, TOP)
        self._parts = [*self._grid(x, y)]

    def __repr__(self) -> str:
        return f"<Plot {self.title!r}>"

    def line(self, points: Iterable[Point], style: str, *, stairs: bool = False) -> None:
        """A line through points in order; it is broken where there is no value."""
        for piece in _pieces(points):
            places = self._thinned([(self._x.at(x), self._y.at(y)) for x, y in piece])
            if len(places) == 1:
                ((x, y),) = places
                self._parts.append(f'<circle class="{escape(style)} dot" cx="{x:.1f}" cy="{y:.1f}" r="1.8"/>')
                continue
            path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
            for x, y in places[1:]:
                path += f"H{x:.1f}V{y:.1f}" if stairs else f"L{x:.1f} {y:.1f}"
            self._parts.append(f'<path class="{escape(style)} line" d="{path}"/>')

    def dot(self, x: float, y: float, style: str, text: str) -> None:
        """A point with a text that shows when the pointer rests on it."""
        self._parts.append(
            f'<circle class="{escape(style)} dot" cx="{self._x.at(x):.1f}" cy="{self._y.at(y):.1f}" r="4.5">'
            f"<title>{escape(text)}</title></circle>"
        )

    def note(self, x: float, y: float, text: str) -> None:
        """A small text above a point, kept inside of the plot."""
        place = self._x.at(x)
        anchor = "end" if place > self._width - 90 else "middle"
        above = max(self._y.at(y) - 10, 10)
        self._parts.append(
            f'<text class="note" text-anchor="{anchor}" x="{place:.1f}" y="{above:.1f}">{escape(text)}</text>'
        )

    def bar(self, left: float, right: float, height: float, style: str) -> None:
        """A bar from the lower edge."""
        x, end, top = self._x.at(left), self._x.at(right), self._y.at(height)
        base = self._height - BOTTOM
        if base - top > 0:
            self._parts.append(
                f'<rect class="{escape(style)} bar" x="{x:.1f}" y="{top:.1f}" '
                f'width="{max(end - x, 0.5):.1f}" height="{base - top:.1f}"/>'
            )

    def svg(self) -> str:
        """The whole plot."""
        box = f"0 0 {self._width:.0f} {self._height:.0f}"
        inside = "".join(self._parts)
        return f'<svg viewBox="{box}" role="img" aria-label="{escape(self.title)}">{inside}</svg>'

    def _grid(self, x: Axis, y: Axis) -> Iterable[str]:
        base = self._height - BOTTOM
        for value, text in y.ticks:
            place = self._y.at(value)
            yield f'<path class="grid" d="M{LEFT:.0f} {place:.1f}H{self._width - RIGHT:.0f}"/>'
            yield f'<text text-anchor="end" x="{LEFT - 8:.0f}" y="{place + 4:.1f}">{escape(text)}</text>'
        for value, text in x.ticks:
            place = self._x.at(value)
            yield f'<path class="grid" d="M{place:.1f} {TOP:.0f}V{base:.1f}"/>'
            yield f'<text text-anchor="middle" x="{place:.1f}" y="{base + 17:.1f}">{escape(text)}</text>'
        yield f'<path class="axis" d="M{LEFT:.0f} {base:.1f}H{self._width - RIGHT:.0f}"/>'
        middle = (LEFT + self._width - RIGHT) / 2
        yield (
            f'<text class="label" text-anchor="middle" x="{middle:.0f}" y="{self._height - 8:.0f}">'
            f"{escape(x.label)}</text>"
        )
        yield (
            f'<text class="label" text-anchor="middle" transform="translate(14 {(TOP + base) / 2:.0f}) '
            f'rotate(-90)">{escape(y.label)}</text>'
        )

    @staticmethod
    def _thinned(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Without the points that nobody could see; the least and the most of each pixel stay."""
        kept: list[tuple[float, float]] = []
        start = 0
        while start < len(places):
            end = start + 1
            while end < len(places) and places[end][0] - places[start][0] < CLOSE:
                end += 1
            group = places[start:end]
            if len(group) <= 4:
                kept += group
            else:
                low, high = min(group, key=lambda at: at[1]), max(group, key=lambda at: at[1])
                kept += [
                    group[0],
                    *((low, high) if group.index(low) < group.index(high) else (high, low)),
                    group[-1],
                ]
            start = end
        return kept


def _scale(axis: Axis, start: float, end: float) -> Scale:
    return Scale(low=axis.ticks[0][0], high=axis.ticks[-1][0], start=start, end=end, log=axis.log)


def _pieces(points: Iterable[Point]) -> list[list[tuple[float, float]]]:
    """The points between those without a value."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]
