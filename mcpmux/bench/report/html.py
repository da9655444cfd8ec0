"""Results as one HTML page with style and plots inside: nothing is loaded, no script runs.

All text from elsewhere is escaped; a policy in the page forbids all requests. Light and dark follow the
reader's setting. It can be printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from mcpmux.bench.assertion import Judgement
from mcpmux.bench.formatting import rate_text, share_text, time_text
from mcpmux.bench.report.compare import Comparison
from mcpmux.bench.report.plots import (
    OF_LATENCY,
    OF_PUSHES,
    distribution_figure,
    knee_figure,
    time_figures,
)
from mcpmux.bench.report.tables import Table, circumstances, comparison_table, differs, notes_on, tables_of
from mcpmux.bench.results import Report, Results, by_name, pool, pooled

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_of(
    report: Report, comparisons: Sequence[Comparison] = (), judgements: Sequence[Judgement] = ()
) -> str:
    """The whole page."""
    results = report.results
    whole = pooled(results)
    names = ", ".join(dict.fromkeys(one.about.name for one in results))
    title = f"MCP load benchmark: {names}"
    parts = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(report.when)} · {escape(report.tool)}</p></header>',
        _tiles(whole[0]) if len(whole) == 1 else "",
        _notes(notes_on(results)),
        _judgements(judgements),
        *(_table(table) for table in tables_of(results)),
        *(_table(comparison_table(one)) + _notes(one.notes) for one in comparisons),
        *_plots(by_name(results)),
        _facts(report),
        "<footer>Latency counts from the time at which a request was meant to be sent, so that a stalled "
        "target cannot hide. Timeouts count as at least that long; other errors are not in it.</footer>",
    ]
    style = files("mcpmux.bench.report").joinpath("report.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(one: Results) -> str:
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
    inside = (
        f'<div class="tile"><b class="{tone}">{escape(text)}</b><span>{escape(name)}</span></div>'
        for text, name, tone in tiles
    )
    return f'<div class="tiles">{"".join(inside)}</div>'


def _plots(targets: Mapping[str, Sequence[Results]]) -> Iterable[str]:
    """All targets in one plot if there are several, then each by itself, its runs as one."""
    results = [pool(runs) for runs in targets.values()]
    if len(results) > 1:
        lines = [(one.about.name, one.overall().latency) for one in results]
        yield _figures([distribution_figure("Latency by percentile", OF_LATENCY, lines)])
    for one in results:
        yield f"<h2>{escape(one.about.name)}</h2>"
        how = circumstances(targets[one.about.name])
        yield f'<p class="soft">{escape(one.about.target)} · {escape(how)}</p>'
        whole = one.overall()
        lines = [("all", whole.latency)]
        if differs(whole.latency, whole.service):
            lines.append(("all, from the actual send", whole.service))
        if len(one.operations) > 1:
            lines += [(name, part.latency) for name, part in one.operations.items()]
        yield _figures([distribution_figure("Latency by percentile", OF_LATENCY, lines)])
        yield _figures(time_figures(one))
        yield _figures([knee_figure(one.steps)])
        if one.fan_out is not None:
            pushes = [("delivery", one.fan_out.delay)]
            yield _figures([distribution_figure("Delay of pushes by percentile", OF_PUSHES, pushes)])


def _figures(figures: Sequence[str | None]) -> str:
    shown = [figure for figure in figures if figure is not None]
    return f'<div class="pair">{"".join(shown)}</div>' if len(shown) > 1 else "".join(shown)


def _card(body: str, title: str = "", kind: str = "") -> str:
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<section class="card {kind}">{heading}{body}</section>'


def _table(table: Table) -> str:
    def row(tag: str, cells: Iterable[tuple[str, str]]) -> str:
        """`cells`: the tone and the text of each."""
        inside = (
            f'<{tag} class="{"words " if place in table.left else ""}{tone}">{escape(text)}</{tag}>'
            for place, (tone, text) in enumerate(cells)
        )
        return f"<tr>{''.join(inside)}</tr>"

    head = row("th", (("", text) for text in table.headings))
    body = "".join(row("td", ((cell.tone, cell.text) for cell in cells)) for cells in table.rows)
    whole = f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    return _card(whole, table.title)


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _card(f"<ul>{items}</ul>", kind="notes") if notes else ""


def _judgements(judgements: Sequence[Judgement]) -> str:
    items = "".join(
        f'<li class="{"good" if one.held else "bad"}">{"✓" if one.held else "✗"} {escape(one.sentence)}</li>'
        for one in judgements
    )
    return _card(f'<ul class="plain">{items}</ul>', "Assertions") if judgements else ""


def _facts(report: Report) -> str:
    facts = {"written by": report.tool, "started": report.when, **report.machine}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(fact))}</dd>" for name, fact in facts.items())
    return f"<h2>Where the load came from</h2>{_card(f'<dl>{items}</dl>')}"
