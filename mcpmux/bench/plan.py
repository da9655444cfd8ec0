"""The plan of a benchmark: its settings, all defaults, and which parts go together. Pure.

A session is one conversation (a process, a socket, an HTTP session), a connection one socket. Over HTTP each
request in flight takes a connection; all other transports carry any number of requests over the one
connection that a session is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin
from urllib.parse import urlsplit

import attrs
from attrs import Factory, field, frozen

from mcpmux.bench.assertion import OF_RUN, Assertion, check_parts, check_together, parse_assertion
from mcpmux.bench.operation import Operation, matches, parse_operation
from mcpmux.bench.schedule import Profile, parse_rate
from mcpmux.bench.workload import CapturedLoad, Flow, parse_flow
from mcpmux.config import Http, Missing, Stdio, Tcp, Unix, Upstream
from mcpmux.config.listener import is_loopback
from mcpmux.config.model import transport_of
from mcpmux.config.reading import find_scalar, read_document, structure
from mcpmux.config.report import InvalidValue, suggest
from mcpmux.config.scalars import Choice, Duration, Flag, Scalar, Seconds, Text, Whole
from mcpmux.errors import ConfigError, Problem
from mcpmux.hosts.document import with_lines
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.revisions import SUPPORTED

SEARCH_SECONDS = 3600.0  # a search has no fixed end, but some 20 rates

CLIENTS = 8  # of the closed model
IN_FLIGHT = 256  # of the open model
SECONDS = 10.0
COUNT = 1_000_000  # turns: the default limit should not be reached in a short run
GRACE_SECONDS = 5.0
PLACES_LIMIT = 10_000  # of clients, sessions and connections
RUNS_LIMIT = 100
FAR = 10**15  # as far as whole numbers go in a scenario
CHECKS = ("length", "hash")
DEFAULT_LISTS = ("tools", "prompts", "resources")  # the first that a server without resources offers


Places: TypeAlias = Annotated[int, Whole(1, PLACES_LIMIT)]
Condition: TypeAlias = Annotated[Assertion, Text(make=parse_assertion)]


class Rate(Text, frozen=True):
    """A rate as on the command line, or a number."""

    def read(self, value: object) -> Any:
        """See Text."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().read(f"{Decimal(str(value)):f}" if is_number else value)


class Look(NamedTuple):
    """The look of a setting on the command line. `option`: its name there, if it is not its key."""

    help: str
    metavar: str = ""
    option: str | None = None


@frozen(kw_only=True)
class LoadSettings:
    """The settings of a load. Each is an option of the command line, and a key of a scenario in TOML.

    rate = "50..500/1m"
    timeout = "5s"

    [[flows]]                # one client takes these steps in turn
    weight = 3
    pause = "200ms"          # between them
    steps = ["list tools", 'tool echo {"text": "{{n}}"}']
    """

    flows: Annotated[tuple[Flow, ...], Look("An operation to ask for; see above.", "OPERATION", "--do")] = ()
    clients: Annotated[Places, Look(f"Closed model: number of clients. Default {CLIENTS}.")] | None = None
    think: Annotated[float, Duration(off=True), Look("Pause of a client after each response.")] = 0.0
    rate: (
        Annotated[str, Rate(), Look("Open model: requests a second, whatever the server does.", "RATE")]
        | None
    ) = None
    even: Annotated[bool, Flag(), Look("Send at even intervals, not at random ones (Poisson).")] = False
    duration: Annotated[Seconds, Look(f"Time to measure. Default {SECONDS:g}s.")] | None = None
    count: Annotated[int, Whole(1, FAR), Look(f"Most requests to send. Default {COUNT:,}.")] | None = None
    warm_up: Annotated[float, Duration(off=True), Look("Time before measuring.")] = 1.0
    timeout: Annotated[Seconds, Look("Time for a response.")] = 10.0
    runs: Annotated[int, Whole(1, RUNS_LIMIT), Look("Runs of each target, in turns.")] = 1
    sessions: Annotated[Places, Look("Number of MCP sessions.")] = 1
    connections: Annotated[Places, Look("HTTP connections. Default: one for each in flight.")] | None = None
    in_flight: Annotated[Places, Look(f"Most requests in flight. With --rate {IN_FLIGHT}.")] | None = None
    find_max: Annotated[tuple[Condition, ...], Look("Find the highest rate at which it holds.", "COND")] = ()
    push: (
        Annotated[
            Operation,
            Text(make=parse_operation),
            Look("Change a resource by it: how soon do all sessions hear?", "OPERATION"),
        ]
        | None
    ) = None
    resources: Annotated[Places, Look("Number of resources for --push.")] = 1
    assert_: Annotated[tuple[Condition, ...], Look("Exit with code 1 if it does not hold.", "COND")] = ()
    abort_on_fail: Annotated[
        bool, Flag(), Look("End as soon as an upper limit of an --assert is passed.")
    ] = False
    check: Annotated[str, Choice(CHECKS), Look("Check that contents stay the same.")] | None = None
    revision: Annotated[str, Choice(SUPPORTED), Look("Speak this revision. Default: the newest.")] | None = (
        None
    )
    seed: Annotated[int, Whole(-FAR, FAR), Look("The same seed sends the same requests.")] = 1


class Setting(NamedTuple):
    """A field of LoadSettings. `scalar`: how it is read, or each of `several` values; None for flows."""

    name: str
    type: Any
    default: Any
    scalar: Scalar | None
    several: bool
    look: Look

    @classmethod
    def of(cls, attribute: attrs.Attribute[Any]) -> Setting:
        """Return the setting that a field declares."""
        type_, scalar = find_scalar(attribute.type)
        value, *metadata = get_args(type_)
        several = get_origin(value) is tuple
        if several:
            _, scalar = find_scalar(get_args(value)[0])
        look = next(item for item in metadata if isinstance(item, Look))
        return cls(attribute.name, attribute.type, attribute.default, scalar, several, look)


SETTINGS = {
    attribute.name.rstrip("_"): Setting.of(attribute)
    for attribute in attrs.fields(attrs.resolve_types(LoadSettings))
}
"""Key of a scenario -> its setting."""


@frozen(kw_only=True)
class Plan(LoadSettings):
    """A benchmark of one target: what is asked, how much, over how many sessions and connections.

    `clients` or `rate` says which model it is: in the open one `profile` has the arrivals. `count`: most
    turns after the warm-up. `check`: `length` or `hash` of what is read, or None. Times in seconds.
    `find_max`: look for the highest rate at which these hold, beginning with `rate`. `push`: what changes a
    resource; then `sessions` are told of the changes of the first `resources` resources. `captured`: what is
    asked instead of flows. `runs`: how often each target is measured.
    """

    captured: CapturedLoad | None = None
    profile: Profile | None = field(
        default=Factory(
            lambda plan: None if plan.rate is None else parse_rate(plan.rate, plan.duration or SECONDS),
            takes_self=True,
        )
    )

    def __attrs_post_init__(self) -> None:
        check_together(self.find_max)
        for wrong, text in self._mistakes():
            if wrong:
                raise InvalidValue(text)
        check_together(self.assert_)
        check_parts(self.assert_, self.operation_names())

    def _mistakes(self) -> Iterator[tuple[object, str]]:
        """Yield whether parts do not go together, and what to do about it."""
        rate, profile, push = self.rate or "", self.profile or (), self.push
        clients, captured = self.clients is not None, self.captured is not None
        yield rate and clients, "a rate and a number of clients exclude each other: arrivals need no clients"
        yield rate and self.think, "think time belongs to clients; at a rate nobody thinks"
        own = "/" in rate and self.duration is not None
        yield own, "the rate says itself how long it takes; leave the duration out"
        yield self.abort_on_fail and not self.assert_, "--abort-on-fail: needs an --assert"
        yield captured and self.flows, "a capture says what is asked: leave operations and flows out"
        if self.find_max:
            odd = [each.text for each in self.find_max if each.part is not None or each.measure in OF_RUN]
            yield odd, f"{''.join(odd[:1])}: a search looks at all requests together"
            yield push, "a search for the highest rate and pushes are two measurements"
            yield self.runs > 1, "a search tries each rate several times itself: leave the runs out"
            yield clients or self.think, "a search looks for a rate: leave clients and think time out"
            changes = len(profile) > 1 or any(ramp.first != ramp.last for ramp in profile)
            yield changes, "a search begins with one rate: write a single number"
        if push is not None:
            yield captured, "pushes make their own changes: leave the capture out"
            yield rate or clients, "changes are made one after another: leave rate and clients out"
            same = self.resources > 1 and (push.arguments is None or not push.arguments.needs_uri)
            yield same, "with several resources the change has to say which one: put {{uri}} in its arguments"
            others = any(step.verb != "subscribe" for flow in self.flows for step in flow.steps)
            yield others, "with pushes the only other operation is `subscribe GLOB`, which says of what"

    @property
    def workers(self) -> int:
        """Most requests in flight."""
        if self.profile is None and not self.find_max:
            clients = CLIENTS if self.clients is None else self.clients
            return clients if self.in_flight is None else min(clients, self.in_flight)
        return IN_FLIGHT if self.in_flight is None else self.in_flight

    @property
    def measured(self) -> float:
        """Seconds that are measured, after the warm-up."""
        if self.profile is None:
            return self.duration or SECONDS
        return math.fsum(ramp.seconds for ramp in self.profile)

    @property
    def grace(self) -> float:
        """Seconds that answers are waited for after that."""
        return min(GRACE_SECONDS, self.timeout)

    @property
    def longest(self) -> float:
        """Seconds that it may take at most, from the first request on."""
        return SEARCH_SECONDS if self.find_max else self.warm_up + self.measured + self.grace

    def connections_each(self, upstream: Upstream) -> int:
        """Return the connections that each session may have. Raises InvalidValue if that is impossible."""
        if self.push is not None:
            return 2  # a listen, and a request
        sessions, workers, connections = self.sessions, self.workers, self.connections
        if sessions > workers:
            raise InvalidValue(f"{sessions} sessions need as many requests in flight or clients at least")
        if not isinstance(upstream.target, Http):
            if connections not in (None, sessions):
                advice = "a session is a connection: leave --connections out, use --sessions"
                raise InvalidValue(f"over {transport_of(upstream.target)} {advice}")
            return 1
        if connections is None:
            return -(-workers // sessions)
        if connections < sessions:
            raise InvalidValue(f"{sessions} sessions need as many connections at least")
        if connections < workers and self.in_flight is not None:
            raise InvalidValue(f"over HTTP {workers} requests in flight need as many connections")
        return -(-connections // sessions)

    def settings(self) -> dict[str, object]:
        """Return the settings that have to be equal in two runs to compare."""
        same = ("rate", "think", "sessions", "connections", "check")
        return {
            "flows": [[flow.weight, flow.pause, *(step.text for step in flow.steps)] for flow in self.flows],
            "captured": self.captured.fingerprint() if self.captured is not None else None,
            "clients": None if self.rate is not None else self.workers,
            "poisson": not self.even if self.rate is not None else None,
            "in_flight": self.workers,
            "find_max": [condition.text for condition in self.find_max],
            "push": self.push.text if self.push is not None else None,
            "resources": self.resources if self.push is not None else None,
            **{name: getattr(self, name) for name in same},
        }

    def describe(self) -> str:
        """Return the load in one line, for people."""
        places = f"at most {self.workers} in flight"
        if self.find_max:
            model = f"the highest rate with {' and '.join(condition.text for condition in self.find_max)}"
        elif self.rate is not None:
            rate = f"arrivals at {self.rate}" if "/" in self.rate else f"{self.rate} a second"
            model = f"{rate}, {'even' if self.even else 'Poisson'}"
        elif self.push is not None:
            model, places = f"`{self.push.text}`", f"{self.sessions} subscribers, {self.resources} resources"
        else:
            think = f", {self.think:g} s of thought" if self.think else ""
            model = f"{self.workers} clients{think}"
            places = "1 session" if self.sessions == 1 else f"{self.sessions} sessions"
        if self.captured is not None:
            model = f"{len(self.captured.order):,} captured requests in turn, {model}"
        return f"{model}, {places}"

    def operation_names(self) -> list[str]:
        """Return the names of all operations that the results may have."""
        if self.captured is not None:
            return self.captured.names
        if self.push is not None:
            return [self.push.name]
        if self.flows:
            return sorted({step.name for flow in self.flows for step in flow.steps})
        return ["read", *(f"list {capability}" for capability in DEFAULT_LISTS)]


def default_flows(push: Operation | None, facts: ServerFacts, uris: tuple[str, ...]) -> tuple[Flow, ...]:
    """Return the default requests for a server: reads, or else a list. Raises InvalidValue."""
    if push is not None:
        return (parse_flow("subscribe"),)
    if uris:
        return (parse_flow("read"),)
    for capability in DEFAULT_LISTS:
        if facts.offers(capability):
            return (parse_flow(f"list {capability}"),)
    raise InvalidValue("it has neither resources nor tools nor prompts: say with --do what to ask of it")


def choose_uris(flows: Sequence[Flow], uris: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the first `count` resources that the `subscribe` of the flows is about. Raises InvalidValue."""
    globs = [step.subject or "*" for flow in flows for step in flow.steps]
    matching = [uri for uri in uris if any(matches(glob, uri) for glob in globs)]
    if len(matching) < count:
        raise InvalidValue(f"the server lists {len(matching)} such resources, not {count}")
    return tuple(matching[:count])


def is_remote(upstream: Upstream) -> bool:
    """Return whether load on it may leave this machine: names other than `localhost` are not looked up."""
    target = upstream.target
    if isinstance(target, Stdio | Unix | Missing):
        return False
    return not is_loopback(target.host if isinstance(target, Tcp) else urlsplit(target.url).hostname or "")


def read_scenario(file: str, stdin: Callable[[], bytes]) -> dict[str, Any]:
    """Return the settings in a file, `stdin()` for "-", by name. Raises ConfigError with every mistake."""
    source = read_document(file, stdin)
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, raw in source.table.items():
        if key not in SETTINGS:
            problems.append(Problem((key,), suggest(key, SETTINGS)))
            continue
        values[SETTINGS[key].name], mistakes = structure(SETTINGS[key].type, raw)
        # The place in a condition takes further lines.
        short = (mistake._replace(text=mistake.text.partition("\n")[0]) for mistake in mistakes)
        problems += [mistake.under(key) for mistake in short]
    if problems:
        raise with_lines(ConfigError(problems, source.origin), source)
    return values
