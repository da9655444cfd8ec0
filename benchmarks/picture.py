"""The scorecard as a picture: a dot for each median, whiskers from least to most, a tick for each goal.

Pure. One SVG that stands alone, without scripts or fonts, and is readable on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.report import IN_PROPORTION, MET, NOT_MEASURED, NOT_MET, Row, Spread
from mcpmux.bench.report.html import Markup, Scale, Ticks, element, even_ticks, grid, log_ticks, text_at

WIDTH = 960
LABELS = 500  # pixels for what is measured
RIGHT = 30
LINE = 26  # pixels for each mark
TITLE, AXIS = 44, 46  # above and below the marks of a panel
LETTERS = 74  # of a label that fits; the rest shows when the pointer rests on it

STYLES = {MET: "met", NOT_MET: "missed", IN_PROPORTION: "missed", NOT_MEASURED: "missed", "": "free"}
LIGHT = {"page": "#fff", "letters": "#1f2328", "met": "#1a7f37", "missed": "#cf222e", "free": "#0969da"}
DARK = {"page": "#0d1117", "letters": "#f0f6fc", "met": "#3fb950", "missed": "#f85149", "free": "#4493f8"}
STYLE = (
    "text{font:12px system-ui,sans-serif;stroke:none}.title{font-weight:600;font-size:15px}"
    ".whisker{stroke-width:2}.goal{stroke:#bf8700;stroke-width:2.5}.grid,.axis{stroke:#8886}"
)


class Mark(NamedTuple):
    """One line of a panel. `bound`: what the median has to reach, if anything."""

    label: str
    spread: Spread
    bound: float | None = None
    met: str = ""


class Panel(NamedTuple):
    """Marks over one axis."""

    title: str
    marks: Sequence[Mark]
    log: bool = False


def ratio_marks(rows: Iterable[Row]) -> list[Mark]:
    """Return the rows that have a ratio."""
    return [Mark(row.measure, row.ratio, row.bound, row.met) for row in rows if row.ratio is not None]


def picture(panels: Iterable[Panel]) -> str:
    """Draw all panels that have marks, one below the other, as SVG."""
    drawn = []
    top = 0.0
    for panel in panels:
        if panel.marks:
            drawn.append(_panel(panel, top))
            top += TITLE + LINE * len(panel.marks) + AXIS
    height = max(top, LINE)
    style = f"{STYLE}{_colours(LIGHT)}@media(prefers-color-scheme:dark){{{_colours(DARK)}}}"
    return element(
        "svg",
        element("style", Markup(style)),
        element("rect", class_="page", width=WIDTH, height=height),
        element("g", *drawn, class_="letters"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_label="Benchmarks of mcpmux",
    )


def _panel(panel: Panel, top: float) -> Markup:
    """Draw a panel, `top` pixels below the upper end of the picture."""
    count = len(panel.marks)
    labels = [
        mark.label if len(mark.label) <= LETTERS else f"{mark.label[: LETTERS - 1]}…" for mark in panel.marks
    ]
    lines = [(0.5 - count, ""), *((float(-place), label) for place, label in enumerate(labels)), (0.5, "")]
    x = Scale(ticks=_ticks(panel), start=LABELS, end=WIDTH - RIGHT, log=panel.log)
    y = Scale(ticks=[lines[0], *lines[-2:0:-1], lines[-1]], start=top + TITLE + LINE * count, end=top + TITLE)
    marks = (_mark(mark, x, y.at(-place)) for place, mark in enumerate(panel.marks))
    return element("g", text_at(panel.title, "start", 16, top + 26, "title"), *grid(x, y), *marks)


def _mark(mark: Mark, x: Scale, y: float) -> Markup:
    style = STYLES[mark.met]
    middle, least, most = map(x.at, mark.spread)
    reached = f", {mark.met}" if mark.met else ""
    hint = f"{mark.label}: {mark.spread.median:.2f} ({mark.spread.least:.2f}–{mark.spread.most:.2f}){reached}"
    goal = () if mark.bound is None else (_line("goal", f"M{x.at(mark.bound):.1f} {y - 10:.1f}v20"),)
    whiskers = f"M{least:.1f} {y:.1f}H{most:.1f}M{least:.1f} {y - 4:.1f}v8M{most:.1f} {y - 4:.1f}v8"
    dot = element("circle", class_=style, cx=middle, cy=y, r="5")
    return element("g", element("title", hint), *goal, _line(f"{style} whisker", whiskers), dot)


def _line(style: str, path: str) -> Markup:
    return element("path", class_=style, d=path)


def _ticks(panel: Panel) -> Ticks:
    bounds = [mark.bound for mark in panel.marks if mark.bound is not None]
    values = [value for mark in panel.marks for value in mark.spread] + bounds
    if not panel.log:
        return even_ticks(max(values), 6, lambda value: f"{value:g}")
    positive = [value for value in values if value > 0]
    low = 10.0 ** math.floor(math.log10(min([1.0, *positive])))
    return log_ticks(low, max([10.0, *positive]), lambda value: f"{value:g} ×")


def _colours(colours: Mapping[str, str]) -> str:
    return "".join(f".{name}{{fill:{colour};stroke:{colour}}}" for name, colour in colours.items())
