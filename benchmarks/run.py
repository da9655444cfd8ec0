"""`python -m benchmarks.run`: every measurement, printed and written as Markdown, and a picture of it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from benchmarks.bench import LONG_RUNS, Bench, Effort
from benchmarks.compiled import is_compiled, measure_compiled
from benchmarks.goal import NOT_MEASURED
from benchmarks.output import NAME, PART, heading, result_path
from benchmarks.picture import Panel, picture, ratio_marks
from benchmarks.report import Row, describe_machine, scorecard, table
from benchmarks.scenario import SCENARIOS, measure
from benchmarks.sections import ASKED_FOR, PEERS, SECTIONS, Section
from benchmarks.yardstick import pace_of

FULL = Effort(runs=7, seconds=4)
QUICK = Effort(runs=2, seconds=1)
HURRY_SECONDS = 50  # from the start of a quick run, which is to end within two minutes on a slow machine too
NAMES = [*SCENARIOS, *SECTIONS]
MACHINE = (
    "This machine takes {pace:.1f} times as long as the one of the goals: that is what a thin loop of trio "
    "over httptools says (`yardstick.py`). A goal that is a time or a rate by itself is reached in "
    "proportion when the value is no further off than that."
)


def chosen(*, quick: bool, only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Return the names of the measurements in order. `only` wins over `quick`."""
    everything = [name for name in NAMES if name not in ASKED_FOR]
    usual = [name for name, scenario in SCENARIOS.items() if scenario.quick] if quick else everything
    return [name for name in NAMES if name in (only or usual) and name not in without]


def default_output(*, quick: bool, only: Sequence[str], without: Sequence[str]) -> Path:
    """Return the default path of the report."""
    return result_path(PART) if quick or only or without else result_path()


def written(
    bench: Bench,
    effort: Effort,
    rows: Sequence[Row],
    sections: Sequence[Section],
    picture_name: str,
    took: float,
) -> str:
    """Return the report as Markdown."""
    counts = f"{effort.runs} alternating pairs of runs of {effort.seconds:g} s; median (min–max). "
    counts += f"Of captures and the like: {min(effort.runs, LONG_RUNS)} of {effort.long_seconds:g} s."
    parts = [heading()]
    if rows:
        parts += [table(rows), scorecard(rows)]
    parts.append(f"![Ratios with their spread and goals]({picture_name})")
    for section in sections:
        parts += [f"## {section.title}", section.text]
    parts += ["## How it was measured", f"{counts} It took {took:.0f} s.", "\n".join(bench.remarks)]
    parts.append(describe_machine((bench.mux_core, bench.load_core)))
    return "\n\n".join(part for part in parts if part)


@click.command()
@click.option(
    "--quick", is_flag=True, help="Less than two minutes: to see that it works, not to quote. No peers."
)
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure this. May be repeated.")
@click.option("--without", multiple=True, type=click.Choice(NAMES), help="Leave this out. May be repeated.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Only this peer.")
@click.option("--compiled", is_flag=True, help="Compile mcpmux first, and measure that. Needs a C compiler.")
@click.option("--runs", type=click.IntRange(1, 100), help="Pairs of a direct run and one through mcpmux.")
@click.option("--seconds", type=click.IntRange(1, 60), help="How long each run measures.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default=NAME,
    help="Where the report is written; the picture gets the same name with .svg.",
)
def main(
    quick: bool,
    only: tuple[str, ...],
    without: tuple[str, ...],
    peers: tuple[str, ...],
    compiled: bool,
    runs: int | None,
    seconds: int | None,
    output: Path | None,
) -> None:
    """Measure mcpmux beside the upstreams it stands in front of, and beside other proxies."""
    if compiled:
        measure_compiled()
    began = time.monotonic()
    output = output or default_output(quick=quick, only=only, without=without or peers)
    effort = QUICK if quick else FULL
    effort = effort._replace(
        runs=runs or effort.runs,
        seconds=seconds or effort.seconds,
        long_seconds=seconds or effort.long_seconds,
    )
    bench = Bench(effort, partial(click.echo, err=True), HURRY_SECONDS if quick else math.inf, peers)
    names = chosen(quick=quick, only=only, without=without)
    rows = measure(bench, names)
    if rows:
        pace = pace_of(bench)
        rows = [row.paced(pace) for row in rows]
        bench.remarks.append(MACHINE.format(pace=pace))
    sections = [SECTIONS[name](bench) for name in names if name in SECTIONS]
    panels = [Panel("Rate through mcpmux, as a share of the rate without it", ratio_marks(rows))]
    panels += [panel for section in sections for panel in section.panels]
    image = output.with_suffix(".svg")
    bench.remarks.append(f"mcpmux was {'compiled' if is_compiled() else 'interpreted'}.")
    if bench.hurried:
        bench.remarks.append(f"Rows that began after {HURRY_SECONDS} s have one pair of runs only.")
    report = written(bench, effort, rows, sections, image.name, time.monotonic() - began)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(report + "\n")
    image.write_text(picture(panels))
    click.echo(report)
    sys.exit(1 if any(row.met == NOT_MEASURED for row in rows) else 0)


if __name__ == "__main__":
    main()
