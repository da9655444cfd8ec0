"""`python -m benchmarks.run`: every measurement, printed and written as Markdown."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.report import describe_machine, table
from benchmarks.scenario import Bench, Effort

FULL = Effort(runs=7, seconds=4, warm_up=0.5)
QUICK = Effort(runs=3, seconds=1, warm_up=0.2)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter runs: to see that it works, not to quote.")
@click.option("--runs", type=click.IntRange(1, 100), help="Pairs of a direct run and one through mcpmux.")
@click.option("--seconds", type=click.FloatRange(0.05, 60), help="How long each run measures.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark.md"),
    show_default=True,
    help="Where the report is written.",
)
def main(quick: bool, runs: int | None, seconds: float | None, output: Path) -> None:
    """Measure mcpmux beside the upstreams it stands in front of."""
    effort = QUICK if quick else FULL
    effort = effort._replace(runs=runs or effort.runs, seconds=seconds or effort.seconds)
    bench = Bench(effort, partial(click.echo, err=True))
    rows = bench.rows()
    counts = f"{effort.runs} alternating pairs of runs of {effort.seconds:g} s; median (min–max)."
    machine = describe_machine((bench.mux_core, bench.load_core))
    report = "\n\n".join((table(rows), counts, "\n".join(bench.remarks), machine))
    output.write_text(report + "\n")
    click.echo(report)


if __name__ == "__main__":
    main()
