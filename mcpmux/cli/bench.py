"""`mcpmux bench`: how much load a server bears, and how fast it answers.

`Bench` runs it, with a live view on a terminal, and `report` prints the results.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import attrs
import click
import trio
from attrs import define, field
from click import option
from click.core import ParameterSource
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mcpmux.bench.assertion import (
    Assertion,
    Judgement,
    check_parts,
    check_together,
    find_lost,
    judge_all,
    judge_operations,
    parse_assertion,
)
from mcpmux.bench.operation import Operation, parse_operation
from mcpmux.bench.plan import CLIENTS, COUNT, IN_FLIGHT, SECONDS, Plan, is_remote
from mcpmux.bench.report.compare import Comparison, compare_reports, compare_targets, unmatched
from mcpmux.bench.report.html import html_of
from mcpmux.bench.report.tables import (
    Table,
    circumstances,
    comparison_table,
    csv_of,
    headline,
    notes_on,
    tables_of,
)
from mcpmux.bench.results import (
    TOOL,
    BadResults,
    Report,
    Results,
    by_name,
    decode_report,
    encode_report,
    machine_facts,
    pooled,
)
from mcpmux.bench.run import Run
from mcpmux.bench.schedule import SleepUntil, open_timer
from mcpmux.bench.search import Search, estimate
from mcpmux.bench.tally import REDACTOR, Snapshot
from mcpmux.bench.workload import CapturedLoad, Flow, load_of, parse_flow
from mcpmux.channels.opener import ChannelOpener
from mcpmux.cli.console import ERR, plain_table, show_bytes, show_line, show_table, tell
from mcpmux.cli.options import (
    PATH,
    Credentials,
    Parsed,
    credentials_options,
    load_config,
    load_targets,
    quiet_option,
    upstream_option,
)
from mcpmux.cli.process import INTERRUPTED, Mistake, may_open, run
from mcpmux.cli.traffic_replay import list_reasons, read_capture
from mcpmux.config import Limits, Upstream
from mcpmux.config.reading import read_document, structure
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import Choice, Duration, Flag, Seconds, Whole, derive_names
from mcpmux.config.scalars import Text as TextValue
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.format import rate_text, share_text, sparkline, time_text
from mcpmux.hosts.document import with_lines
from mcpmux.printable import printable
from mcpmux.protocol.revisions import SUPPORTED
from mcpmux.transports.process import StopLadder
from mcpmux.transports.wall import leaves_of

STDOUT = Path("-")


def check_writable(paths: Iterable[Path]) -> None:
    """Check before anything is measured that the files can be written. Raises Mistake."""
    paths = list(paths)
    if paths.count(STDOUT) > 1:
        raise Mistake("two formats cannot go to standard output")
    for path in paths:
        if path == STDOUT:
            continue
        if not path.parent.is_dir():
            raise Mistake(f"{path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise Mistake(f"{path}: it cannot be written by this user")


def read_old(path: str | None) -> Report | None:
    """Return the results to compare with. Raises Mistake."""
    if path is None:
        return None
    try:
        return decode_report(Path(path).read_bytes(), path)
    except OSError as error:
        raise Mistake(f"--compare {path}: {error.strerror}") from None
    except BadResults as error:
        raise Mistake(f"--compare: {error}") from None


def report(
    bench: Bench,
    files: Mapping[str, Path],
    old: Report | None,
    assertions: Sequence[Assertion],
    written: Sequence[str],
) -> int:
    """Print what was measured, compared with `old`, and write it to `files` by kind. Returns the exit code.

    `written` are the options of the command line. If one of the files is standard output, everything else is
    printed on stderr. Raises ClickException if a file cannot be written.
    """
    results, held = tuple(bench.results), True
    if results:
        when = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        targets = dict.fromkeys(result.about.target for result in results)
        command, _ = REDACTOR.redact_text(shlex.join(["mcpmux", "bench", *targets, *written]))
        new = Report(tool=TOOL, when=when, command=command, machine=machine_facts(), results=results)
        judgements = [*judge_operations(pooled(results)), *judge_all(assertions, pooled(results))]
        held = all(judgement.held for judgement in judgements)
        comparisons = compare_targets(results)
        if old is not None:
            comparisons += compare_reports(old, new)
        with redirect_stdout(sys.stderr if STDOUT in files.values() else sys.stdout):
            render_results(results)
            for name, sentence in bench.knees.items():
                show_line(f"{name}: {sentence}")
            render_comparisons(comparisons)
            render_judgements(judgements)
        for name in unmatched(old, new) if old is not None else ():
            tell(f"{name}: not compared, only one of the two has it")
        makers: dict[str, Callable[[], bytes]] = {
            "json": lambda: encode_report(new),
            "csv": lambda: csv_of(new).encode(),
            "html": lambda: html_of(new, comparisons, judgements).encode(),
        }
        for kind, path in files.items():
            try:
                if path == STDOUT:
                    show_bytes(makers[kind]())
                else:
                    path.write_bytes(makers[kind]())
            except OSError as error:
                raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from None
    for name, reason in bench.failures.items():
        tell(f"{name}: cannot be measured: {reason}")
    if bench.interrupted:
        return INTERRUPTED
    return int(not held or bool(bench.failures) or any(result.stopped for result in results))


# Results and comparisons as tables: with colours on a terminal, as plain text elsewhere. Servers name their
# operations, so all texts are untrusted: they are made printable and are never markup.

_STYLES = {"strong": "bold", "dim": "bright_black", "good": "green", "warn": "yellow", "bad": "bold red"}


def render_results(results: Sequence[Results]) -> None:
    """Print all results of every target, and notes on how far to trust them."""
    for runs in by_name(results).values():
        show_line(headline(runs[0]))
        show_line(f"  {circumstances(runs)}", "bright_black")
    click.echo()
    for table in tables_of(results):
        _show_table(table)
    for note in notes_on(results):
        show_line(f"note: {note}", "yellow")


def render_comparisons(comparisons: Iterable[Comparison]) -> None:
    """Print what has changed, and for what a change is not proven."""
    for comparison in comparisons:
        _show_table(comparison_table(comparison))
        for note in comparison.notes:
            show_line(f"note: {note}", "yellow")


def render_judgements(judgements: Iterable[Judgement]) -> None:
    for judgement in judgements:
        show_line(
            f"{'✓' if judgement.held else '✗'} {judgement.sentence}",
            _STYLES["good" if judgement.held else "bad"],
        )


def _show_table(table: Table) -> None:
    show_line(table.title)
    numbers = [heading for place, heading in enumerate(table.headings) if place not in table.left]
    rows = ([(cell.text, _STYLES.get(cell.tone, "")) for cell in row] for row in table.rows)
    show_table(table.headings, rows, right_aligned=numbers)
    click.echo()


VIEW_SECONDS = 0.25  # between two updates of the live view
MANY = 4  # targets whose names would fill the line
BY_HAND = "interrupted"
ABORT_SECONDS = 1.0  # between two looks at conditions that may end a run
STOP = StopLadder(close_seconds=2.0, terminate_seconds=2.0)
SPARE_CONNECTIONS = 1  # of a session over HTTP: a legacy server's own stream takes one


@define(eq=False, repr=False)
class Bench:
    """Measures several targets: at the same time, or in turns if each has several runs.

    In the end there are `results` of all runs in the order measured, and by name of a target: `failures`, why
    there are no (more) results; `knees`, what a search for the highest rate has found.
    """

    _upstreams: Sequence[Upstream]
    _plan: Plan
    _limits: Limits
    _aborting: Sequence[Assertion] = ()  # conditions that end a run when they do not hold
    _runs: list[Run] = field(factory=list, init=False)  # under way
    _turn: int = field(default=0, init=False)  # their number, from 1
    results: list[Results] = field(factory=list)
    failures: dict[str, str] = field(factory=dict)
    knees: dict[str, str] = field(factory=dict)
    interrupted: bool = False

    async def measure(self) -> None:
        """Measure everything, with a live view on a terminal.

        The first SIGINT or SIGTERM ends it early, the second one at once. Raises ConfigError if a target does
        not have what the benchmark asks for.
        """
        # Runs to compare have the machine alone.
        groups = [[upstream] for upstream in self._upstreams] if self._plan.runs > 1 else [self._upstreams]
        with open_timer() as sleep_until:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._heed_signals)
                if ERR.is_terminal:
                    nursery.start_soon(self._watch, len(groups) * self._plan.runs)
                for number in range(self._plan.runs):
                    for group in groups:
                        await self._measure_all(group, number, sleep_until)
                nursery.cancel_scope.cancel()
        in_order = [upstream.name for upstream in self._upstreams if upstream.name in self.failures]
        self.failures = {name: self.failures[name] for name in in_order}

    async def _watch(self, turns: int) -> None:
        names, plan = [upstream.name for upstream in self._upstreams], self._plan
        title = " · ".join(names) if len(names) < MANY else f"{len(names)} targets"
        with LiveView(ERR, title, None if plan.find_max else plan.warm_up + plan.duration) as view:
            while True:
                await trio.sleep(VIEW_SECONDS)
                now = trio.current_time()
                snapshots = {
                    run.upstream.name: run.tally.snapshot(now, run.work.in_flight)
                    for run in self._runs
                    if run.tally is not None and run.work is not None
                }
                turn = f"{self._turn} of {turns}: {', '.join(snapshots)}" if turns > 1 else ""
                view.show(snapshots, turn)

    async def _measure_all(self, upstreams: Sequence[Upstream], number: int, sleep_until: SleepUntil) -> None:
        """Run number `number`, from 0, of these targets without those that have failed."""
        if self.interrupted:
            return
        plan = attrs.evolve(self._plan, seed=self._plan.seed + number)
        self._turn += 1
        self._runs = []
        for upstream in upstreams:
            if upstream.name not in self.failures:
                opener = ChannelOpener(
                    self._limits, STOP, plan.connections_each(upstream) + SPARE_CONNECTIONS
                )
                self._runs.append(Run(upstream, plan, opener.open, sleep_until))
        async with trio.open_nursery() as nursery:
            for run in self._runs:
                nursery.start_soon(self._measure, run, name=f"bench {run.upstream.name}")
        self.results += [run.results for run in self._runs if run.results is not None]
        for run in self._runs:
            if isinstance(run.work, Search):
                self.knees[run.upstream.name] = run.work.knee.describe()

    async def _measure(self, run: Run) -> None:
        try:
            async with trio.open_nursery() as nursery:
                if self._aborting:
                    nursery.start_soon(self._abort, run)
                await run.measure()
                nursery.cancel_scope.cancel()
        except* ConfigError:
            raise
        except* McpmuxError as group:  # the wall around one target
            self.failures[run.upstream.name] = "; ".join(dict.fromkeys(map(str, leaves_of(group))))

    async def _abort(self, run: Run) -> None:
        """End a run when a condition is sure not to hold."""
        while True:
            await trio.sleep(ABORT_SECONDS)
            results = run.so_far()
            if results is not None and (reason := find_lost(self._aborting, results)) is not None:
                run.stop(reason)
                return

    async def _heed_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self.interrupted:
                    raise KeyboardInterrupt
                self.interrupted = True
                for run in self._runs:
                    run.stop(BY_HAND)


# The live view of a run, on a terminal.

SPARKS = 60  # snapshots that the sparkline shows
RATE_WIDTH = 20  # columns of the rate of one target
LEAST_SPARKS = 8  # fewer are not readable
BAR_WIDTH = 30  # columns
NAME_WIDTH = 24  # columns of a target's name
LEAST_NAME_WIDTH = 8  # on a narrow screen
NUMBERS_WIDTH = 68  # columns of all numbers of a target, errors among them
ROWS_AROUND = 4  # lines of the screen that are not rows of targets


class LiveView(Live):
    """A few lines that change in place, gone when it is left. `planned`: seconds, when the end is known."""

    def __init__(self, console: Console, title: str, planned: float | None = None) -> None:
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._title = title
        self._planned = planned
        self._tracks: dict[str, deque[tuple[float, int]]] = {}  # of each target: seconds, requests so far

    def show(self, snapshots: Mapping[str, Snapshot], remark: str = "") -> None:
        """Show how far each target is, by name, if there are snapshots."""
        if not snapshots:
            return
        self._tracks = {name: self._tracks.get(name, deque([(0.0, 0)], SPARKS + 1)) for name in snapshots}
        for name, snapshot in snapshots.items():
            if snapshot.elapsed < self._tracks[name][-1][0]:  # of the next run
                self._tracks[name] = deque([(0.0, 0)], SPARKS + 1)
            if snapshot.elapsed > self._tracks[name][-1][0]:
                self._tracks[name].append((snapshot.elapsed, snapshot.seen))
        furthest = max(snapshots.values(), key=lambda snapshot: snapshot.elapsed)
        body = self._table(snapshots) if len(snapshots) > 1 else self._lines(*snapshots.items())
        self.update(Group(self._heading(furthest, remark), body), refresh=True)

    def _rate(self, name: str, around: int) -> str:
        """Return the latest rate, and bars if the screen has room for them beside `around` columns."""
        steps = pairwise(self._tracks[name])
        rates = [(seen - former) / (at - since) for (since, former), (at, seen) in steps]
        room = min(SPARKS, self.console.width - around)
        bars = f"  {sparkline(rates, room)}" if room >= LEAST_SPARKS else ""
        return f"{rate_text(rates[-1] if rates else 0.0):>9}{bars}"

    def _lines(self, item: tuple[str, Snapshot]) -> Group:
        name, snapshot = item
        counts = {"requests": f"{snapshot.count:,}", "in flight": f"{snapshot.in_flight:,}"}
        times = zip(("p50", "p99", "p99.9", "max"), map(time_text, snapshot.times), strict=True)
        rate = _pairs({"rate": self._rate(name, RATE_WIDTH)})
        return Group(rate, _pairs({**counts, "errors": _errors(snapshot)}), _pairs(dict(times)))

    def _table(self, snapshots: Mapping[str, Snapshot]) -> Group:
        """Several targets, a row each; with more than the screen is high, the first ones."""
        table = plain_table(has_header=True)
        name_width = min(NAME_WIDTH, max(self.console.width - NUMBERS_WIDTH, LEAST_NAME_WIDTH))
        table.add_column("target", no_wrap=True, overflow="ellipsis", max_width=name_width)
        table.add_column("rate", no_wrap=True)
        for heading in ("requests", "errors", "p50", "p99", "max"):
            table.add_column(heading, justify="right", no_wrap=True)
        room = max(self.console.height - ROWS_AROUND, 1)
        for name, snapshot in list(snapshots.items())[:room]:
            p50, p99, _, most = map(time_text, snapshot.times)
            texts = f"{snapshot.count:,}", _errors(snapshot), p50, p99, most
            table.add_row(Text(printable(name)), Text(self._rate(name, NAME_WIDTH + NUMBERS_WIDTH)), *texts)
        hidden = len(snapshots) - room
        return Group(table, Text(f"and {hidden} more", style="bright_black")) if hidden > 0 else Group(table)

    def _heading(self, snapshot: Snapshot, remark: str) -> Text:
        parts = [
            (printable(self._title), "bold"),
            (f"  {remark}" if remark else "", "cyan"),
            (f"  {snapshot.elapsed:.0f} s", ""),
        ]
        if self._planned:
            full = round(min(snapshot.elapsed / self._planned, 1.0) * BAR_WIDTH)
            parts += [(f" of {self._planned:.0f} s ", ""), ("━" * full, "cyan")]
            parts.append(("━" * (BAR_WIDTH - full), "bright_black"))
        parts.append(("  warm-up, not counted" if snapshot.warming else "", "yellow"))
        parts.append((f"  {snapshot.step}" if snapshot.step else "", "cyan"))
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _errors(snapshot: Snapshot) -> Text:
    if not snapshot.errors:
        return Text("0")
    share = share_text(snapshot.errors / snapshot.count if snapshot.count else None)
    return Text(f"{snapshot.errors:,} ({share})", style="bold red")


def _pairs(pairs: Mapping[str, str | Text]) -> Text:
    parts = (part for name, value in pairs.items() for part in ((f"{name} ", "bright_black"), value, "   "))
    return Text.assemble("  ", *parts, no_wrap=True, overflow="ellipsis")


# The command, and scenario files, which have its options.

# The command, and scenario files, which have its options.

OTHER_FILES = 64  # of the process itself
PLACES_LIMIT = 10_000  # of clients, sessions and connections
RUNS_LIMIT = 100
CHECKS = ("length", "hash")
ASSERT = "assert"
PARAMETERS = {"duration": "seconds", "timeout": "patience", "flows": "operations", ASSERT: "assertions"}
"""What options with other names than those of keys in a scenario are called here."""
FILES_EACH = 3  # of a session: a connection and what is opened with it, or the pipes of a process


def find_targets(
    targets: Sequence[str], only: Sequence[str], added: Sequence[str], credentials: Credentials
) -> tuple[list[Upstream], Limits]:
    """Return the servers to measure, each with a unique name. Raises ConfigError, Mistake."""
    configs = load_targets(targets, credentials)
    if added or not targets:
        configs.append(load_config(None, added))
    all_targets = [upstream for config in configs for upstream in config.upstreams if upstream.enabled]
    names = [upstream.name for upstream in all_targets]
    for name in only:
        if name not in names:
            raise Mistake(f"--only {name}: there is no such upstream; there are {', '.join(names)}")
    chosen = [upstream for upstream in all_targets if not only or upstream.name in only]
    names = derive_names([upstream.name for upstream in chosen])
    named = [attrs.evolve(upstream, name=name) for upstream, name in zip(chosen, names, strict=True)]
    return named, configs[0].limits


def check_files(upstreams: Sequence[Upstream], plan: Plan) -> None:
    """Raise the limit of open files to what the load needs. Raises Mistake if the system forbids it."""
    needed = OTHER_FILES + len(upstreams) * (FILES_EACH * plan.sessions + plan.workers)
    allowed = may_open(needed)
    if allowed < OTHER_FILES + len(upstreams) * max(plan.sessions, plan.workers):
        raise Mistake(
            f"so many connections need some {needed:,} open files, and this system allows {allowed:,}: raise "
            "its limit (`ulimit -n`), or ask for fewer sessions and clients"
        )


def check_targets(upstreams: Sequence[Upstream], plan: Plan, *, allow_remote: bool) -> None:
    """Check that the servers may be put under load, and by this plan. Raises Mistake."""
    for upstream in upstreams:
        if is_remote(upstream) and not allow_remote:
            raise Mistake(
                f"{upstream.target.display} is not on this machine: load may harm it and those who use it; "
                "--allow-remote says that you may do this"
            )
        try:
            plan.connections_each(upstream)
        except InvalidValue as mistake:
            raise Mistake(f"{upstream.name}: {mistake}") from None


def read_captured(files: tuple[Path, ...], upstream: str | None, with_tools: bool) -> CapturedLoad | None:
    """Return the requests of a capture, None without any file. Prints what is left out. Raises Mistake."""
    if not files:
        if upstream is not None or with_tools:
            option = "--with-tools" if upstream is None else "--capture-upstream"
            raise Mistake(f"{option} is about a capture: name it with --capture")
        return None
    reading = read_capture(files, "client" if upstream is None else "upstream", upstream)
    load = load_of(reading.dialogues(), with_tools=with_tools)
    reasons = list_reasons(load.left_out + reading.left_out)
    if not load.order:
        raise Mistake(f"{' '.join(map(str, files))}: nothing in this capture makes load ({reasons})")
    left_out = f"; left out: {reasons}" if reasons else ""
    tell(f"capture: {len(load.order):,} requests, {len(load.asks):,} of them different{left_out}")
    return load


DURATION = Parsed("DURATION", Duration().read)
DURATION_OR_0 = Parsed("DURATION", Duration(off=True).read)
OPERATION = Parsed("OPERATION", parse_operation)
FLOW = Parsed("OPERATION", parse_flow)
CONDITION = Parsed("COND", parse_assertion)
PLACES = click.IntRange(1, PLACES_LIMIT)
RUNS = click.IntRange(1, RUNS_LIMIT)
FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


HIDDEN = frozenset({"token", "headers", "upstreams", "targets"})  # parameters that may have secrets in them
WRITTEN = "mcpmux.bench.written"


class Recorded(click.Command):
    """A command that keeps in `ctx.meta[WRITTEN]` how its options were written, without HIDDEN ones."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click."""
        parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
        words = ctx.meta[WRITTEN] = []
        for parameter in self.params:
            values = parsed.get(parameter.name or "", []) if parameter.name not in HIDDEN else []
            for value in values if isinstance(values, list) else [values]:
                words += [max(parameter.opts, key=len), *([] if value is True else [value])]
        return super().parse_args(ctx, args)


@click.command(cls=Recorded)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@upstream_option
@credentials_options
@option("--only", multiple=True, metavar="NAME", help="Measure only this upstream of a configuration.")
@option("--do", "operations", multiple=True, type=FLOW, help="An operation to ask for; see above.")
@option("--scenario", metavar="FILE", help="Read options and flows of several steps from TOML.")
@option("--capture", multiple=True, type=PATH, metavar="FILE|DIR", help="Send the requests of a capture.")
@option(
    "--capture-upstream",
    metavar="NAME",
    help="Send what mcpmux sent to this upstream, not what clients sent.",
)
@option("--with-tools", is_flag=True, help="Also call the tools of a capture.")
@option("--clients", type=PLACES, help=f"Closed model: number of clients. Default {CLIENTS}.")
@option("--think", type=DURATION_OR_0, default=0.0, help="Pause of a client after each response.")
@option("--rate", metavar="RATE", help="Open model: requests a second, whatever the server does.")
@option("--even", is_flag=True, help="Send at even intervals, not at random ones (Poisson).")
@option("--duration", "seconds", type=DURATION, help=f"Time to measure. Default {SECONDS:g}s.")
@option("--count", type=click.IntRange(1), help=f"Most requests to send. Default {COUNT:,}.")
@option("--warm-up", type=DURATION_OR_0, default=1.0, show_default="1s", help="Time before measuring.")
@option("--timeout", "patience", type=DURATION, default=10.0, show_default="10s", help="Time for a response.")
@option("--runs", type=RUNS, default=1, show_default=True, help="Runs of each target, in turns.")
@option("--sessions", type=PLACES, default=1, show_default=True, help="Number of MCP sessions.")
@option("--connections", type=PLACES, help="HTTP connections. Default: one for each in flight.")
@option("--in-flight", type=PLACES, help=f"Most requests in flight. With --rate {IN_FLIGHT}.")
@option("--find-max", multiple=True, type=CONDITION, help="Find the highest rate at which it holds.")
@option("--push", type=OPERATION, help="Change a resource by it: how soon do all sessions hear?")
@option("--resources", type=PLACES, default=1, show_default=True, help="Number of resources for --push.")
@option("--assert", "assertions", multiple=True, type=CONDITION, help="Exit with code 1 if it does not hold.")
@option("--abort-on-fail", is_flag=True, help="End as soon as an upper limit of an --assert is passed.")
@option("--compare", metavar="FILE", help="Compare with the results in a file of --json.")
@option("--json", type=FILE, help="Write all results as JSON; - is standard output.")
@option("--csv", type=FILE, help="Write the numbers as CSV.")
@option("--html", type=FILE, help="Write a report with plots as one file.")
@option("--check", type=click.Choice(CHECKS), help="Check that contents stay the same.")
@option("--revision", type=click.Choice(SUPPORTED), help="Speak this revision. Default: the newest.")
@option("--seed", type=int, default=1, show_default=True, help="The same seed sends the same requests.")
@option("--allow-remote", is_flag=True, help="Put load on other machines too.")
@quiet_option
def bench(
    targets: tuple[str, ...],
    upstreams: tuple[str, ...],
    only: tuple[str, ...],
    allow_remote: bool,
    credentials: Credentials,
    **options: Any,
) -> None:
    """Put load on servers and measure how they answer.

    TARGET is a URL, a command line in quotes, or a configuration file with any number of upstreams. All are
    measured at the same time, each by itself. With --runs they take turns, and from 5 runs on are compared.

    \b
    Operations, each with a weight in front if there are several:
      read [GLOB]                     read a resource of the server's list
      list [resources|templates|tools|prompts]
      template TEMPLATE ARGUMENTS     read the URI that the template makes
      tool NAME [ARGUMENTS]           ARGUMENTS: JSON, with {{n}}, {{uri}}, {{1..100}}, {{a|b}}
      prompt NAME [ARGUMENTS]
      complete prompt:NAME|TEMPLATE ARGUMENT VALUE
      ping                            up to 2025-11-25
      subscribe [GLOB]                subscribe and unsubscribe

    \b
    Rates: 200, 100..1000/30s (rising), 100,200,400/10s (in steps).

    \b
    Conditions: 'p99<20ms', 'errors<0.1%', 'rate>500/s', 'read.p50<=5ms'.

    \b
    Exit codes:
      0    measured, and every --assert holds
      1    an --assert does not hold, all requests of an operation failed, or a target could not be
           measured to the end
      2    a mistake on the command line or in a file
      130  interrupted; results until then are shown

    \b
    Examples:
      mcpmux bench http://127.0.0.1:8484/mcp
      mcpmux bench 'python server.py' --clients 1 --do 'tool echo {"text": "{{n}}"}'
      mcpmux bench mcpmux.toml --only docs --rate 100..1000/30s
      mcpmux bench http://127.0.0.1:8484/mcp --find-max 'p99<50ms'
      mcpmux bench http://127.0.0.1:8484/mcp --capture mcpmux-capture --rate 200
      mcpmux bench 'python old.py' 'python new.py' --runs 5
      mcpmux bench ws://127.0.0.1:9000 --do '8 read file:///*' --do '1 list tools' --check hash
    """
    if options["scenario"] is not None:
        options |= read_scenario(options["scenario"])
    captured = read_captured(options["capture"], options["capture_upstream"], options["with_tools"])
    try:
        check_together(options["find_max"])
        own = {field.name for field in attrs.fields(Plan)} & options.keys()
        settings = {name: options[name] for name in own}
        plan = Plan(flows=options["operations"], captured=captured, poisson=not options["even"], **settings)
        check_together(options["assertions"])
        check_parts(options["assertions"], plan.operation_names())
    except InvalidValue as mistake:
        raise Mistake(str(mistake)) from None
    chosen, limits = find_targets(targets, only, upstreams, credentials)
    check_targets(chosen, plan, allow_remote=allow_remote)
    check_files(chosen, plan)
    old = read_old(options["compare"])
    files = {kind: options[kind] for kind in ("json", "csv", "html") if options[kind] is not None}
    check_writable(files.values())
    if options["abort_on_fail"] and not options["assertions"]:
        raise Mistake("--abort-on-fail: needs an --assert")
    if plan.find_max:
        tell(estimate(plan))
    bench = Bench(chosen, plan, limits, options["assertions"] if options["abort_on_fail"] else ())
    run(bench.measure)
    written = click.get_current_context().meta[WRITTEN]
    raise click.exceptions.Exit(report(bench, files, old, options["assertions"], written))


Places: TypeAlias = Annotated[int, Whole(1, PLACES_LIMIT)]
Condition: TypeAlias = Annotated[Assertion, TextValue(make=parse_assertion)]


class Rate(TextValue, frozen=True):
    """A rate as on the command line, or a number."""

    def read(self, value: object) -> Any:
        """See TextValue."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().read(f"{Decimal(str(value)):f}" if is_number else value)


@attrs.frozen(kw_only=True)
class Scenario:
    """A benchmark in a TOML file: options of the command line, and flows of several steps.

    rate = "50..500/1m"
    timeout = "5s"

    [[flows]]                # one client takes these steps in turn
    weight = 3
    pause = "200ms"          # between them
    steps = ["list tools", 'tool echo {"text": "{{n}}"}']
    """

    clients: Places | None = None
    think: Annotated[float, Duration(off=True)] | None = None
    rate: Annotated[str, Rate()] | None = None
    even: Annotated[bool, Flag()] | None = None
    duration: Seconds | None = None
    count: Annotated[int, Whole(1, 10**15)] | None = None
    warm_up: Annotated[float, Duration(off=True)] | None = None
    timeout: Seconds | None = None
    sessions: Places | None = None
    connections: Places | None = None
    in_flight: Places | None = None
    check: Annotated[str, Choice(CHECKS)] | None = None
    revision: Annotated[str, Choice(SUPPORTED)] | None = None
    seed: Annotated[int, Whole(-(10**15), 10**15)] | None = None
    find_max: tuple[Condition, ...] | None = None
    abort_on_fail: Annotated[bool, Flag()] | None = None
    push: Annotated[Operation, TextValue(make=parse_operation)] | None = None
    resources: Places | None = None
    flows: tuple[Flow, ...] | None = None

    ignored_keys = frozenset({ASSERT})  # no argument of a function can be called so


def read_scenario(file: str) -> dict[str, Any]:
    """Return the options of a file that the command line lacks. Raises ConfigError with every mistake."""
    source = read_document(file, sys.stdin.buffer.read)
    scenario, problems = structure(Scenario, source.table)
    assertions, more = structure(tuple[Condition, ...], source.table.get(ASSERT, []))
    problems += [problem.under(ASSERT) for problem in more]
    if problems:  # without the place in a condition, which takes further lines
        short = [problem._replace(text=problem.text.partition("\n")[0]) for problem in problems]
        raise with_lines(ConfigError(short, source.origin), source)
    source_of = click.get_current_context().get_parameter_source
    values = {**attrs.asdict(scenario, recurse=False), ASSERT: assertions or None}
    options = {PARAMETERS.get(key, key): value for key, value in values.items() if value is not None}
    return {name: options[name] for name in options if source_of(name) is ParameterSource.DEFAULT}
