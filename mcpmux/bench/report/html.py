"""Results as one HTML page with style and plots inside: it loads no file and runs no script.

All text from elsewhere is escaped; a policy in the page forbids all requests. Light and dark follow the
reader's setting. It can be printed. Colours are classes of the page's style. A line has at most a few points
per pixel, however many values it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain, groupby
from operator import itemgetter

import msgspec

from mcpmux.bench.assertion import Judgement
from mcpmux.bench.report.compare import Comparison
from mcpmux.bench.report.tables import Cell, Part, Table, circumstances, differs, parts_of, verdicts_of
from mcpmux.bench.results import Report, Results, Step, by_name, pool
from mcpmux.format import rate_text, share_text, time_text
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
    """Return an element with texts and Markup inside. A number in an attribute has one decimal digit."""
    words = ""
    for key, value in attributes.items():
        if value != "":
            text = value if isinstance(value, str) else f"{value:.1f}"
            words += f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"'
    body = "".join(part if isinstance(part, Markup) else escape(part) for part in inside)
    return Markup(f"<{tag}{words}>{body}</{tag}>" if inside else f"<{tag}{words}/>")


def html_of(
    report: Report,
    comparisons: Sequence[Comparison] = (),
    judgements: Sequence[Judgement] = (),
    answers: Mapping[str, str] = {},
) -> str:
    """Return the whole page. `answers`: see `parts_of`."""
    targets = by_name(report.results)
    whole = [pool(runs) for runs in targets.values()]
    title = f"MCP load benchmark: {', '.join(result.about.name for result in whole)}"
    started = element("p", f"{report.when} · {report.tool}", class_="soft")
    command = (element("p", element("code", report.command), class_="soft"),) if report.command else ()
    facts = {"written by": report.tool, "started": report.when, **report.machine}
    pairs = ((element("dt", name), element("dd", str(fact))) for name, fact in facts.items())
    main = element(
        "main",
        element("header", element("h1", title), started, *command),
        *_show(verdicts_of(judgements), "Assertions"),
        *(map(_tiles, whole) if len(whole) == 1 else ()),
        *chain.from_iterable(map(_show, parts_of(report.results, answers, comparisons))),
        *_plots(targets, whole),
        element("h2", "Where the load came from"),
        _card(element("dl", *chain.from_iterable(pairs))),
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
    """Return the tiles with the numbers that are read first."""
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


def _card(*inside: str, title: str = "", style: str = "") -> Markup:
    heading = (element("h3", title),) if title else ()
    return element("section", *heading, *inside, class_=f"card {style}".strip())


def _show(part: Part, title: str = "") -> Iterator[Markup]:
    if not isinstance(part, Table):
        if part:
            lines = (element("li", cell.text, class_=cell.tone) for cell in part)
            style = "notes" if part[0].tone == "warn" else ""
            yield _card(element("ul", *lines, class_="plain"), title=title, style=style)
        return
    rows = []
    for tag, cells in (("th", map(Cell, part.headings)), *(("td", row) for row in part.rows)):
        inside = []
        for place, cell in enumerate(cells):
            kind = f"{'words' if place in part.left else ''} {cell.tone}".strip()
            inside.append(element(tag, cell.text, class_=kind))
        rows.append(element("tr", *inside))
    table = element("table", element("thead", rows[0]), element("tbody", *rows[1:]))
    yield _card(element("div", table, class_="scroll"), title=part.title)


def _plots(targets: Mapping[str, Sequence[Results]], whole: Sequence[Results]) -> Iterator[Markup]:
    """Plot all targets together if there are several, then each alone, its runs as one."""
    if len(whole) > 1:
        yield from _distribution({result.about.name: result.overall().latency for result in whole})
    for result in whole:
        yield element("h2", result.about.name)
        yield element(
            "p", f"{result.about.target} · {circumstances(targets[result.about.name])}", class_="soft"
        )
        every = result.overall()
        lines = {"all": every.latency}
        if differs(every.latency, every.service):
            lines["all, from the actual send"] = every.service
        if len(result.operations) > 1:
            lines |= {name: part.latency for name, part in result.operations.items()}
        yield from _distribution(lines)
        yield from _over_time(result)
        yield from _knee(result.steps)
        if result.fan_out is not None:
            pushes = {"delivery": result.fan_out.delay}
            yield from _distribution(pushes, "Delay of pushes by percentile", OF_PUSHES)


# Figures, with SVG inside: axes, lines, dots and bars.

WIDE, HALF = (1000.0, 330.0), (480.0, 230.0)  # width and height; about as many pixels as on a screen
LEFT, RIGHT, TOP, BOTTOM = 82.0, 30.0, 14.0, 46.0
CLOSE = 0.4  # pixels; nearer points of a line are not told apart
COLOURS = 8  # classes c0 to c7 of the page's style; more lines start again

Lines = Mapping[str, Iterable[tuple[float, float | None]]]
"""By name, the points of each, in order."""

Legend = Sequence[tuple[str, str]]
"""The class and the text of each line."""

Ticks = list[tuple[float, str]]
"""Values on an axis that get a mark, and what stands there."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """An axis: maps values from the first tick to the last onto `start` to `end`, by logarithms if `log`."""

    ticks: Ticks
    start: float
    end: float
    log: bool = False
    label: str = ""

    def at(self, value: float) -> float:
        """Return the place of a value; what is outside is put on the nearest end."""
        low, high = self.ticks[0][0], self.ticks[-1][0]
        value = min(max(value, low), high)
        if self.log:
            value, low, high = map(math.log10, (value, low, high))
        return self.start + (self.end - self.start) * ((value - low) / (high - low) if high > low else 0.0)


def even_ticks(high: float, count: int, text: Callable[[float], str]) -> Ticks:
    """Return about `count` ticks at round numbers, from 0 to `high` or just above."""
    if high <= 0:
        return [(0.0, text(0.0)), (1.0, text(1.0))]
    power = 10.0 ** math.floor(math.log10(high / count))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if high / (power * factor) <= count)
    return [(place * step, text(place * step)) for place in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float, text: Callable[[float], str]) -> Ticks:
    """Return ticks around `low` and `high` at 1, 2 and 5 of each power of ten, or only the powers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    start = max((value for value in values if value <= low), default=values[0])
    end = min((value for value in values if value >= high), default=values[-1])
    if start == end:
        end = start * 10
    return [(value, text(value)) for value in values if start <= value <= end] or [(start, text(start))]


def latency_axis(values: Sequence[float], size: tuple[float, float] = WIDE) -> Scale:
    """Return an axis from the least to the most, apart enough to draw."""
    low, high = (min(values), max(values)) if values else (1e-3, 1e-2)
    if high <= low * 1.2:
        low, high = low / 1.2, high * 1.2
    return upwards("latency", log_ticks(low, high, tick_text), size, log=True)


def across(label: str, ticks: Ticks, size: tuple[float, float] = WIDE) -> Scale:
    return Scale(label=label, ticks=ticks, start=LEFT, end=size[0] - RIGHT)


def upwards(label: str, ticks: Ticks, size: tuple[float, float], log: bool = False) -> Scale:
    return Scale(label=label, ticks=ticks, start=size[1] - BOTTOM, end=TOP, log=log)


def chart(
    title: str,
    caption: str,
    x: Scale,
    y: Scale,
    lines: Lines,
    *,
    stairs: bool = False,
    marks: Iterable[Markup] = (),
    legend: Legend = (),
) -> Markup:
    """Plot lines in different colours, the first on top, broken where there is no value.

    `marks` are on top of them, described by `legend`. Values outside of the axes lie on their edges.
    """
    named = [(f"c{place % COLOURS}", name) for place, name in enumerate(lines)]
    drawn: list[Markup] = []
    for (style, _), points in reversed(list(zip(named, lines.values(), strict=True))):
        for has_value, piece in groupby(points, lambda point: point[1] is not None):
            if not has_value:
                continue
            (left, top), *rest = _thinned(
                (x.at(place), y.at(value)) for place, value in piece if value is not None
            )
            if not rest:
                drawn.append(element("circle", class_=f"{style} dot", cx=left, cy=top, r="1.8"))
                continue
            form = "H{:.1f}V{:.1f}" if stairs else "L{:.1f} {:.1f}"
            path = f"M{left:.1f} {top:.1f}{''.join(form.format(*place) for place in rest)}"
            drawn.append(element("path", class_=f"{style} line", d=path))
    items = (element("li", element("i", ""), text, class_=style) for style, text in (*named, *legend))
    box = f"0 0 {x.end + RIGHT:.0f} {y.start + BOTTOM:.0f}"
    return element(
        "figure",
        element("h3", title),
        element("ul", *items, class_="legend"),
        element("svg", *grid(x, y), *drawn, *marks, viewBox=box, role="img", aria_label=title),
        element("figcaption", caption),
        class_="card",
    )


def grid(x: Scale, y: Scale) -> Iterator[Markup]:
    """Draw both axes with their texts, and a line at each tick."""
    for value, text in y.ticks:
        place = y.at(value)
        yield element("path", class_="grid", d=f"M{x.start:.0f} {place:.1f}H{x.end:.0f}")
        yield text_at(text, "end", x.start - 8, place + 4)
    for value, text in x.ticks:
        place = x.at(value)
        yield element("path", class_="grid", d=f"M{place:.1f} {y.end:.0f}V{y.start:.1f}")
        yield text_at(text, "middle", place, y.start + 17)
    yield element("path", class_="axis", d=f"M{x.start:.0f} {y.start:.1f}H{x.end:.0f}")
    yield text_at(x.label, "middle", (x.start + x.end) / 2, y.start + BOTTOM - 8, "label")
    turned = f"translate(14 {(y.end + y.start) / 2:.0f}) rotate(-90)"
    yield element("text", y.label, class_="label", text_anchor="middle", transform=turned)


def _thinned(places: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Leave out points that cannot be seen; the least and the most of each pixel stay."""
    for _, group in groupby(places, lambda place: place[0] // CLOSE):
        points = list(group)
        if len(points) > 4:
            extremes = min(points, key=itemgetter(1)), max(points, key=itemgetter(1))
            points = [points[0], *sorted(extremes, key=points.index), points[-1]]
        yield from points


def text_at(text: str, anchor: str, x: float, y: float, style: str = "") -> Markup:
    return element("text", text, class_=style, text_anchor=anchor, x=x, y=y)


NINES = 6  # of percentiles that an axis has at most
_PERCENTS = ("0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %")

OF_LATENCY = (
    "How long the fastest 90 %, 99 %, … of the requests took at most, from the time at which each was meant "
    "to be sent. The flatter and lower, the better."
)
OF_STEPS = (
    "What came back per second under each offered load, and how long it took. Where the line turns up, the "
    "target has reached what it can do."
)
OF_PUSHES = "How long after a change the fastest 90 %, 99 %, … of the deliveries came at most."


def _distribution(
    latencies: Mapping[str, Distribution], title: str = "Latency by percentile", caption: str = OF_LATENCY
) -> Iterator[Markup]:
    """Plot durations by percentile, if there are any, with the same room for each further nine."""
    measured = {name: latency for name, latency in latencies.items() if latency.count}
    if not measured:
        return
    nines = max(2, min(NINES, math.ceil(math.log10(max(latency.count for latency in measured.values())))))
    x = across("percentile", [(float(place), _PERCENTS[place]) for place in range(nines + 1)])
    y = latency_axis([value for latency in measured.values() for value in (latency.least, latency.most)])
    curves = {name: _curve(latency) for name, latency in measured.items()}
    yield chart(title, caption, x, y, curves, stairs=True)


def _curve(latency: Distribution) -> Iterator[tuple[float, float]]:
    """Return points (nines, seconds): 1 is 90 %, 2 is 99 %. The slowest lies half a request below 100 %."""
    yield 0.0, max(latency.least, 1e-6)
    below = 0.0
    for seconds, share in latency.curve():
        yield -math.log10(1 - below) if below else 0.0, seconds
        below = min(share, 1 - 0.5 / latency.count)
    yield -math.log10(1 - below), latency.most


def _over_time(one: Results) -> Iterator[Markup]:
    """Plot rate and errors, then latencies, second by second; without a last second that is cut short."""
    series = one.series.whole()
    if len(series.count) < 2:
        return
    seconds = math.fsum(series.widths())
    ticks = [tick for tick in even_ticks(seconds, 8, number_text) if tick[0] < seconds * 0.97]
    x = across("seconds measured", [*ticks, (seconds, number_text(seconds))], HALF)
    rates, widths, whole = series.rates(), series.widths(), one.overall()
    starts = [place * series.seconds for place in range(len(rates))]
    failures = [count / width if width else 0.0 for count, width in zip(series.errors, widths, strict=True)]
    y = upwards("per second", even_ticks(max(*rates, *failures), 5, number_text), HALF)
    bars = []
    for start, width, height in zip(starts, widths, failures, strict=True):
        left, top = x.at(start), y.at(height)
        if top < y.start:
            size = {"width": max(x.at(start + width) - left, 0.5), "height": y.start - top}
            bars.append(element("rect", class_="bad bar", x=left, y=top, **size))
    points = [*zip(starts, rates, strict=True), (starts[-1] + widths[-1], rates[-1])]
    legend = [("bad", f"errors ({share_text(whole.error_share)})")] if whole.failed else []
    title, caption = "Throughput over time", "What arrived in each stretch of time."
    answers = {"answers without error": points}
    throughput = chart(title, caption, x, y, answers, stairs=True, marks=bars, legend=legend)

    columns = {"p50": series.p50, "p99": series.p99, "max": series.most}
    y = latency_axis([value for column in columns.values() for value in column if value is not None], HALF)
    middles = [(index + 0.5) * series.seconds for index in range(len(series.count))]
    lines = {name: zip(middles, column, strict=True) for name, column in columns.items()}
    caption = f"Of the answers that arrived in each stretch of {tick_text(series.seconds)}."
    yield element("div", throughput, chart("Latency over time", caption, x, y, lines), class_="pair")


def _knee(steps: Sequence[Step]) -> Iterator[Markup]:
    """Plot throughput against latency, a dot for each step; no plot with fewer than two."""
    shown = sorted((step for step in steps if step.latency.count), key=lambda step: step.offered or step.rate)
    if len(shown) < 2:
        return
    lines = {
        f"p{percent}": [(step.rate, step.latency.percentile(percent) or 0.0) for step in shown]
        for percent in (50, 99)
    }
    x = across("answers per second", even_ticks(max(step.rate for step in shown), 8, number_text))
    y = latency_axis([latency for points in lines.values() for _, latency in points])
    marks = []
    for place, (name, points) in enumerate(lines.items()):
        for step, (rate, latency) in zip(shown, points, strict=True):
            broken, why = (
                (" broken", f", not held: {step.why or 'too slow'}") if step.held is False else ("", "")
            )
            text = f"{step.name}: {rate_text(rate)}, {name} {time_text(latency)}{why}"
            spot = {"cx": x.at(rate), "cy": y.at(latency), "r": 4.5}
            marks.append(element("circle", element("title", text), class_=f"c{place}{broken} dot", **spot))
    held = [pair for pair in zip(shown, lines["p99"], strict=True) if pair[0].held is not False]
    for step, (rate, latency) in held[-1:]:
        left = x.at(rate)
        anchor = "end" if left > WIDE[0] - 90 else "middle"  # inside of the plot
        marks.append(text_at(step.name, anchor, left, max(y.at(latency) - 10, 10), "note"))
    legend = [("broken", "load not held")] if len(held) < len(shown) else []
    yield chart("Throughput against latency", OF_STEPS, x, y, lines, marks=marks, legend=legend)


def tick_text(seconds: float) -> str:
    """Return a duration at an axis: 1 ms, not 1.00 ms."""
    number, _, unit = time_text(seconds).partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def number_text(value: float) -> str:
    """Return a number at an axis: 1,500, not 1,500.0."""
    return f"{round(value, 9):,g}" if value < 1e6 else f"{value:,.0f}"
