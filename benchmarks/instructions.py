"""Sections: the cost of an exchange through mcpmux, counted instead of timed.

Instructions are counted at CONNECTIONS clients with a request each, which is how a busy mcpmux works; system
calls with one client, where no two exchanges can share one. Upstreams and clients run beside it, uncounted.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from benchmarks.asking import Client, check_text, decode, encode, params_of
from benchmarks.bench import QUIET, UPSTREAMS, Bench, mux_command
from benchmarks.counting import (
    READY_SECONDS,
    RECEIVES,
    SENDS,
    WAITS,
    Prepare,
    count_calls,
    count_instructions,
)
from benchmarks.naming import (
    ADMIN,
    AUDIT,
    CALL,
    CAPTURE,
    READ,
    Load,
    exposed_subjects,
    http_config,
    stdio_config,
    stdio_upstream,
)
from benchmarks.process import Child, MeasurementFailed, cores, open_store
from benchmarks.rates import FRESH
from benchmarks.report import markdown
from benchmarks.upstream import LEGACY

T = TypeVar("T")

CONNECTIONS = 16
WARM_UP_ROUNDS = 10  # everything that is done once is done, and what can be remembered is
ROUNDS = 40  # that count
SETTLE_SECONDS = 12  # a lease, in which a replica caches nothing, as others may not know it yet
UNCOMPRESSED = f"{CAPTURE}compress = false\n"


class Scenario(NamedTuple):
    """An exchange whose cost is counted. `settings` are put before the upstreams' in the configuration.

    With `{store}` in them there is a Redis. `upstream`: options of the upstreams; `stdio`: there is one,
    which mcpmux starts. `started`: a client has started mcpmux, and asks over its standard input. `below` is
    put behind the path of its URL.
    """

    name: str
    load: Load = READ
    settings: str = ""
    upstream: Sequence[str] = ()
    stdio: bool = False
    started: bool = False
    below: str = ""


MODERN_READ = Scenario("read 1 KB, modern")
LEGACY_READ = Scenario("read 1 KB, legacy", READ._replace(era=LEGACY))
TOOL_CALL = Scenario("call a tool", CALL)
LEGACY_CALL = Scenario("call a tool, legacy", TOOL_CALL.load._replace(era=LEGACY))
STREAMED_CALL = LEGACY_CALL._replace(
    name="call a tool, legacy, answers in event streams", upstream=["--streams"]
)
CACHE_HIT = Scenario("read 1 KB, remembered", READ._replace(subjects=READ.subjects[:1]), "", [FRESH])
VIEW = '[views.most]\nexclude = [{{ kind = "prompts", name = "*hidden*" }}]\n'
VIEW_PATH = "/most"
VIEW_READ = MODERN_READ._replace(name="read 1 KB, modern, in a view", settings=VIEW, below=VIEW_PATH)
LEGACY_VIEW_READ = LEGACY_READ._replace(name="read 1 KB, legacy, in a view", settings=VIEW, below=VIEW_PATH)
VIEW_CALL = TOOL_CALL._replace(name="call a tool, in a view", settings=VIEW, below=VIEW_PATH)
CLUSTER = """[merging]
cursor_key = "benchmark of a cluster"
[cluster]
url = "redis://127.0.0.1:{store}"
timeout = "5s"
lease = "10s"
"""
CLUSTER_READ = MODERN_READ._replace(name="read 1 KB, modern, in a cluster", settings=CLUSTER)
LEGACY_CLUSTER_READ = LEGACY_READ._replace(name="read 1 KB, legacy, in a cluster", settings=CLUSTER)
CLUSTER_CALL = TOOL_CALL._replace(name="call a tool, in a cluster", settings=CLUSTER)
STDIO_READ = Scenario("read 1 KB, stdio upstream", stdio=True)
STDIO_CLIENT_READ = Scenario("read 1 KB, stdio client, stdio upstream", stdio=True, started=True)
SCENARIOS = (
    MODERN_READ,
    LEGACY_READ,
    TOOL_CALL,
    LEGACY_CALL,
    STREAMED_CALL,
    MODERN_READ._replace(name="read 1 KB, modern, full capture", settings=UNCOMPRESSED),
    MODERN_READ._replace(name="read 1 KB, modern, audit log", settings=AUDIT),
    MODERN_READ._replace(name="read 1 KB, modern, admin listener", settings=ADMIN),
    LEGACY_READ._replace(name="read 1 KB, legacy, full capture", settings=UNCOMPRESSED),
    TOOL_CALL._replace(name="call a tool, full capture", settings=UNCOMPRESSED),
    CACHE_HIT,
    VIEW_READ,
    LEGACY_VIEW_READ,
    VIEW_CALL,
    CLUSTER_READ,
    LEGACY_CLUSTER_READ,
    CLUSTER_CALL,
    STDIO_READ,
    STDIO_CLIENT_READ,
)


class Cost(NamedTuple):
    """Cost of one exchange: instructions, and system calls by name."""

    scenario: Scenario
    instructions: float
    calls: Counter[str]
    exchanges: int  # that `calls` are of

    def each(self, names: frozenset[str]) -> float:
        """Return the calls with these names in one exchange."""
        return sum(self.calls[name] for name in names) / self.exchanges


@contextmanager
def asking_in_rounds(
    url: str, load: Load, subjects: Sequence[str], connections: int, rounds: int
) -> Iterator[Callable[[], None]]:
    """Yield the work of so many rounds: each client sends a request, then each gets its answer.

    Everything is warm. Raises MeasurementFailed.
    """
    turns = itertools.cycle(subjects)
    with ExitStack() as stack:
        clients = [Client(url, load.era) for _ in range(connections)]
        for client in clients:
            stack.callback(client.close)
            client.open()

        def ask(count: int) -> None:
            for _ in range(count):
                for client in clients:
                    client.send(load.method, next(turns))
                for client in clients:
                    check_text(client.receive(), load.size)

        ask(WARM_UP_ROUNDS)
        yield lambda: ask(rounds)


def instructions_of(scenario: Scenario, rounds: int = ROUNDS) -> float:
    """Count the instructions of mcpmux for one exchange. Raises MeasurementFailed."""
    with _configured(scenario) as config:
        prepare = _asker(scenario, CONNECTIONS, rounds)
        total = _count(count_instructions, scenario, config, prepare)
    return total / (rounds * CONNECTIONS)


def calls_of(scenario: Scenario, rounds: int = ROUNDS) -> Counter[str]:
    """Count the system calls of mcpmux for so many exchanges, in turn. Raises like `instructions_of`."""
    with _configured(scenario) as config:
        return _count(count_calls, scenario, config, _asker(scenario, 1, rounds))


def cost_of(scenario: Scenario) -> Cost:
    """Measure the instructions and the calls of a scenario."""
    return Cost(scenario, instructions_of(scenario), calls_of(scenario), ROUNDS)


class Lines:
    """A client that has started mcpmux and asks in rounds: so many requests at once, then their answers."""

    def __init__(self, mux: Child, load: Load, window: int) -> None:
        params = params_of(load.method, exposed_subjects(load, 1)[0])
        self._mux = mux
        self._size = load.size
        self._lines = {
            number: encode(load.era, load.method, params, number) + b"\n" for number in range(window)
        }
        self._rest = b""

    def __repr__(self) -> str:
        return f"<Lines to {self._mux!r}>"

    def rounds(self, count: int) -> None:
        """Ask so many times. Raises MeasurementFailed."""
        for _ in range(count):
            self._mux.send(b"".join(self._lines.values()))
            waiting = set(self._lines)
            while waiting:
                data = self._mux.receive(READY_SECONDS)
                if not data:
                    raise MeasurementFailed(f"{self._mux!r} sends nothing more")
                *answers, self._rest = (self._rest + data).split(b"\n")
                for answer in answers:
                    response = decode(answer, waiting)
                    check_text(response.result, self._size)
                    waiting.remove(response.id)


def _count(
    count: Callable[[Sequence[str], int, str | None, Prepare], T],
    scenario: Scenario,
    config: str,
    prepare: Prepare,
) -> T:
    """Count what mcpmux does, with its configuration on standard input unless its client is there."""
    if not scenario.started:
        return count(mux_command(), cores()[0], config, prepare)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mcpmux.toml"
        path.write_text(config)
        return count(["mcpmux", "serve", str(path), "--stdio", *QUIET], cores()[0], None, prepare)


def _asker(scenario: Scenario, connections: int, rounds: int) -> Prepare:
    @contextmanager
    def prepare_lines(mux: Child) -> Iterator[Callable[[], None]]:
        Lines(mux, scenario.load, 1).rounds(1)  # it has started
        lines = Lines(mux, scenario.load, connections)
        lines.rounds(WARM_UP_ROUNDS)
        yield lambda: lines.rounds(rounds)

    if scenario.started:
        return prepare_lines

    @contextmanager
    def prepare(mux: Child) -> Iterator[Callable[[], None]]:
        (url,) = mux.lines(1, READY_SECONDS)
        if scenario.settings == CLUSTER:
            time.sleep(SETTLE_SECONDS)
        subjects = exposed_subjects(scenario.load, 1 if scenario.stdio else UPSTREAMS)
        with asking_in_rounds(url + scenario.below, scenario.load, subjects, connections, rounds) as work:
            yield work

    return prepare


@contextmanager
def _configured(scenario: Scenario) -> Iterator[str]:
    """Yield mcpmux's configuration for a scenario, whose upstreams run meanwhile."""
    core = cores()[1]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        store = stack.enter_context(open_store(folder)) if "{store}" in scenario.settings else 0
        settings = scenario.settings.format(folder=folder, store=store)
        if scenario.stdio:
            yield settings + stdio_config(stdio_upstream(core))
            return
        arguments = ["benchmarks.upstream", *["--port=0"] * UPSTREAMS, "--era", scenario.load.era]
        with Child([*arguments, *scenario.upstream], core) as upstream:
            yield settings + http_config(upstream.lines(UPSTREAMS))


HEAD = ("one exchange", "instructions", "receives", "sends", "waits", "other calls")


def table(costs: Sequence[Cost]) -> str:
    """Return the costs as a Markdown table."""
    return markdown(HEAD, map(_line, costs))


def counted(bench: Bench) -> str:
    """Count every exchange, and return the table. Raises MeasurementFailed."""
    costs = []
    for scenario in SCENARIOS:
        bench.note(f"counting: {scenario.name}")
        costs.append(cost_of(scenario))
    return table(costs)


def _line(cost: Cost) -> Sequence[str]:
    receives, sends, waits = (cost.each(names) for names in (RECEIVES, SENDS, WAITS))
    others = cost.calls.total() / cost.exchanges - receives - sends - waits
    numbers = (f"{number:.1f}" for number in (receives, sends, waits, others))
    return cost.scenario.name, f"{cost.instructions:,.0f}", *numbers
