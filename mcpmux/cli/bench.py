"""`mcpmux bench`: how much load a server bears, and how fast it answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import attrs
import click
from click import option
from click.core import ParameterSource

from mcpmux.bench.assertion import Assertion, check_parts, check_together, parse_assertion
from mcpmux.bench.operation import Operation, parse_operation
from mcpmux.bench.plan import CLIENTS, COUNT, IN_FLIGHT, SECONDS, Plan, is_remote
from mcpmux.bench.workload import CapturedLoad, Flow, load_of, parse_flow
from mcpmux.cli.bench_run import Bench, check_writable, read_old, report
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
from mcpmux.cli.traffic_replay import list_reasons, read_capture
from mcpmux.config import Limits, Upstream
from mcpmux.config.reading import read_document, structure
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import Choice, Duration, Flag, Seconds, Text, Whole, derive_names
from mcpmux.errors import ConfigError
from mcpmux.protocol.revisions import SUPPORTED

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


@click.command()
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
    bench = Bench(chosen, plan, limits)
    run(bench.measure)
    raise click.exceptions.Exit(report(bench, files, old, options["assertions"]))


Places: TypeAlias = Annotated[int, Whole(1, PLACES_LIMIT)]
Condition: TypeAlias = Annotated[Assertion, Text(make=parse_assertion)]


class Rate(Text, frozen=True):
    """A rate as on the command line, or a number."""

    def read(self, value: object) -> Any:
        """See Text."""
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
    push: Annotated[Operation, Text(make=parse_operation)] | None = None
    resources: Places | None = None
    flows: tuple[Flow, ...] | None = None

    ignored_keys = frozenset({ASSERT})  # no argument of a function can be called so


def read_scenario(file: str) -> dict[str, Any]:
    """Return the options of a file that the command line lacks. Raises ConfigError with every mistake."""
    origin, _, document = read_document(file, sys.stdin.buffer.read)
    scenario, problems = structure(Scenario, document)
    assertions, more = structure(tuple[Condition, ...], document.get(ASSERT, []))
    problems += [problem.under(ASSERT) for problem in more]
    if problems:  # without the place in a condition, which takes further lines
        raise ConfigError(
            [problem._replace(text=problem.text.partition("\n")[0]) for problem in problems], origin
        )
    source_of = click.get_current_context().get_parameter_source
    given = {**attrs.asdict(scenario, recurse=False), ASSERT: assertions or None}
    options = {PARAMETERS.get(key, key): value for key, value in given.items() if value is not None}
    return {name: options[name] for name in options if source_of(name) is ParameterSource.DEFAULT}
