"""Results as one HTML page with style and plots inside: nothing is loaded, no script runs.

All text from elsewhere is escaped; a policy in the page forbids all requests. Light and dark follow the
reader's setting. It can be printed. Colours are classes of the page's style. A line has at most a few points
per pixel, however many values it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec

from mcpmux.bench.assertion import Judgement
from mcpmux.bench.formatting import rate_text, share_text, time_text
from mcpmux.bench.report.compare import Comparison
from mcpmux.bench.report.tables import (
    Cell,
    Table,
    circumstances,
    comparison_table,
    differs,
    notes_on,
    tables_of,
)
from mcpmux.bench.results import Report, Results, Series, Step, by_name, pool, pooled
from mcpmux.traffic.reading.histogram import Distribution

FOOTER = (
    "Latency counts from the time at which a request was meant to be sent, so that a stalled target cannot "
    "hide. Timeouts count as at least that long; other errors are not in it."
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(tag: str, *inside: str, **attributes: str | float) -> Markup:
    """An element with texts and Markup inside. A number in an attribute has one digit after the point."""
    words = ""
    for key, value in attributes.items():
        if value != "":
            text = value if isinstance(value, str) else f"{value:.1f}"
            words += f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"'
    body = "".join(each if isinstance(each, Markup) else escape(each) for each in inside)
    return Markup(f"<{tag}{words}>{body}</{tag}>" if inside else f"<{tag}{words}/>")


def html_of(
    report: Report, comparisons: Sequence[Comparison] = (), judgements: Sequence[Judgement] = ()
) -> str:
    """The whole page."""
    results = report.results
    whole = pooled(results)
    title = f"MCP load benchmark: {', '.join(one.about.name for one in whole)}"
    facts = {"written by": report.tool, "started": report.when, **report.machine}
    main = element(
        "main",
        element(
            "header", element("h1", title), element("p", f"{report.when} · {report.tool}", class_="soft")
        ),
        *(map(_tiles, whole) if len(whole) == 1 else ()),
        *_notes(notes_on(results)),
        *_judgements(judgements),
        *map(_table, tables_of(results)),
        *(part for one in comparisons for part in (_table(comparison_table(one)), *_notes(one.notes))),
        *_plots(by_name(results)),
        element("h2", "Where the load came from"),
        _card(element("dl", *(part for name, fact in facts.items() for part in _fact(name, fact)))),
        element("footer", FOOTER),
    )
    style = files("mcpmux.bench.report").joinpath("report.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>{main}</body></html>\n"
    )


def _tiles(one: Results) -> Markup:
    """The numbers that are read first."""
    whole = one.overall()
    times = zip(("p50", "p99", "p99.9"), whole.latency.percentiles((50, 99, 99.9)), strict=True)
    tiles = [
        (rate_text(one.rate(whole) if one.seconds else None), "answers without error", ""),
        *((time_text(value), f"{name} latency", "") for name, value in times),
        (share_text(whole.error_share), "errors", "bad" if whole.failed else "good"),
        (f"{whole.count:,}", "requests", ""),
        (share_text(one.generator.cpu_share), "generator CPU", "warn" if one.generator.warning else ""),
    ]
    if one.fan_out is not None:
        lost = one.fan_out.losses
        tiles.append((f"{lost:,}", "pushes lost", "bad" if lost else "good"))
    pairs = ((element("b", text, class_=tone), element("span", name)) for text, name, tone in tiles)
    return element("div", *(element("div", *pair, class_="tile") for pair in pairs), class_="tiles")


def _soft(text: str) -> Markup:
    return element("p", text, class_="soft")


def _card(*inside: str, title: str = "", style: str = "") -> Markup:
    heading = (element("h3", title),) if title else ()
    return element("section", *heading, *inside, class_=f"card {style}".strip())


def _table(table: Table) -> Markup:
    def row(tag: str, cells: Sequence[Cell]) -> Markup:
        inside = []
        for place, cell in enumerate(cells):
            kind = f"{'words' if place in table.left else ''} {cell.tone}".strip()
            inside.append(element(tag, cell.text, class_=kind))
        return element("tr", *inside)

    head = element("thead", row("th", [Cell(heading) for heading in table.headings]))
    body = element("tbody", *(row("td", cells) for cells in table.rows))
    return _card(element("div", element("table", head, body), class_="scroll"), title=table.title)


def _notes(notes: Sequence[str]) -> Iterator[Markup]:
    if notes:
        yield _card(element("ul", *(element("li", note) for note in notes)), style="notes")


def _judgements(judgements: Sequence[Judgement]) -> Iterator[Markup]:
    if judgements:
        lines = (
            element("li", f"{'✓' if one.held else '✗'} {one.sentence}", class_="good" if one.held else "bad")
            for one in judgements
        )
        yield _card(element("ul", *lines, class_="plain"), title="Assertions")


def _fact(name: str, fact: object) -> tuple[Markup, Markup]:
    return element("dt", name), element("dd", str(fact))


def _plots(targets: Mapping[str, Sequence[Results]]) -> Iterator[Markup]:
    """All targets in one plot if there are several, then each by itself, its runs as one."""
    results = [pool(runs) for runs in targets.values()]
    if len(results) > 1:
        lines = [(one.about.name, one.overall().latency) for one in results]
        yield from _distribution("Latency by percentile", OF_LATENCY, lines)
    for one in results:
        yield element("h2", one.about.name)
        yield _soft(f"{one.about.target} · {circumstances(targets[one.about.name])}")
        whole = one.overall()
        lines = [("all", whole.latency)]
        if differs(whole.latency, whole.service):
            lines.append(("all, from the actual send", whole.service))
        if len(one.operations) > 1:
            lines += [(name, part.latency) for name, part in one.operations.items()]
        yield from _distribution("Latency by percentile", OF_LATENCY, lines)
        yield from _over_time(one)
        yield from _knee(one.steps)
        if one.fan_out is not None:
            pushes = [("delivery", one.fan_out.delay)]
            yield from _distribution("Delay of pushes by percentile", OF_PUSHES, pushes)


# Figures, with SVG inside: axes, lines, dots and bars.

WIDE, HALF = (1000.0, 330.0), (480.0, 230.0)  # width and height; about as many pixels as on a screen
LEFT, RIGHT, TOP, BOTTOM = 82.0, 30.0, 14.0, 46.0
CLOSE = 0.4  # pixels; nearer points of a line are not told apart
COLOURS = 8  # classes c0 to c7 of the page's style; more lines start again

Point = tuple[float, float | None]

Ticks = list[tuple[float, str]]
"""Values on an axis that get a mark, and what stands there."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Maps values from the first tick to the last onto `start` to `end`; by their logarithms when `log`."""

    ticks: Ticks
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; what is outside is put on the nearest end."""
        low, high = self.ticks[0][0], self.ticks[-1][0]
        value = min(max(value, low), high)
        if self.log:
            value, low, high = map(math.log10, (value, low, high))
        return self.start + (self.end - self.start) * ((value - low) / (high - low) if high > low else 0.0)


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


class Axis(NamedTuple):
    """What an axis shows: its first and last tick are its ends."""

    label: str
    ticks: Ticks
    log: bool = False


class Plot:
    """Collects what is drawn; `figure` gives it. Values outside of the axes lie on their edges.

    `legend`: class and text of each line.
    """

    def __init__(self, title: str, x: Axis, y: Axis, size: tuple[float, float] = WIDE) -> None:
        self.title = title
        self.legend: list[tuple[str, str]] = []
        self._width, self._height = size
        self._x = Scale(ticks=x.ticks, start=LEFT, end=self._width - RIGHT, log=x.log)
        self._y = Scale(ticks=y.ticks, start=self._height - BOTTOM, end=TOP, log=y.log)
        self._parts = [*self._grid(x, y)]

    def lines(self, lines: Iterable[tuple[str, Iterable[Point]]], *, stairs: bool = False) -> None:
        """Named lines, each in a colour of its own, the first on top."""
        for place, (name, points) in reversed(list(enumerate(lines))):
            self.legend.insert(0, (colour(place), name))
            self._line(points, colour(place), stairs)

    def _line(self, points: Iterable[Point], style: str, stairs: bool) -> None:
        """Through points in order, broken where there is no value."""
        for has_value, piece in groupby(points, lambda point: point[1] is not None):
            if not has_value:
                continue
            (x, y), *others = _thinned((self._x.at(x), self._y.at(y)) for x, y in piece if y is not None)
            if not others:
                self._parts.append(element("circle", class_=f"{style} dot", cx=x, cy=y, r="1.8"))
                continue
            path = f"M{x:.1f} {y:.1f}"
            for x, y in others:
                path += f"H{x:.1f}V{y:.1f}" if stairs else f"L{x:.1f} {y:.1f}"
            self._parts.append(element("path", class_=f"{style} line", d=path))

    def dot(self, x: float, y: float, style: str, text: str) -> None:
        """A point with a text that shows when the pointer rests on it."""
        place = {"cx": self._x.at(x), "cy": self._y.at(y)}
        self._parts.append(element("circle", element("title", text), class_=f"{style} dot", **place, r="4.5"))

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
            self._parts.append(element("rect", class_=f"{style} bar", x=x, y=y, width=width, height=high))

    def figure(self, caption: str) -> Markup:
        """The whole plot with its explanations."""
        legend = (element("li", element("i", ""), text, class_=style) for style, text in self.legend)
        box = f"0 0 {self._width:.0f} {self._height:.0f}"
        words = {"viewBox": box, "role": "img", "aria-label": self.title}
        return element(
            "figure",
            element("h3", self.title),
            element("ul", *legend, class_="legend"),
            element("svg", *self._parts, **words),
            element("figcaption", caption),
            class_="card",
        )

    def _grid(self, x: Axis, y: Axis) -> Iterator[Markup]:
        base, right = self._height - BOTTOM, self._width - RIGHT
        for value, text in y.ticks:
            place = self._y.at(value)
            yield element("path", class_="grid", d=f"M{LEFT:.0f} {place:.1f}H{right:.0f}")
            yield _text(text, "end", LEFT - 8, place + 4)
        for value, text in x.ticks:
            place = self._x.at(value)
            yield element("path", class_="grid", d=f"M{place:.1f} {TOP:.0f}V{base:.1f}")
            yield _text(text, "middle", place, base + 17)
        yield element("path", class_="axis", d=f"M{LEFT:.0f} {base:.1f}H{right:.0f}")
        yield _text(x.label, "middle", (LEFT + right) / 2, self._height - 8, "label")
        turned = f"translate(14 {(TOP + base) / 2:.0f}) rotate(-90)"
        yield element("text", y.label, class_="label", text_anchor="middle", transform=turned)


def colour(place: int) -> str:
    """The class of a line."""
    return f"c{place % COLOURS}"


def _text(text: str, anchor: str, x: float, y: float, style: str = "") -> Markup:
    return element("text", text, class_=style, text_anchor=anchor, x=x, y=y)


def _thinned(places: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Without the points that nobody could see; the least and the most of each pixel stay."""
    for _, group in groupby(places, lambda place: place[0] // CLOSE):
        points = list(group)
        if len(points) > 4:
            extremes = min(points, key=itemgetter(1)), max(points, key=itemgetter(1))
            points = [points[0], *sorted(extremes, key=points.index), points[-1]]
        yield from points


NINES = 6  # of percentiles that an axis has at most
_PERCENTS = ("0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %")

OF_LATENCY = (
    "How long the fastest 90 %, 99 %, … of the requests took at most, from the time at which each was meant "
    "to be sent. The flatter and lower, the better."
)
OF_PUSHES = "How long after a change the fastest 90 %, 99 %, … of the deliveries came at most."


def _latency_axis(values: Sequence[float]) -> Axis:
    return Axis("latency", log_ticks(*span(values), tick_text), log=True)


def _distribution(title: str, caption: str, lines: Sequence[tuple[str, Distribution]]) -> Iterator[Markup]:
    """Durations by percentile, on an axis with the same room for each further nine; nothing without any."""
    lines = [(name, latency) for name, latency in lines if latency.count]
    if not lines:
        return
    nines = max(2, min(NINES, math.ceil(math.log10(max(latency.count for _, latency in lines)))))
    x = Axis("percentile", [(float(place), _PERCENTS[place]) for place in range(nines + 1)])
    ends = [value for _, latency in lines for value in (latency.least, latency.most)]
    plot = Plot(title, x, _latency_axis(ends))
    plot.lines(((name, _curve(latency)) for name, latency in lines), stairs=True)
    yield plot.figure(caption)


def _curve(latency: Distribution) -> Iterator[Point]:
    """(nines, seconds): 1 is 90 %, 2 is 99 %. The slowest lies half a request below 100 %."""
    yield 0.0, max(latency.least, 1e-6)
    below = 0.0
    for seconds, share in latency.curve():
        yield -math.log10(1 - below) if below else 0.0, seconds
        below = min(share, 1 - 0.5 / latency.count)
    yield -math.log10(1 - below), latency.most


def _over_time(one: Results) -> Iterator[Markup]:
    """Rate and errors, then latencies, second by second; without a last second that is cut short."""
    series = one.series.whole()
    if len(series.count) < 2:
        return
    seconds = math.fsum(series.widths())
    ticks = [tick for tick in even_ticks(seconds, 8, number_text) if tick[0] < seconds * 0.97]
    x = Axis("seconds measured", [*ticks, (seconds, number_text(seconds))])
    yield element("div", _rates(one, series, x), _latencies(series, x), class_="pair")


def _rates(one: Results, series: Series, x: Axis) -> Markup:
    rates, widths = series.rates(), series.widths()
    starts = [place * series.seconds for place in range(len(rates))]
    failures = [count / width if width else 0.0 for count, width in zip(series.errors, widths, strict=True)]
    y = Axis("per second", even_ticks(max(*rates, *failures), 5, number_text))
    plot = Plot("Throughput over time", x, y, HALF)
    for start, width, height in zip(starts, widths, failures, strict=True):
        plot.bar(start, start + width, height, "bad")
    points = [*zip(starts, rates, strict=True), (starts[-1] + widths[-1], rates[-1])]
    plot.lines([("answers without error", points)], stairs=True)
    whole = one.overall()
    if whole.failed:
        plot.legend.append(("bad", f"errors ({share_text(whole.error_share)})"))
    return plot.figure("What arrived in each stretch of time.")


def _latencies(series: Series, x: Axis) -> Markup:
    columns = {"p50": series.p50, "p99": series.p99, "max": series.most}
    values = [value for column in columns.values() for value in column if value is not None]
    plot = Plot("Latency over time", x, _latency_axis(values), HALF)
    middles = [(index + 0.5) * series.seconds for index in range(len(series.count))]
    plot.lines((name, zip(middles, column, strict=True)) for name, column in columns.items())
    return plot.figure(f"Of the answers that arrived in each stretch of {tick_text(series.seconds)}.")


def _knee(steps: Sequence[Step]) -> Iterator[Markup]:
    """Throughput against latency, a dot for each step; nothing with fewer than two."""
    shown = sorted((step for step in steps if step.latency.count), key=lambda step: step.offered or step.rate)
    if len(shown) < 2:
        return
    columns = {each: [step.latency.percentile(each) or 0.0 for step in shown] for each in (50.0, 99.0)}
    x = Axis("answers per second", even_ticks(max(step.rate for step in shown), 8, number_text))
    plot = Plot("Throughput against latency", x, _latency_axis([*columns[50.0], *columns[99.0]]))
    rates = [step.rate for step in shown]
    plot.lines((f"p{percent:g}", zip(rates, values, strict=True)) for percent, values in columns.items())
    for place, (percent, values) in enumerate(columns.items()):
        for step, value in zip(shown, values, strict=True):
            text = f"{step.name}: {rate_text(step.rate)}, p{percent:g} {time_text(value)}"
            if step.held is False:
                text += f", not held: {step.why or 'too slow'}"
            plot.dot(step.rate, value, colour(place) + (" broken" if step.held is False else ""), text)
    held = [place for place, step in enumerate(shown) if step.held is not False]
    for place in held[-1:]:
        plot.note(rates[place], columns[99.0][place], shown[place].name)
    if len(held) < len(shown):
        plot.legend.append(("broken", "load not held"))
    yield plot.figure(
        "What came back per second under each offered load, and how long it took. Where the line turns up, "
        "the target has reached what it can do."
    )


def tick_text(seconds: float) -> str:
    """A duration at an axis: 1 ms, not 1.00 ms."""
    number, _, unit = time_text(seconds).partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def number_text(value: float) -> str:
    """A number at an axis: 1,500, not 1,500.0."""
    return f"{round(value, 9):,g}" if value < 1e6 else f"{value:,.0f}"
