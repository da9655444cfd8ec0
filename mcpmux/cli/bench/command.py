"""`mcpmux bench`: how much load a server bears, and how fast it answers.

Its options and their checks; its results, printed, compared, judged, and written to files.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

import attrs
import click
from click import option
from click.core import ParameterSource

from mcpmux.bench.assertion import Assertion, judge_all, judge_operations
from mcpmux.bench.plan import FAR, SETTINGS, Plan, is_remote, read_scenario
from mcpmux.bench.report.compare import compare_reports, compare_targets, unmatched
from mcpmux.bench.report.html import html_of
from mcpmux.bench.report.tables import Part, Table, circumstances, csv_of, headline, parts_of, verdicts_of
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
from mcpmux.bench.search import estimate
from mcpmux.bench.tally import REDACTOR
from mcpmux.bench.workload import CapturedLoad, load_of, parse_flow
from mcpmux.cli.bench.run import Bench
from mcpmux.cli.console import show_bytes, show_line, show_table, tell
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
from mcpmux.cli.process import INTERRUPTED, Mistake, may_open, naming, run
from mcpmux.cli.traffic.replay import list_reasons, read_capture
from mcpmux.config import Limits, Upstream
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import Choice, Duration, Flag, Text, Whole

OTHER_FILES = 64  # of the process itself
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
    named: dict[str, Upstream] = {}
    for upstream in chosen:
        candidates = chain([upstream.name], (f"{upstream.name}-{number}" for number in count(2)))
        name = next(name for name in candidates if name not in named)
        named[name] = attrs.evolve(upstream, name=name)
    return list(named.values()), configs[0].limits


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
        with naming(upstream.name):
            plan.connections_each(upstream)


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


FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting of a load, of the type that a scenario accepts."""
    for key, setting in reversed(SETTINGS.items()):
        shown: dict[str, Any] = {"show_default": True}
        match setting.scalar:
            case Flag():
                shown["is_flag"] = True
            case Whole(low=low, high=high):
                least, most = (None if abs(limit) == FAR else int(limit) for limit in (low, high))
                shown["type"] = click.INT if least is None else click.IntRange(least, most)
            case Choice(words=words):
                shown["type"] = click.Choice(words)
            case Duration(read=read):
                shown["type"] = Parsed("DURATION", read)
                shown["show_default"] = f"{setting.default:g}s" if setting.default else False
            case Text(read=read):
                shown["type"] = Parsed(setting.look.metavar, read)
            case None:
                shown["type"] = Parsed(setting.look.metavar, parse_flow)
        name = setting.look.option or f"--{key.replace('_', '-')}"
        shown |= {"default": setting.default, "multiple": setting.several, "help": setting.look.help}
        command = option(name, setting.name, **shown)(command)
    return command


def unsaid(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a scenario that the command line lacks."""
    source_of = click.get_current_context().get_parameter_source
    return {name: scenario[name] for name in scenario if source_of(name) is ParameterSource.DEFAULT}


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
@option("--scenario", metavar="FILE", help="Read options and flows of several steps from TOML.")
@option("--capture", multiple=True, type=PATH, metavar="FILE|DIR", help="Send the requests of a capture.")
@option(
    "--capture-upstream",
    metavar="NAME",
    help="Send what mcpmux sent to this upstream, not what clients sent.",
)
@option("--with-tools", is_flag=True, help="Also call the tools of a capture.")
@settings_options
@option("--compare", metavar="FILE", help="Compare with the results in a file of --json.")
@option("--json", type=FILE, help="Write all results as JSON; - is standard output.")
@option("--csv", type=FILE, help="Write the numbers as CSV.")
@option("--html", type=FILE, help="Write a report with plots as one file.")
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
    settings = {name: options[name] for name in (setting.name for setting in SETTINGS.values())}
    if options["scenario"] is not None:
        settings |= unsaid(read_scenario(options["scenario"], sys.stdin.buffer.read))
    captured = read_captured(options["capture"], options["capture_upstream"], options["with_tools"])
    try:
        plan = Plan(captured=captured, **settings)
    except InvalidValue as mistake:
        raise Mistake(str(mistake)) from None
    chosen, limits = find_targets(targets, only, upstreams, credentials)
    check_targets(chosen, plan, allow_remote=allow_remote)
    check_files(chosen, plan)
    old = read_old(options["compare"])
    files = {kind: options[kind] for kind in ("json", "csv", "html") if options[kind] is not None}
    check_writable(files.values())
    if plan.find_max:
        tell(estimate(plan))
    bench = Bench(chosen, plan, limits)
    run(bench.measure)
    written = click.get_current_context().meta[WRITTEN]
    raise click.exceptions.Exit(report(bench, files, old, plan.assert_, written))


# Results: printed, and written to files.

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
            render(parts_of(results, bench.knees, comparisons))
            render([verdicts_of(judgements)])
        for name in unmatched(old, new) if old is not None else ():
            tell(f"{name}: not compared, only one of the two has it")
        makers: dict[str, Callable[[], bytes]] = {
            "json": lambda: encode_report(new),
            "csv": lambda: csv_of(new).encode(),
            "html": lambda: html_of(new, comparisons, judgements, bench.knees).encode(),
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
    """Print what was measured under what load, for every target."""
    for runs in by_name(results).values():
        show_line(headline(runs[0]))
        show_line(f"  {circumstances(runs)}", "bright_black")
    click.echo()


def render(parts: Iterable[Part]) -> None:
    """Print tables and sentences."""
    for part in parts:
        if not isinstance(part, Table):
            for cell in part:
                show_line(cell.text, _STYLES[cell.tone])
            continue
        show_line(part.title)
        numbers = [heading for place, heading in enumerate(part.headings) if place not in part.left]
        rows = ([(cell.text, _STYLES.get(cell.tone, "")) for cell in row] for row in part.rows)
        show_table(part.headings, rows, right_aligned=numbers)
        click.echo()
