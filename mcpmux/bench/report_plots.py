"""The plots of a report: latency by percentile, everything over time, throughput against latency. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from mcpmux.bench.histogram import Distribution
from mcpmux.bench.plot_scale import even_ticks, log_ticks, span
from mcpmux.bench.results import Results, Series, Step
from mcpmux.bench.svg_plot import HALF, Axis, Plot
from mcpmux.bench.wording import rate_text, share_text, time_text

COLOURS = 8  # classes c0 to c7 of the page's style; more lines start again
NINES = 6  # of percentiles that an axis has at most
_PERCENTS = ("0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %")

OF_LATENCY = (
    "How long the fastest 90 %, 99 %, … of the requests took at most, from the time at which each was meant "
    "to be sent. The flatter and lower, the better."
)
OF_PUSHES = "How long after a change the fastest 90 %, 99 %, … of the deliveries came at most."


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A plot with what explains it. `legend`: (class, text) of each line."""

    title: str
    caption: str
    legend: tuple[tuple[str, str], ...]
    svg: str


def colour(place: int) -> str:
    """The class of a line."""
    return f"c{place % COLOURS}"


def distribution_figure(title: str, caption: str, lines: Sequence[tuple[str, Distribution]]) -> Figure | None:
    """Durations by percentile on an axis that gives each further nine the same room; None without any."""
    lines = [(name, latency) for name, latency in lines if latency.count]
    if not lines:
        return None
    nines = max(2, min(NINES, math.ceil(math.log10(max(latency.count for _, latency in lines)))))
    ends = [value for _, latency in lines for value in (latency.least, latency.most)]
    x = Axis(label="percentile", ticks=[(float(place), _PERCENTS[place]) for place in range(nines + 1)])
    plot = Plot(title, x, Axis(label="latency", ticks=log_ticks(*span(ends), tick_text), log=True))
    for place, (_, latency) in reversed(list(enumerate(lines))):
        plot.line(_curve(latency), colour(place), stairs=True)
    return Figure(
        title=title,
        caption=caption,
        legend=tuple((colour(place), name) for place, (name, _) in enumerate(lines)),
        svg=plot.svg(),
    )


def time_figures(one: Results) -> list[Figure]:
    """Rate and errors, then latencies, second by second; without a last second that is cut short."""
    series = one.series.whole()
    if len(series.count) < 2:
        return []
    seconds = math.fsum(series.widths())
    ticks = [tick for tick in even_ticks(seconds, 8, number_text) if tick[0] < seconds * 0.97]
    x = Axis(label="seconds measured", ticks=[*ticks, (seconds, number_text(seconds))])
    return [_rate_figure(one, series, x), _latency_figure(one, series, x)]


def _rate_figure(one: Results, series: Series, x: Axis) -> Figure:
    title = "Throughput over time"
    failures = [
        errors / width if width else 0.0 for errors, width in zip(series.errors, series.widths(), strict=True)
    ]
    most = max([*series.rates(), *failures])
    plot = Plot(title, x, Axis(label="per second", ticks=even_ticks(most, 5, number_text)), HALF)
    for place, height in enumerate(failures):
        left = place * series.seconds
        plot.bar(left, left + series.widths()[place], height, "bad")
    plot.line(_stairs(series, series.rates()), "c0", stairs=True)
    whole = one.overall()
    legend = [("c0", "answers without error")]
    legend += [("bad", f"errors ({share_text(whole.error_share)})")] if whole.failed else []
    return Figure(
        title=title,
        caption="What arrived in each stretch of time.",
        legend=tuple(legend),
        svg=plot.svg(),
    )


def _latency_figure(one: Results, series: Series, x: Axis) -> Figure:
    title = "Latency over time"
    columns = (("p50", series.p50), ("p99", series.p99), ("max", series.most))
    values = [value for _, column in columns for value in column if value is not None]
    y = Axis(label="latency", ticks=log_ticks(*span(values), tick_text), log=True)
    plot = Plot(title, x, y, HALF)
    for place, (_, column) in reversed(list(enumerate(columns))):
        middles = [(index + 0.5) * series.seconds for index in range(len(column))]
        plot.line(zip(middles, column, strict=True), colour(place))
    return Figure(
        title=title,
        caption=f"Of the answers that arrived in each stretch of {tick_text(series.seconds)}.",
        legend=tuple((colour(place), name) for place, (name, _) in enumerate(columns)),
        svg=plot.svg(),
    )


def knee_figure(steps: Sequence[Step]) -> Figure | None:
    """Throughput against latency, a dot for each step; None with fewer than two."""
    shown = sorted((step for step in steps if step.latency.count), key=lambda step: step.offered or step.rate)
    if len(shown) < 2:
        return None
    title = "Throughput against latency"
    percents = (50.0, 99.0)
    values = [value for step in shown for value in step.latency.percentiles(percents) if value is not None]
    x = Axis(label="answers per second", ticks=even_ticks(max(step.rate for step in shown), 8, number_text))
    plot = Plot(title, x, Axis(label="latency", ticks=log_ticks(*span(values), tick_text), log=True))
    for place, percent in enumerate(percents):
        plot.line([(step.rate, step.latency.percentile(percent)) for step in shown], colour(place))
        for step in shown:
            value = step.latency.percentile(percent) or 0.0
            style = f"{colour(place)}{' broken' if step.held is False else ''}"
            plot.dot(step.rate, value, style, _step_text(step, percent, value))
    last = [step for step in shown if step.held is not False][-1:]
    for step in last:
        plot.note(step.rate, step.latency.percentile(99) or 0.0, step.name)
    legend = [(colour(place), f"p{percent:g}") for place, percent in enumerate(percents)]
    legend += [("broken", "load not held")] if any(step.held is False for step in shown) else []
    return Figure(
        title=title,
        caption="What came back per second under each offered load, and how long it took. Where the line "
        "turns up, the target has reached what it can do.",
        legend=tuple(legend),
        svg=plot.svg(),
    )


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


def _step_text(step: Step, percent: float, seconds: float) -> str:
    held = "" if step.held is not False else f", not held: {step.why or 'too slow'}"
    return f"{step.name}: {rate_text(step.rate)}, p{percent:g} {time_text(seconds)}{held}"
