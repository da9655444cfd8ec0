"""The plots of a report: latency by percentile, everything over time, throughput against latency. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter

import msgspec

from mcpmux.bench.formatting import rate_text, share_text, time_text
from mcpmux.bench.results import Results, Series, Step
from mcpmux.traffic.reading.histogram import Distribution

Ticks = list[tuple[float, str]]
"""Values on an axis that get a mark, and what stands there."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Maps values from `low` to `high` onto `start` to `end`; by their logarithms when `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; what is outside is put on the nearest end."""
        places = min(max(value, self.low), self.high), self.low, self.high
        value, low, high = map(math.log10, places) if self.log else places
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.end - self.start)


def even_ticks(high: float, count: int, text: Callable[[float], str]) -> Ticks:
    """From 0 to `high` or just above, at round numbers, about `count` of them."""
    if high <= 0:
        return [(0.0, text(0.0)), (1.0, text(1.0))]
    power = 10.0 ** math.floor(math.log10(high / count))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if high / (power * factor) <= count)
    return [(place * step, text(place * step)) for place in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float, text: Callable[[float], str]) -> Ticks:
    """Around `low` and `high` at 1, 2 and 5 of each power of ten; only the powers when there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    start = max((value for value in values if value <= low), default=values[0])
    end = min((value for value in values if value >= high), default=values[-1])
    if start == end:
        end = start * 10
    return [(value, text(value)) for value in values if start <= value <= end] or [(start, text(start))]


def span(values: Sequence[float]) -> tuple[float, float]:
    """The least and the most, apart enough to draw."""
    if not values:
        return 1e-3, 1e-2
    low, high = min(values), max(values)
    return (low, high) if high > low * 1.2 else (low / 1.2, high * 1.2)


# Figures of a page, with SVG inside: axes, lines, dots and bars. Colours are classes of the page's style.
#
# Promises: every text is escaped; a line has at most a point or two per pixel, however many values it has.

WIDE, HALF = (1000.0, 330.0), (480.0, 230.0)  # width and height; about as many pixels as on a screen
LEFT, RIGHT, TOP, BOTTOM = 82.0, 30.0, 14.0, 46.0
CLOSE = 0.4  # pixels; nearer points of a line are not told apart

Point = tuple[float, float | None]


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """What an axis shows: its first and last tick are its ends."""

    label: str
    ticks: Ticks
    log: bool = False

    def scale(self, start: float, end: float) -> Scale:
        """Its values between two places."""
        return Scale(low=self.ticks[0][0], high=self.ticks[-1][0], start=start, end=end, log=self.log)


class Plot:
    """Collects what is drawn; `figure` gives it. Values outside of the axes lie on their edges."""

    def __init__(self, title: str, x: Axis, y: Axis, size: tuple[float, float] = WIDE) -> None:
        self.title = title
        self._width, self._height = size
        self._x = x.scale(LEFT, self._width - RIGHT)
        self._y = y.scale(self._height - BOTTOM, TOP)
        self._parts = [*self._grid(x, y)]

    def line(self, points: Iterable[Point], style: str, *, stairs: bool = False) -> None:
        """A line through points in order; it is broken where there is no value."""
        for has_value, piece in groupby(points, lambda point: point[1] is not None):
            if not has_value:
                continue
            (x, y), *others = _thinned([(self._x.at(x), self._y.at(y)) for x, y in piece if y is not None])
            if not others:
                self._parts.append(element("circle", f"{style} dot", cx=x, cy=y, r="1.8"))
                continue
            path = f"M{x:.1f} {y:.1f}"
            for x, y in others:
                path += f"H{x:.1f}V{y:.1f}" if stairs else f"L{x:.1f} {y:.1f}"
            self._parts.append(element("path", f"{style} line", d=path))

    def dot(self, x: float, y: float, style: str, text: str) -> None:
        """A point with a text that shows when the pointer rests on it."""
        title = element("title", inside=escape(text))
        place = {"cx": self._x.at(x), "cy": self._y.at(y)}
        self._parts.append(element("circle", f"{style} dot", title, **place, r="4.5"))

    def note(self, x: float, y: float, text: str) -> None:
        """A small text above a point, kept inside of the plot."""
        place = self._x.at(x)
        anchor = "end" if place > self._width - 90 else "middle"
        self._parts.append(_text(text, anchor, place, max(self._y.at(y) - 10, 10), "note"))

    def bar(self, left: float, right: float, height: float, style: str) -> None:
        """A bar from the lower edge."""
        x, end, y = self._x.at(left), self._x.at(right), self._y.at(height)
        high = self._height - BOTTOM - y
        if high > 0:
            width = max(end - x, 0.5)
            self._parts.append(element("rect", f"{style} bar", x=x, y=y, width=width, height=high))

    def figure(self, caption: str, *legend: tuple[str, str]) -> str:
        """The whole plot with its explanations. `legend`: class and text of each line."""
        lines = (element("li", style, f"<i></i>{escape(text)}") for style, text in legend)
        box = f"0 0 {self._width:.0f} {self._height:.0f}"
        words = {"viewBox": box, "role": "img", "aria-label": self.title}
        inside = (
            element("h3", inside=escape(self.title)),
            element("ul", "legend", "".join(lines)),
            element("svg", inside="".join(self._parts), **words),
            element("figcaption", inside=escape(caption)),
        )
        return element("figure", "card", "".join(inside))

    def _grid(self, x: Axis, y: Axis) -> Iterable[str]:
        base, right = self._height - BOTTOM, self._width - RIGHT
        for value, text in y.ticks:
            place = self._y.at(value)
            yield element("path", "grid", d=f"M{LEFT:.0f} {place:.1f}H{right:.0f}")
            yield _text(text, "end", LEFT - 8, place + 4)
        for value, text in x.ticks:
            place = self._x.at(value)
            yield element("path", "grid", d=f"M{place:.1f} {TOP:.0f}V{base:.1f}")
            yield _text(text, "middle", place, base + 17)
        yield element("path", "axis", d=f"M{LEFT:.0f} {base:.1f}H{right:.0f}")
        yield _text(x.label, "middle", (LEFT + right) / 2, self._height - 8, "label")
        turned = f"translate(14 {(TOP + base) / 2:.0f}) rotate(-90)"
        yield element("text", "label", escape(y.label), text_anchor="middle", transform=turned)


def element(tag: str, style: str = "", inside: str = "", **attributes: str | float) -> str:
    """One element; `inside` is markup. A number has one digit after the point."""
    texts = {key: word if isinstance(word, str) else f"{word:.1f}" for key, word in attributes.items()}
    named = {"class": style} if style else {}
    words = "".join(f' {key.replace("_", "-")}="{escape(text)}"' for key, text in {**named, **texts}.items())
    return f"<{tag}{words}>{inside}</{tag}>" if inside else f"<{tag}{words}/>"


def _text(text: str, anchor: str, x: float, y: float, style: str = "") -> str:
    return element("text", style, escape(text), text_anchor=anchor, x=x, y=y)


def _thinned(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the points that nobody could see; the least and the most of each pixel stay."""
    kept: list[tuple[float, float]] = []
    start = 0
    while start < len(places):
        end = start + 1
        while end < len(places) and places[end][0] - places[start][0] < CLOSE:
            end += 1
        group = list(places[start:end])
        if len(group) > 4:
            extremes = (min(group, key=itemgetter(1)), max(group, key=itemgetter(1)))
            group = [group[0], *sorted(extremes, key=group.index), group[-1]]
        kept += group
        start = end
    return kept


COLOURS = 8  # classes c0 to c7 of the page's style; more lines start again
NINES = 6  # of percentiles that an axis has at most
_PERCENTS = ("0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %")

OF_LATENCY = (
    "How long the fastest 90 %, 99 %, … of the requests took at most, from the time at which each was meant "
    "to be sent. The flatter and lower, the better."
)
OF_PUSHES = "How long after a change the fastest 90 %, 99 %, … of the deliveries came at most."


def colour(place: int) -> str:
    """The class of a line."""
    return f"c{place % COLOURS}"


def _legend(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((colour(place), name) for place, name in enumerate(names))


def _latency_axis(values: Sequence[float]) -> Axis:
    return Axis(label="latency", ticks=log_ticks(*span(values), tick_text), log=True)


def distribution_figure(title: str, caption: str, lines: Sequence[tuple[str, Distribution]]) -> str | None:
    """Durations by percentile, on an axis with the same room for each further nine; None without any."""
    lines = [(name, latency) for name, latency in lines if latency.count]
    if not lines:
        return None
    nines = max(2, min(NINES, math.ceil(math.log10(max(latency.count for _, latency in lines)))))
    x = Axis(label="percentile", ticks=[(float(place), _PERCENTS[place]) for place in range(nines + 1)])
    ends = [value for _, latency in lines for value in (latency.least, latency.most)]
    plot = Plot(title, x, _latency_axis(ends))
    for place, (_, latency) in reversed(list(enumerate(lines))):
        plot.line(_curve(latency), colour(place), stairs=True)
    return plot.figure(caption, *_legend(name for name, _ in lines))


def time_figures(one: Results) -> list[str]:
    """Rate and errors, then latencies, second by second; without a last second that is cut short."""
    series = one.series.whole()
    if len(series.count) < 2:
        return []
    seconds = math.fsum(series.widths())
    ticks = [tick for tick in even_ticks(seconds, 8, number_text) if tick[0] < seconds * 0.97]
    x = Axis(label="seconds measured", ticks=[*ticks, (seconds, number_text(seconds))])
    return [_rate_figure(one, series, x), _latency_figure(series, x)]


def _rate_figure(one: Results, series: Series, x: Axis) -> str:
    widths, rates = series.widths(), series.rates()
    failures = [errors / width if width else 0.0 for errors, width in zip(series.errors, widths, strict=True)]
    y = Axis(label="per second", ticks=even_ticks(max(*rates, *failures), 5, number_text))
    plot = Plot("Throughput over time", x, y, HALF)
    for place, (height, width) in enumerate(zip(failures, widths, strict=True)):
        plot.bar(place * series.seconds, place * series.seconds + width, height, "bad")
    plot.line(_stairs(series, rates), "c0", stairs=True)
    whole = one.overall()
    legend = [("c0", "answers without error")]
    legend += [("bad", f"errors ({share_text(whole.error_share)})")] if whole.failed else []
    return plot.figure("What arrived in each stretch of time.", *legend)


def _latency_figure(series: Series, x: Axis) -> str:
    columns = {"p50": series.p50, "p99": series.p99, "max": series.most}
    values = [value for column in columns.values() for value in column if value is not None]
    plot = Plot("Latency over time", x, _latency_axis(values), HALF)
    middles = [(index + 0.5) * series.seconds for index in range(len(series.count))]
    for place, column in reversed(list(enumerate(columns.values()))):
        plot.line(zip(middles, column, strict=True), colour(place))
    caption = f"Of the answers that arrived in each stretch of {tick_text(series.seconds)}."
    return plot.figure(caption, *_legend(columns))


def knee_figure(steps: Sequence[Step]) -> str | None:
    """Throughput against latency, a dot for each step; None with fewer than two."""
    shown = sorted((step for step in steps if step.latency.count), key=lambda step: step.offered or step.rate)
    if len(shown) < 2:
        return None
    percents = (50.0, 99.0)
    values = [value for step in shown for value in step.latency.percentiles(percents) if value is not None]
    x = Axis(label="answers per second", ticks=even_ticks(max(step.rate for step in shown), 8, number_text))
    plot = Plot("Throughput against latency", x, _latency_axis(values))
    for place, percent in enumerate(percents):
        plot.line([(step.rate, step.latency.percentile(percent)) for step in shown], colour(place))
        for step in shown:
            value = step.latency.percentile(percent) or 0.0
            style = f"{colour(place)}{' broken' if step.held is False else ''}"
            held = "" if step.held is not False else f", not held: {step.why or 'too slow'}"
            text = f"{step.name}: {rate_text(step.rate)}, p{percent:g} {time_text(value)}{held}"
            plot.dot(step.rate, value, style, text)
    held_steps = [step for step in shown if step.held is not False]
    for step in held_steps[-1:]:
        plot.note(step.rate, step.latency.percentile(99) or 0.0, step.name)
    legend = [*_legend(f"p{percent:g}" for percent in percents)]
    legend += [("broken", "load not held")] if len(held_steps) < len(shown) else []
    caption = (
        "What came back per second under each offered load, and how long it took. Where the line "
        "turns up, the target has reached what it can do."
    )
    return plot.figure(caption, *legend)


def tick_text(seconds: float) -> str:
    """A duration at an axis: 1 ms, not 1.00 ms."""
    number, _, unit = time_text(seconds).partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def number_text(value: float) -> str:
    """A number at an axis: 1,500, not 1,500.0."""
    return f"{round(value, 9):,g}" if value < 1e6 else f"{value:,.0f}"


def _curve(latency: Distribution) -> Iterable[tuple[float, float]]:
    """(nines, seconds): 1 is 90 %, 2 is 99 %. The slowest lies half a request below 100 %."""
    yield 0.0, max(latency.least, 1e-6)
    below = 0.0
    for seconds, share in latency.curve():
        yield -math.log10(1 - below) if below else 0.0, seconds
        below = min(share, 1 - 0.5 / latency.count)
    yield -math.log10(1 - below), latency.most


def _stairs(series: Series, values: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Each value from the beginning to the end of its row."""
    for place, (value, width) in enumerate(zip(values, series.widths(), strict=True)):
        yield place * series.seconds, value
        yield place * series.seconds + width, value
