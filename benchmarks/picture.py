"""The scorecard as a picture: a dot for each median, whiskers from least to most, a tick for each goal.

Pure. One SVG that stands alone, without scripts or fonts, and is readable on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.goal import IN_PROPORTION, MET, NOT_MEASURED, NOT_MET, Spread
from benchmarks.report import Row
from mcpmux.bench.report.html import Scale, Ticks, even_ticks, log_ticks

WIDTH = 960
LABELS = 500  # pixels for what is measured
RIGHT = 24
LINE = 26  # pixels for each mark
TITLE, AXIS = 44, 34  # above and below the marks of a panel
LETTERS = 74  # of a label that fits; the rest shows when the pointer rests on it

STYLES = {MET: "met", NOT_MET: "missed", IN_PROPORTION: "missed", NOT_MEASURED: "missed", "": "free"}
_LIGHT = {"page": "#ffffff", "text": "#1f2328", "grid": "#d1d9e0", "goal": "#9a6700"}
_DARK = {"page": "#0d1117", "text": "#f0f6fc", "grid": "#3d444d", "goal": "#d29922"}
_DOTS_LIGHT = {"met": "#1a7f37", "missed": "#cf222e", "free": "#0969da"}
_DOTS_DARK = {"met": "#3fb950", "missed": "#f85149", "free": "#4493f8"}


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
    """The rows that have a ratio."""
    return [Mark(row.measure, row.ratio, row.bound, row.met) for row in rows if row.ratio is not None]


def picture(panels: Iterable[Panel]) -> str:
    """The SVG. Panels without marks are left out."""
    drawn = []
    top = 0.0
    for panel in panels:
        if panel.marks:
            drawn.append(_panel(panel, top))
            top += TITLE + LINE * len(panel.marks) + AXIS
    height = max(top, LINE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="Benchmarks of mcpmux"><style>{_style()}</style>'
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}"/>{"".join(drawn)}</svg>\n'
    )


def _panel(panel: Panel, top: float) -> str:
    ticks = _ticks(panel)
    scale = Scale(ticks=ticks, start=LABELS, end=WIDTH - RIGHT, log=panel.log)
    first, last = top + TITLE, top + TITLE + LINE * len(panel.marks)
    parts = [f'<text class="title" x="16" y="{top + 26:.0f}">{escape(panel.title)}</text>']
    for value, text in ticks:
        place = scale.at(value)
        parts.append(f'<path class="grid" d="M{place:.1f} {first:.0f}V{last:.0f}"/>')
        parts.append(f'<text text-anchor="middle" x="{place:.1f}" y="{last + 18:.0f}">{escape(text)}</text>')
    for number, mark in enumerate(panel.marks):
        parts.append(_mark(mark, scale, first + LINE * (number + 0.5)))
    return "".join(parts)


def _mark(mark: Mark, scale: Scale, y: float) -> str:
    style = STYLES[mark.met]
    middle, least, most = (scale.at(value) for value in mark.spread)
    label = mark.label if len(mark.label) <= LETTERS else f"{mark.label[: LETTERS - 1]}…"
    reached = f", {mark.met}" if mark.met else ""
    hint = f"{mark.label}: {mark.spread.median:.2f} ({mark.spread.least:.2f}–{mark.spread.most:.2f}){reached}"
    goal = ""
    if mark.bound is not None:
        goal = f'<path class="goal" d="M{scale.at(mark.bound):.1f} {y - 10:.1f}v20"/>'
    return (
        f"<g><title>{escape(hint)}</title>"
        f'<text text-anchor="end" x="{LABELS - 14}" y="{y + 4:.1f}">{escape(label)}</text>'
        f'{goal}<path class="{style} whisker" d="M{least:.1f} {y:.1f}H{most:.1f}'
        f'M{least:.1f} {y - 4:.1f}v8M{most:.1f} {y - 4:.1f}v8"/>'
        f'<circle class="{style}" cx="{middle:.1f}" cy="{y:.1f}" r="5"/></g>'
    )


def _ticks(panel: Panel) -> Ticks:
    bounds = [mark.bound for mark in panel.marks if mark.bound is not None]
    values = [value for mark in panel.marks for value in mark.spread] + bounds
    if not panel.log:
        return even_ticks(max(values), 6, lambda value: f"{value:g}")
    positive = [value for value in values if value > 0]
    low = 10.0 ** math.floor(math.log10(min([1.0, *positive])))
    return log_ticks(low, max([10.0, *positive]), lambda value: f"{value:g} ×")


def _style() -> str:
    dark = _colours(_DARK, _DOTS_DARK)
    return (
        "text{font:12px system-ui,sans-serif}.title{font-weight:600;font-size:15px}"
        "path{fill:none!important}.whisker{stroke-width:2}.goal{stroke-width:2.5}"
        f"{_colours(_LIGHT, _DOTS_LIGHT)}@media(prefers-color-scheme:dark){{{dark}}}"
    )


def _colours(plain: dict[str, str], dots: dict[str, str]) -> str:
    rules = [
        f".page{{fill:{plain['page']}}}text{{fill:{plain['text']}}}"
        f".grid{{stroke:{plain['grid']}}}.goal{{stroke:{plain['goal']}}}"
    ]
    rules += [f".{name}{{fill:{colour};stroke:{colour}}}" for name, colour in dots.items()]
    return "".join(rules)
