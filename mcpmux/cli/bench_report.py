"""What `mcpmux bench` says: while it runs, at the end, and into files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import click
import trio
from attrs import frozen
from rich.console import Console
from rich.text import Text

from mcpmux.bench.assertion import Assertion, Judgement, exit_code, judge_all
from mcpmux.bench.compare import Comparison, compare_reports, compare_targets, unmatched
from mcpmux.bench.live_view import LiveView
from mcpmux.bench.plan import Plan
from mcpmux.bench.pool import pooled
from mcpmux.bench.report_html import html_of
from mcpmux.bench.report_rows import csv_of
from mcpmux.bench.results import TOOL, BadResults, Report, decode_report, encode_report, machine_facts
from mcpmux.cli.bench_run import Bench, Outcome
from mcpmux.cli.bench_table import render_comparisons, render_judgements, render_results
from mcpmux.cli.console import ERR, OUT, tell
from mcpmux.cli.wall import INTERRUPTED, Mistake

VIEW_SECONDS = 0.25  # between two looks of the live view
MANY = 4  # targets: their names would fill the line


@frozen(kw_only=True)
class Outputs:
    """Where results go besides the table, and what they are held against."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    old: Report | None = None
    assertions: Sequence[Assertion] = ()

    def check(self) -> None:
        """Before anything is measured: that it can be written. Raises Mistake."""
        for path in (self.json, self.csv, self.html):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise Mistake(f"{path}: there is no folder {path.parent}")
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise Mistake(f"{path}: it cannot be written by this user")


def read_old(path: str | None) -> Report | None:
    """The results to compare with. Raises Mistake."""
    if path is None:
        return None
    try:
        return decode_report(Path(path).read_bytes(), path)
    except OSError as error:
        raise Mistake(f"--compare {path}: {error.strerror}") from None
    except BadResults as error:
        raise Mistake(f"--compare: {error}") from None


async def measure_watched(bench: Bench, plan: Plan) -> Outcome:
    """Measure, and show on a terminal how it goes."""
    outcome: Outcome | None = None
    title = " · ".join(bench.names) if len(bench.names) < MANY else f"{len(bench.names)} targets"
    planned = None if plan.find_max else plan.load().longest - plan.load().grace
    with LiveView(ERR, title, planned) as view:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, bench, view)
            outcome = await bench.measure()
            nursery.cancel_scope.cancel()
    assert outcome is not None
    return outcome


async def _watch(bench: Bench, view: LiveView) -> None:
    """What is under way, a few times a second. Away from a terminal there is nothing to do."""
    while ERR.is_terminal:
        await trio.sleep(VIEW_SECONDS)
        now = trio.current_time()
        snapshots = {
            run.upstream.name: run.tally.snapshot(now, run.in_flight)
            for run in bench.runs
            if run.tally is not None
        }
        turn = f"{bench.turn} of {bench.turns}: {', '.join(snapshots)}" if bench.turns > 1 else ""
        view.update(snapshots, turn)


def report(outcome: Outcome, outputs: Outputs) -> int:
    """Show and write everything; the exit code. Raises ClickException for a file that cannot be written."""
    code = 0
    if outcome.results:
        console = OUT
        render_results(outcome.results, console)
        for name, sentence in outcome.knees.items():
            console.print(Text(f"{name}: {sentence}", style="bold"), soft_wrap=True)
        judgements = judge_all(outputs.assertions, pooled(outcome.results))
        _compare_and_write(outcome, outputs, console, judgements)
        render_judgements(judgements, console)
        code = exit_code(judgements)
    for name, reason in outcome.failures.items():
        tell(f"{name}: cannot be measured: {reason}")
    if outcome.interrupted:
        return INTERRUPTED
    if outcome.failures or any(one.stopped for one in outcome.results):
        return 1
    return code


def _compare_and_write(
    outcome: Outcome, outputs: Outputs, console: Console, judgements: Sequence[Judgement]
) -> None:
    new = Report(
        tool=TOOL,
        when=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        machine=machine_facts(),
        results=tuple(outcome.results),
    )
    comparisons: list[Comparison] = compare_targets(new.results, Random(1))
    if outputs.old is not None:
        comparisons += compare_reports(outputs.old, new, Random(1))
    render_comparisons(comparisons, console)
    if outputs.old is not None:
        for name in unmatched(outputs.old, new):
            tell(f"{name}: not compared, only one of the two has it")
    if outputs.json is not None:
        _write(outputs.json, encode_report(new))
    if outputs.csv is not None:
        _write(outputs.csv, csv_of(new).encode())
    if outputs.html is not None:
        _write(outputs.html, html_of(new, comparisons, judgements).encode())


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from None
