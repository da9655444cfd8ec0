"""`mcpmux bench`: how much load a server bears, and how fast it answers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import click
from click import option
from click.core import ParameterSource

from mcpmux.bench.assertion import check_parts, check_together, parse_assertion
from mcpmux.bench.operation import parse_operation
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
from mcpmux.config.reading import read_document
from mcpmux.config.report import InvalidValue, Report, invalid_value, sort_of, suggest
from mcpmux.config.scalars import Duration, Flag, derive_names
from mcpmux.errors import KeyPath
from mcpmux.protocol.revisions import SUPPORTED

OTHER_FILES = 64  # of the process itself
PLACES_LIMIT = 10_000  # of clients, sessions and connections
RUNS_LIMIT = 100
ZIPF_LIMIT = 10.0
FILES_EACH = 3  # of a session: a connection and what is opened with it, or the pipes of a process


def find_targets(
    targets: Sequence[str], only: Sequence[str], added: Sequence[str], credentials: Credentials
) -> tuple[list[Upstream], Limits]:
    """The servers to measure, each with a unique name. Raises ConfigError, Mistake."""
    configs = load_targets(targets, credentials)
    if added or not targets:
        configs.append(load_config(None, added))
    found = [upstream for config in configs for upstream in config.upstreams if upstream.enabled]
    names = [upstream.name for upstream in found]
    for name in only:
        if name not in names:
            raise Mistake(f"--only {name}: there is no such upstream; there are {', '.join(names)}")
    chosen = [upstream for upstream in found if not only or upstream.name in only]
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
    """Raises Mistake for a server that must not be put under load, or not with this plan."""
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
    """The requests of a capture, None without any file. Prints what is left out. Raises Mistake."""
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
EXPONENT = click.FloatRange(0, ZIPF_LIMIT)


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
@option("--zipf", type=EXPONENT, default=0, help="Popularity of resources: 1 for Zipf's law.")
@option("--check", type=click.Choice(["length", "hash"]), help="Check that contents stay the same.")
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
    flows = with_scenario(options) or options["operations"]
    captured = read_captured(options["capture"], options["capture_upstream"], options["with_tools"])
    try:
        check_together(options["find_max"])
        own = {field.name for field in attrs.fields(Plan)} & options.keys()
        given = {name: options[name] for name in own}
        plan = Plan(flows=flows, captured=captured, poisson=not options["even"], **given)
        check_together(options["assertions"])
        check_parts(options["assertions"], plan.operation_names())
    except InvalidValue as mistake:
        raise Mistake(str(mistake)) from None
    found, limits = find_targets(targets, only, upstreams, credentials)
    check_targets(found, plan, allow_remote=allow_remote)
    check_files(found, plan)
    old = read_old(options["compare"])
    files = {kind: options[kind] for kind in ("json", "csv", "html") if options[kind] is not None}
    check_writable(files.values())
    bench = Bench(found, plan, limits)
    run(bench.measure)
    raise click.exceptions.Exit(report(bench, files, old, options["assertions"]))


# A benchmark in a TOML file: options of the command line, and flows of several steps.
#
#     rate = "50..500/1m"
#     timeout = "5s"
#
#     [[flows]]                # one client takes these steps in turn
#     weight = 3
#     pause = "200ms"          # between them
#     steps = ["list tools", 'tool echo {"text": "{{n}}"}']

IN_FILE = (
    *("clients", "think", "rate", "even", "duration", "count", "warm_up", "timeout", "sessions"),
    *("connections", "in_flight", "zipf", "check", "revision", "seed", "find_max", "assert", "push"),
    "resources",
)
"""The options that a file may give."""


def with_scenario(options: dict[str, Any]) -> tuple[Flow, ...]:
    """The flows of the file. Its options fill in what is not given. Raises ConfigError with every mistake."""
    if options["scenario"] is None:
        return ()
    origin, _, document = read_document(options["scenario"], sys.stdin.buffer.read)
    report = Report(origin)
    context = click.get_current_context()
    parameters = {each.opts[0].removeprefix("--").replace("-", "_"): each for each in context.command.params}
    flows: list[Flow] = []
    for key, value in document.items():
        with _reported(report, (key,)):
            if key == "flows":
                if not isinstance(value, list):
                    raise InvalidValue(f"expected tables [[flows]], not {sort_of(value)}")
                for number, table in enumerate(value):
                    with _reported(report, (key, number)):
                        flows.append(_read_flow(table, (key, number), report))
            elif key not in IN_FILE:
                raise InvalidValue(suggest(key, [*IN_FILE, "flows"]))
            else:
                found = _read_option(parameters[key], value, context)
                name = str(parameters[key].name)
                if context.get_parameter_source(name) is ParameterSource.DEFAULT:
                    options[name] = found
    report.raise_if_any()
    return tuple(flows) if context.get_parameter_source("operations") is ParameterSource.DEFAULT else ()


@contextmanager
def _reported(report: Report, path: KeyPath) -> Iterator[None]:
    """A value that is not accepted in here becomes a mistake in the report."""
    try:
        yield
    except InvalidValue as mistake:
        report.add(path, str(mistake).partition("\n")[0])  # without the place in a condition


def _read_option(parameter: click.Parameter, value: object, context: click.Context) -> Any:
    """A value as the command line would take it."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return Flag().read(value)
    given: object = value
    if parameter.multiple:
        given = _read_texts(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
        given = f"{Decimal(str(value)):f}"
    elif not isinstance(value, str):
        raise invalid_value("text or a number", value)
    try:
        return parameter.type_cast_value(context, given)
    except click.ClickException as mistake:
        raise InvalidValue(mistake.message.removeprefix(f"{parameter.opts[0]}: ")) from None


def _read_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid_value("a list of texts", value)
    return tuple(value)


def _read_weight(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= 1e9:
        return float(value)
    raise InvalidValue("expected a number above 0")


FLOW_KEYS: dict[str, Callable[[object], Any]] = {
    "weight": _read_weight,
    "pause": Duration(off=True).read,
    "steps": _read_texts,
}


def _read_flow(table: object, place: KeyPath, report: Report) -> Flow:
    if not isinstance(table, Mapping):
        raise InvalidValue(f"expected a table, not {sort_of(table)}")
    if not table.get("steps"):
        report.add((*place, "steps"), 'missing; expected a list such as ["read", "list tools"]')
    found: dict[str, Any] = {"weight": 1.0, "pause": 0.0, "steps": ()}
    for key, item in table.items():
        with _reported(report, (*place, key)):
            if key not in FLOW_KEYS:
                raise InvalidValue(suggest(key, FLOW_KEYS))
            found[key] = FLOW_KEYS[key](item)
    steps = []
    for number, text in enumerate(found.pop("steps")):
        with _reported(report, (*place, "steps", number)):
            steps.append(parse_operation(text))
    return Flow(steps=tuple(steps), **found)
