"""`mcpmux bench`: how much load a server bears, and how fast it answers. Its options, and their checks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import attrs
import click
from click import option
from click.core import ParameterSource

from mcpmux.bench.assertion import check_parts, check_together, parse_assertion
from mcpmux.bench.operation import parse_operation
from mcpmux.bench.plan import CLIENTS, COUNT, IN_FLIGHT, SECONDS, Plan, is_remote
from mcpmux.bench.scenario import ASSERT, CHECKS, PLACES_LIMIT, read_scenario
from mcpmux.bench.search import estimate
from mcpmux.bench.workload import CapturedLoad, load_of, parse_flow
from mcpmux.cli.bench.report import check_writable, read_old, report
from mcpmux.cli.bench.run import Bench
from mcpmux.cli.console import tell
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
from mcpmux.cli.process import Mistake, may_open, run
from mcpmux.cli.traffic.replay import list_reasons, read_capture
from mcpmux.config import Limits, Upstream
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import Duration
from mcpmux.protocol.revisions import SUPPORTED

OTHER_FILES = 64  # of the process itself
RUNS_LIMIT = 100
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


def unsaid(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scenario that the command line lacks."""
    source_of = click.get_current_context().get_parameter_source
    options = {PARAMETERS.get(key, key): value for key, value in scenario.items()}
    return {name: options[name] for name in options if source_of(name) is ParameterSource.DEFAULT}


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
        options |= unsaid(read_scenario(options["scenario"], sys.stdin.buffer.read))
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
