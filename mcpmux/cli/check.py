"""`mcpmux check`: connect to every upstream, and report what is wrong, what is declared, and the cluster.

Promises: its account of 2026-07-28 clients is what `merge_capabilities` offers them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs
import click
import msgspec
import trio

from mcpmux.app import open_mux
from mcpmux.app.interceptors import try_each
from mcpmux.app.listeners import check_listeners
from mcpmux.app.mux import config_naming
from mcpmux.app.serving import NO_CLUSTER
from mcpmux.app.unmatched import MENDED, Listed, find_unmatched_names, list_names
from mcpmux.channels.channel import ignore_event
from mcpmux.cli import console
from mcpmux.cli.client.listing import KINDS
from mcpmux.cli.console import Columns, member, show_items, show_json
from mcpmux.cli.options import (
    complete_file_or_server,
    complete_server,
    load_config,
    quiet_option,
    split_config,
    upstream_json_option,
    upstream_option,
)
from mcpmux.cli.process import Mistake, run
from mcpmux.config import Config, Stdio
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.config.model import SAFE_VARIABLES, transport_of
from mcpmux.config.report import hint_at
from mcpmux.errors import ConfigError, RpcError
from mcpmux.mux.merge import DELIVERED, merge_capabilities
from mcpmux.mux.rewrite import Namespace
from mcpmux.mux.view import Selection, selection_of
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_items, raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.principal import ANYONE
from mcpmux.protocol.tasks import EXTENSION as TASKS
from mcpmux.protocol.tasks import offers_tasks
from mcpmux.upstreams.upstream import Upstream

if TYPE_CHECKING:
    from mcpmux.cluster.survey import Survey

# Capabilities that servers declare beyond the core of MCP, and which of them clients see.

EXTENSIONS: Final = "extensions"
EXPERIMENTAL: Final = "experimental"
CAPABILITIES: Final = "capabilities"
UI: Final = "io.modelcontextprotocol/ui"

TASKS_PASS: Final = (
    "in the form of the client's revision; tasks of modern servers are for modern clients only"
)
METHODS_STAY: Final = "methods of its own only pass if there is one server and it has no prefix"
UNKNOWN: Final = "mcpmux does not know this capability"
LEGACY_TASKS: Final = "only servers of 2026-07-28 can have it"
NO_OBJECT: Final = "its settings are not an object"
DIFFERENT: Final = "its servers have different settings for it"


class Extension(NamedTuple):
    """A capability that servers declare under `kind`. `told`: whether clients see it. `why`: the reason."""

    kind: str
    name: str
    servers: tuple[str, ...]
    told: bool
    why: str


def explain_extensions(servers: Mapping[str, ServerFacts], *, transparent: bool) -> list[Extension]:
    """Return all that the servers declare, by kind and name. `transparent`: the only server has no prefix."""
    merged = merge_capabilities(servers.values())
    declaring: dict[tuple[str, str], list[str]] = {}
    for server, facts in servers.items():
        for declared in dict.fromkeys(_declared(facts)):
            declaring.setdefault(declared, []).append(server)
    extensions = []
    for (kind, name), names in sorted(declaring.items()):
        is_announced = name in merged.get(kind, {})
        if kind == CAPABILITIES:
            why = UNKNOWN
        elif (kind, name) == (EXTENSIONS, TASKS):
            why = TASKS_PASS if is_announced else LEGACY_TASKS
        elif is_announced:
            why = "" if transparent or name == UI else METHODS_STAY
        else:
            settings = (servers[server].capabilities[kind][name] for server in names)
            why = DIFFERENT if any(isinstance(setting, dict) for setting in settings) else NO_OBJECT
        extensions.append(Extension(kind, name, tuple(names), is_announced, why))
    return extensions


def _declared(facts: ServerFacts) -> Iterator[tuple[str, str]]:
    """Yield kind and name. Tasks of older revisions count as the extension, in another form."""
    if offers_tasks(facts):
        yield EXTENSIONS, TASKS
    for capability, options in facts.capabilities.items():
        if capability in (EXTENSIONS, EXPERIMENTAL):
            yield from ((capability, name) for name in (options if isinstance(options, dict) else ()))
        elif capability not in DELIVERED and capability != "tasks":
            yield CAPABILITIES, capability


def _name(extension: Extension) -> str:
    return extension.name if extension.kind == EXTENSIONS else f"{extension.name} ({extension.kind})"


def _fate(extension: Extension) -> str:
    if not extension.told:
        return f"not told: {extension.why}"
    return f"told; {extension.why}" if extension.why else "told"


EXTENSION_COLUMNS: Columns = {
    "EXTENSION": _name,
    "SERVERS": lambda extension: ", ".join(extension.servers),
    "CLIENTS ARE": _fate,
}


# The cluster of the configuration.


def report_cluster(config: Config, *, as_json: bool) -> list[str]:
    """Print what is known of the cluster, if there is one. Returns its problems. Raises ConfigError."""
    if config.cluster.url is None:
        return []
    survey = run(look_at_cluster, config)
    if as_json:
        show_json(raw({"cluster": msgspec.to_builtins(survey)}))
    else:
        click.echo(printable(f"cluster: {survey}"))
    for warning in survey.warnings:
        click.echo(printable(f"warning: cluster: {warning}"), err=True)
    return [f"cluster: {problem}" for problem in survey.problems]


async def look_at_cluster(config: Config) -> Survey:
    """Survey the cluster that replicas with this configuration are. Raises ConfigError."""
    try:
        from mcpmux.cluster.redis_store import open_redis_store
        from mcpmux.cluster.seal import ClusterSeal
        from mcpmux.cluster.survey import survey
    except ImportError as error:
        raise ConfigError([f"{NO_CLUSTER} ({error})"]) from None
    async with open_redis_store(config.cluster) as store:
        return await survey(store, ClusterSeal.of(config))


# The facts about each upstream.

UNDECLARED_SECONDS = 5.0  # for the answer to a list that a server does not declare; some never answer

Finding = dict[str, Any]
"""The facts about one upstream, for people and machines. Unknown ones are left out."""


@click.command()
@click.argument("config", required=False, shell_complete=complete_file_or_server)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_server)
@upstream_option
@upstream_json_option
@click.option("--allow-anyone", is_flag=True, help="Do not report listeners without authentication.")
@quiet_option
def check(
    config: str | None,
    names: tuple[str, ...],
    upstreams: tuple[str, ...],
    as_json: bool,
    allow_anyone: bool,
) -> None:
    """Connect to every upstream, or to those called NAME, and report its state.

    CONFIG is a TOML or JSON file, - for standard input, or one server by its URL or its command line in
    quotes. The default is mcpmux.toml. The exit code is 0 if all enabled upstreams are ready and answer their
    lists, and clients get all that is in them. It is 2 if mcpmux would not start with CONFIG, because it has
    mistakes or lets strangers in.

    Items that the protocol does not allow are warnings, and so are lists that a server has but does not
    declare.

    ENV says which environment variables of mcpmux a program gets; see `inherit_env` in the configuration.

    A second table has the extensions that the servers declare, and experimental or unknown capabilities, with
    what clients see of them.

    Each interceptor is tried with a made-up exchange, and a line has its effect.

    With [cluster] the store is asked, too, and the replicas that are there are compared with each other and
    with CONFIG. One more line is about them.

    \b
    Examples:
      mcpmux check
      mcpmux check time notes
      mcpmux check --upstream web=https://example.com/mcp
      mcpmux check mcpmux.toml --json | jq -r 'select(.error) | .name'
    """
    if not upstreams:
        config, names = split_config(config, names)
    loaded = load_config(config, upstreams, allow_anyone=allow_anyone)
    all_names = [upstream.name for upstream in loaded.upstreams]
    for name in names:
        if name not in all_names:
            raise Mistake(f"NAME: there is no upstream `{name}`{hint_at(name, all_names)}")
    findings, extensions, warnings, tried = run(examine_all, loaded, names)
    console.show_items(findings, as_json, COLUMNS, {*COUNTS, "CONNECT"})
    if not as_json:
        if extensions:
            click.echo()
            show_items(extensions, False, EXTENSION_COLUMNS)
        for name, words in tried.items():
            click.echo(f"interceptor {printable(name)}: {printable(words)}")
    wrong = [
        f"{finding['name']}: {text}"
        for finding in findings
        for text in map(spoken, finding.get("problems", ()))
    ]
    for warning in (*loaded.notes, *wrong, *warnings):
        click.echo(f"warning: {printable(warning)}", err=True)
    problems = report_cluster(loaded, as_json=as_json)
    check_listeners(loaded)
    if bad := [finding["name"] for finding in findings if is_bad(finding)]:
        problems.insert(0, f"{len(bad)} of {len(findings)} upstreams have problems: {', '.join(bad)}")
    if problems:
        raise click.ClickException("\n  ".join(problems))


def alone(config: Config, names: Collection[str]) -> Config:
    """Return a configuration of these upstreams, without what names others."""
    chosen = [upstream for upstream in config.upstreams if upstream.name in names]
    upstreams = tuple(attrs.evolve(upstream, enabled=True) for upstream in chosen)
    limits = attrs.evolve(config.limits, rate=())
    return Config(upstreams=upstreams, limits=limits, merging=config.merging, redaction=config.redaction)


async def examine_all(
    config: Config, chosen: Collection[str]
) -> tuple[list[Finding], list[Extension], list[str], dict[str, str]]:
    """Examine the chosen upstreams, or all if none is chosen, at the same time.

    Findings in configuration order, what the servers declare beyond the core of MCP, warnings about names,
    what interceptors do.
    """
    connected = alone(config, chosen) if chosen else config
    waited_for, naming = list(connected.enabled), config_naming(connected)
    findings: dict[str, Finding] = {}
    listed: dict[str, Listed] = {}
    async with (
        console.show_activity(f"connecting to {len(waited_for)} upstreams") as activity,
        open_mux(connected) as mux,
    ):

        async def look_at(upstream: Upstream) -> None:
            selection = selection_of([upstream.config], naming)
            await examine(upstream, selection, findings, listed)
            waited_for.remove(upstream.name)
            if waited_for:
                others = f" and {len(waited_for) - 1} more" if len(waited_for) > 1 else ""
                text = f"{upstream.name} is {upstream.state}; waiting for {waited_for[0]}{others}"
                activity.report(len(findings), len(connected.enabled), text)

        async with trio.open_nursery() as nursery:
            for upstream in mux.upstreams.values():
                nursery.start_soon(look_at, upstream)
        interception = mux.router.interception
        tried = await try_each(config, interception.steps) if interception is not None else {}
        facts = {
            name: upstream.facts for name, upstream in mux.upstreams.items() if upstream.facts is not None
        }
    found = [
        findings.get(upstream.name) or describe(upstream, "disabled")
        for upstream in config.upstreams
        if not chosen or upstream.name in chosen
    ]
    names = {name: value.names for name, value in listed.items()}
    schemas = {name: value.schemas for name, value in listed.items()}
    extensions = explain_extensions(facts, transparent=Namespace(config.prefixes).transparent is not None)
    for finding in found:
        own = [each for each in extensions if finding["name"] in each.servers]
        if own:
            finding["extensions"] = [
                {"kind": each.kind, "name": each.name, "told": each.told, "why": each.why} for each in own
            ]
    warnings = [
        *find_unmatched_names(
            config, {name: names[name] for name in names if name in config.enabled}, schemas
        ),
        *naming.find_long(names),
    ]
    return found, extensions, warnings, tried


async def examine(
    upstream: Upstream, selection: Selection | None, findings: dict[str, Finding], listed: dict[str, Listed]
) -> None:
    """Find out about one upstream, and what it lists. `selection`: what its table selects."""
    await upstream.supervision.settled()
    facts, status = upstream.facts, upstream.status
    if facts is None:
        findings[upstream.name] = describe(upstream.config, status.state, error=status.trouble_in_full)
        return
    counts: dict[str, int] = {}
    problems: list[dict[str, str]] = []
    error = None
    try:
        listed[upstream.name] = await list_names(upstream)
        for kind, texts in listed[upstream.name].texts.items():
            counts[kind] = len(texts)
            if selection is not None:
                method = KINDS[kind].method
                shown = (selection.decide(ANYONE, upstream.name, method, text) for text in texts)
                counts[kind] = sum(decision.allowed for decision in shown)
        problems = [*listed[upstream.name].problems, *await find_undeclared(upstream)]
    except RpcError as failure:
        error = failure.in_full
    seconds = upstream.status.connect_seconds
    findings[upstream.name] = describe(
        upstream.config,
        upstream.state,
        revision=facts.revision,
        capabilities=sorted(facts.capabilities) or None,
        counts=counts or None,
        connectSeconds=None if seconds is None else round(seconds, 3),
        error=error,
        problems=problems or None,
        note=note_on(upstream),
    )


async def find_undeclared(upstream: Upstream) -> list[dict[str, str]]:
    """Ask once for each list that the server does not declare, and return those that are not empty."""
    found: list[dict[str, str]] = []
    facts = upstream.facts

    async def look(kind: str, method: str) -> None:
        capability, items = m.LISTS[method].capability, m.LISTS[method].items
        with trio.move_on_after(UNDECLARED_SECONDS), suppress(RpcError, ValueError):
            result = await upstream.exchange(Call(method, {}, {}), ignore_event)
            count = len(decode_items(result.get(items, raw([]))))
            if count:
                problem = f"the server has {count} but does not declare the capability `{capability}`"
                found.append({"list": kind, "problem": problem, "fate": "hidden"})

    async with trio.open_nursery() as nursery:
        for kind, (method, _, _) in KINDS.items():
            if facts is not None and not facts.offers(m.LISTS[method].capability) and kind != "templates":
                nursery.start_soon(look, kind, method)
    return sorted(found, key=itemgetter("list"))


def spoken(problem: dict[str, str]) -> str:
    """Return a sentence about a problem of a list or of an item."""
    place = " ".join(filter(None, (problem["list"], problem.get("item"))))
    return f"{place}: {problem['problem']} ({problem['fate']})"


def is_bad(finding: Finding) -> bool:
    """Return whether an upstream is not ready, or clients do not get all that it lists."""
    fates = {problem["fate"] for problem in finding.get("problems", ())}
    return "error" in finding or bool(fates - {MENDED})


def describe(upstream: UpstreamConfig, state: str, **found: Any) -> Finding:
    """Return the finding about an upstream: what its configuration says, and what was `found`."""
    about: Finding = {
        "name": upstream.name,
        "state": state,
        "transport": transport_of(upstream.target),
        "target": upstream.target.display,
    }
    if isinstance(upstream.target, Stdio):
        inherited = upstream.target.inherited
        about["inheritEnv"] = True if inherited is None else list(inherited)
    return about | {key: value for key, value in found.items() if value is not None}


def note_on(upstream: Upstream) -> str | None:
    """Return how the server violates its revision of the protocol; None if it does not."""
    if not upstream.unasked_logs:
        return None
    fate = "they pass" if upstream.space.transparent else "they are dropped"
    return f"sends log messages to requests that name no logLevel ({upstream.unasked_logs}): {fate}"


def _details(finding: Finding) -> str:
    """Return the error, or the capabilities, and the note."""
    details = finding.get("error") or ", ".join(finding.get("capabilities", ()))
    return "; ".join(filter(None, (details, finding.get("note"))))


def _count(kind: str, finding: Finding) -> Any:
    return finding.get("counts", {}).get(kind)


def _inheritance(finding: Finding) -> str | None:
    """Return which environment variables of mcpmux the program gets."""
    names = finding.get("inheritEnv")
    if names is None or names is True:
        return None if names is None else "all"
    return "safe" if names == list(SAFE_VARIABLES) else f"{len(names)} named"


COUNTS: Columns = {kind.upper(): partial(_count, kind) for kind in KINDS}
COLUMNS: Columns = {
    "NAME": itemgetter("name"),
    "STATE": lambda found: console.state_cell(found["state"], is_wrong="error" in found),
    "VIA": itemgetter("transport"),
    "REVISION": member("revision"),
    **COUNTS,
    "CONNECT": member("connectSeconds", "{:.2f} s".format),
    "ENV": _inheritance,
    "DETAILS": _details,
}
