"""`python -m benchmarks.peers`: every peer beside mcpmux, printed and written as Markdown."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.bench import Bench, Effort
from benchmarks.compiled import measure_compiled
from benchmarks.output import BESIDE_PEERS, NAME, PART, heading, result_path, write_result
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.measure import Result, compare
from benchmarks.peers.table import table
from benchmarks.report import describe_machine


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(PEERS)), help="This one. May be repeated.")
@click.option("--compiled", is_flag=True, help="Compile mcpmux first. Needs a C compiler.")
@click.option("--runs", type=click.IntRange(1, 100), default=5, show_default=True, help="Pairs of runs.")
@click.option("--seconds", type=click.IntRange(1, 60), default=4, show_default=True, help="Of each run.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default=NAME.format(part=f"-{BESIDE_PEERS}"),
    help="Where the table is written.",
)
def main(only: tuple[str, ...], compiled: bool, runs: int, seconds: int, output: Path | None) -> None:
    """Install the peers, and measure each beside mcpmux in front of the same upstreams."""
    if compiled:
        measure_compiled()
    bench = Bench(Effort(runs, seconds), partial(click.echo, err=True))
    counts = f"{runs} alternating pairs of runs of {seconds:g} s; median (min–max)."
    machine = describe_machine((bench.mux_core, bench.load_core))
    output = output or (result_path(BESIDE_PEERS, PART) if only else result_path(BESIDE_PEERS))
    results: list[Result] = []
    report = ""
    for name in only or PEERS:
        results.append(compare(bench, PEERS[name]))
        report = "\n\n".join((heading(), table(results), counts, machine))
        write_result(output, report)  # what is there is kept when the rest is interrupted
    click.echo(report)


if __name__ == "__main__":
    main()
