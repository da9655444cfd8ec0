"""`python -m benchmarks.instructions`: what an exchange through mcpmux costs, counted instead of timed.

Instructions are counted at CONNECTIONS clients with a request each, which is how a busy mcpmux works; system
calls with one client, where no two exchanges can share one. Upstreams and clients run beside it, uncounted.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import click

from benchmarks.asking import Client, check_text, decode, encode, params_of
from benchmarks.bench import QUIET, UPSTREAMS, mux_command
from benchmarks.compiled import measure_compiled
from benchmarks.counting import (
    READY_SECONDS,
    RECEIVES,
    SENDS,
    WAITS,
    Prepare,
    count_calls,
    count_instructions,
)
from benchmarks.naming import READ, Load, exposed_subjects, http_config, stdio_config
from benchmarks.process import Child, MeasurementFailed
from benchmarks.rates import FRESH
from benchmarks.upstream import LEGACY, TOOL
from mcpmux.protocol import method as m

T = TypeVar("T")

CONNECTIONS = 16
WARM_UP_ROUNDS = 10  # everything that is done once is done, and what can be remembered is
ROUNDS = 40  # that count
SETTLE_SECONDS = 12  # a lease, in which a replica caches nothing, as others may not know it yet
CAPTURE = '[capture]\nlevel = "full"\ndirectory = "{folder}/capture"\ncompress = false\n'
AUDIT = '[audit]\ndirectory = "{folder}/audit"\n'
ADMIN = "[admin]\nport = 0\n"


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
TOOL_CALL = Scenario("call a tool", READ._replace(method=m.TOOLS_CALL, subjects=[TOOL]))
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
    MODERN_READ._replace(name="read 1 KB, modern, full capture", settings=CAPTURE),
    MODERN_READ._replace(name="read 1 KB, modern, audit log", settings=AUDIT),
    MODERN_READ._replace(name="read 1 KB, modern, admin listener", settings=ADMIN),
    LEGACY_READ._replace(name="read 1 KB, legacy, full capture", settings=CAPTURE),
    TOOL_CALL._replace(name="call a tool, full capture", settings=CAPTURE),
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


class Asking:
    """Clients that ask in rounds: each sends a request, then each gets its answer. Made by `open_asking`."""

    def __init__(self, clients: Sequence[Client], load: Load, subjects: Sequence[str]) -> None:
        self._clients = clients
        self._load = load
        self._subjects = itertools.cycle(subjects)

    def __repr__(self) -> str:
        return f"<Asking with {len(self._clients)} clients>"

    def rounds(self, count: int) -> None:
        """Ask so many times over every connection. Raises MeasurementFailed."""
        for _ in range(count):
            for client in self._clients:
                client.send(self._load.method, next(self._subjects))
            for client in self._clients:
                check_text(client.receive(), self._load.size)


@contextmanager
def asking_in_rounds(
    url: str, load: Load, subjects: Sequence[str], connections: int, rounds: int
) -> Iterator[Callable[[], None]]:
    """Yield the work of so many rounds, everything being warm. Raises MeasurementFailed."""
    with ExitStack() as stack:
        clients = []
        for _ in range(connections):
            client = Client(url, load.era)
            stack.callback(client.close)
            clients.append(client.open())
        asking = Asking(clients, load, subjects)
        asking.rounds(WARM_UP_ROUNDS)
        yield lambda: asking.rounds(rounds)


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
        return count(mux_command(), _cores()[0], config, prepare)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mcpmux.toml"
        path.write_text(config)
        return count(["mcpmux", "serve", str(path), "--stdio", *QUIET], _cores()[0], None, prepare)


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
    core = _cores()[-1]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        store = stack.enter_context(open_store(folder)) if "{store}" in scenario.settings else 0
        settings = scenario.settings.format(folder=folder, store=store)
        if scenario.stdio:
            command = [sys.executable, "-m", "benchmarks.upstream", "--stdio", f"--core={core}"]
            yield settings + stdio_config(command)
            return
        arguments = ["benchmarks.upstream", *["--port=0"] * UPSTREAMS, "--era", scenario.load.era]
        with Child([*arguments, *scenario.upstream], core) as upstream:
            yield settings + http_config(upstream.lines(UPSTREAMS))


@contextmanager
def open_store(folder: str) -> Iterator[int]:
    """Run a Redis that keeps nothing on disk, and yield its port. Raises FileNotFoundError without Redis."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def table(costs: Sequence[Cost]) -> str:
    """Return the costs as a Markdown table."""
    lines = [
        "| one exchange | instructions | receives | sends | waits | other calls |",
        "| --- |" + " --: |" * 5,
    ]
    for cost in costs:
        receives, sends, waits = (cost.each(names) for names in (RECEIVES, SENDS, WAITS))
        others = cost.calls.total() / cost.exchanges - receives - sends - waits
        numbers = (f"{receives:.1f}", f"{sends:.1f}", f"{waits:.1f}", f"{others:.1f}")
        lines.append(f"| {cost.scenario.name} | {cost.instructions:,.0f} | {' | '.join(numbers)} |")
    return "\n".join(lines)


@click.command()
@click.option("--compiled", is_flag=True, help="Compile mcpmux first. Needs a C compiler.")
def main(compiled: bool) -> None:
    """Count what an exchange through mcpmux costs: instructions and system calls."""
    if compiled:
        measure_compiled()
    costs = []
    for scenario in SCENARIOS:
        click.echo(scenario.name, err=True)
        costs.append(cost_of(scenario))
    click.echo(table(costs))


if __name__ == "__main__":
    main()
