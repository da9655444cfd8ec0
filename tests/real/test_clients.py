"""Real clients of each revision in front of real servers of each revision, with and without mcpmux.

A client takes the same walk directly, through an mcpmux in front of one server alone, and through one in
front of all servers. What may differ stands in `differences.py`. The clients can be asked to sample and to
elicit, and have roots; behind the mcpmux of one server alone each has a session of its own, so that it is
asked through mcpmux as it is without it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.browser.sights import SIGHTS, Asking
from tests.real.differences import comparable, first_pages, offers_as_much, same_tools, without_links
from tests.real.merged import exposed_params, own_answer, part_of
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env
from tests.real.walker import WALKERS, Walker, see

GRAPH = '{"type":"entity","name":"Moon","entityType":"moon","observations":["bright"]}\n'
OLDEST, NEWEST = "everything-2024-11-05", "modern"

# Each client with the server of its own revision and with the one that is furthest away.
NEAR_AND_FAR = {
    "python-1.6.0": ("everything-2024-11-05", NEWEST),
    "python-1.9.4": ("everything-2025-03-26", NEWEST),
    "python-1.16.0": ("everything-2025-06-18", NEWEST),
    "python-1": ("everything", OLDEST),
    "python-2-legacy": ("memory", OLDEST),
    "python-2": ("time", OLDEST),
    "typescript-1.7.0": ("everything-2024-11-05", NEWEST),
    "typescript-1.11.5": ("everything-2025-03-26", NEWEST),
    "typescript-1.17.5": ("everything-2025-06-18", NEWEST),
    "typescript-1.32.2": ("everything", OLDEST),
    "typescript-2-legacy": ("memory", OLDEST),
    "typescript-2": ("modern", OLDEST),
}
# Not slow: a client of each revision with these two, and one with all servers at once.
ALWAYS = (
    "python-1.6.0",
    "typescript-1.11.5",
    "python-1.16.0",
    "python-1",
    "typescript-1.32.2",
    "python-2",
    "typescript-2",
)
ALWAYS_MERGED = ("typescript-2",)

Group = tuple[str, ...]
"""Servers that one client process visits side by side."""


def pairs() -> list[object]:
    """Every client with every server; what is not always run is slow."""
    found: list[object] = []
    for name in WALKERS:
        near_and_far = NEAR_AND_FAR[name]
        rest = tuple(server for server in SIGHTS if server not in near_and_far)
        for group in (near_and_far, rest):
            marks = () if name in ALWAYS and group is near_and_far else pytest.mark.slow
            found += [
                pytest.param(name, group, server, marks=marks, id=f"{name}-{server}") for server in group
            ]
    return found


def merged_walkers() -> list[object]:
    return [pytest.param(name, marks=() if name in ALWAYS_MERGED else pytest.mark.slow) for name in WALKERS]


class Stage:
    """The servers, the muxes in front of them as far as needed, and what has been seen so far."""

    def __init__(self, commands: dict[str, list[str]], directory: Path, muxes: ExitStack) -> None:
        self._commands = commands
        self._directory = directory
        self._muxes = muxes
        self._urls: dict[Path, str] = {}
        self._seen: dict[tuple[str, str, Group], dict[str, Json]] = {}

    def directly(self, name: str, group: Group) -> dict[str, Json]:
        """The documents of a group of servers, seen without mcpmux."""
        return self._see("directly", name, group)

    def alone(self, name: str, group: Group) -> dict[str, Json]:
        """The documents of these servers, each unprefixed behind an mcpmux of its own."""
        return self._see("alone", name, group)

    def merged(self, name: str) -> Json:
        """The document of all servers at once, behind one mcpmux that its clients share."""
        walker = WALKERS[name]
        config = self._config("all", {server: stdio(command) for server, command in self._commands.items()})
        asking = [
            (method, exposed_params(method, params, server))
            for server, sight in SIGHTS.items()
            for method, params in sight.asking
        ]
        return see(walker, {"all": {**self._target(walker, config), "read": True, "asking": asking}})["all"]

    def _see(self, how: str, name: str, group: Group) -> dict[str, Json]:
        walker = WALKERS[name]
        if (how, name, group) not in self._seen:
            targets = {}
            for server in group:
                target = self._own_target(walker, server) if how == "alone" else self._direct_target(server)
                targets[server] = {**target, "read": True, "asking": asking_of(walker, server)}
            self._seen[how, name, group] = see(walker, targets)
        return self._seen[how, name, group]

    def _direct_target(self, server: str) -> Json:
        return {"command": self._commands[server]}

    def _own_target(self, walker: Walker, server: str) -> Json:
        upstream = stdio(self._commands[server], prefix="", session="per-client")
        return self._target(walker, self._config(server, {server: upstream}))

    def _config(self, name: str, upstreams: dict[str, Json]) -> Path:
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        return write_config(directory, upstreams)

    def _target(self, walker: Walker, config: Path) -> Json:
        """mcpmux as the client reaches it: over HTTP if it knows it."""
        if not walker.http:
            options = ["--stdio", "--log-level", "error"]
            return {"command": [sys.executable, "-m", "mcpmux", "serve", str(config), *options]}
        if config not in self._urls:
            mux = self._muxes.enter_context(HttpMux(config))
            self._muxes.callback(mux.stop, signal.SIGTERM)  # a killed mux leaves the oldest server behind
            self._urls[config] = mux.url
        return {"url": self._urls[config]}


def asking_of(walker: Walker, server: str) -> list[Asking]:
    """What this client asks a server that it has for itself."""
    sight = SIGHTS[server]
    elicitation = sight.elicitation if walker.elicits else ()
    return [*sight.asking, *sight.sampling, *elicitation, *(() if walker.modern else sight.subscribing)]


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory,
    everything_command: list[str],
    time_command: list[str],
    sdk2_command: list[str],
) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("clients")
    graph = directory / "graph.jsonl"
    graph.write_text(GRAPH)
    memory = str(Path(everything_command[0]).with_name("mcp-server-memory"))
    commands = {
        **{name: old_everything(name) for name in SIGHTS if name.startswith("everything-")},
        "everything": everything_command,
        "memory": ["env", f"MEMORY_FILE_PATH={graph}", memory],
        "time": time_command,
        "modern": sdk2_command,
    }
    with ExitStack() as muxes:
        yield Stage(commands, directory, muxes)


def old_everything(name: str) -> list[str]:
    """The command of the server-everything of an older revision."""
    return [str(npm_env(name) / ".bin" / "mcp-server-everything"), "stdio"]


def assert_same(seen: Json, direct: Json, walker: Walker, server: str) -> None:
    mine, theirs = (comparable(document, walker, SIGHTS[server].revision) for document in (seen, direct))
    if not walker.pages:
        mine = first_pages(mine, theirs)
    mine["answers"], theirs["answers"] = without_links(mine["answers"], theirs["answers"], walker)
    for key, value in theirs.items():
        assert mine[key] == value, key


@pytest.mark.parametrize(("name", "group", "server"), pairs())
def test_a_client_sees_a_server_alone_as_it_is(stage: Stage, name: str, group: Group, server: str) -> None:
    walker = WALKERS[name]
    direct, seen = stage.directly(name, group)[server], stage.alone(name, group)[server]
    assert (seen["server"], seen["revision"]) == ("mcpmux", walker.revision)
    assert direct["revision"] == min(walker.revision, SIGHTS[server].revision)
    assert_same(seen, direct, walker, server)
    assert seen["instructions"] == direct["instructions"]
    assert offers_as_much(seen, direct)
    if not walker.modern:
        assert seen["ping"] == {}
        assert seen["pages"] == direct["pages"]
        assert same_tools(seen, direct)


@pytest.mark.parametrize("name", merged_walkers())
def test_a_client_sees_each_of_many_servers_as_it_is(stage: Stage, name: str) -> None:
    walker = WALKERS[name]
    merged = stage.merged(name)
    assert (merged["server"], merged["revision"]) == ("mcpmux", walker.revision)
    answers = iter(merged["answers"])
    for server, sight in SIGHTS.items():
        seen = part_of(merged, server)
        seen["answers"] = [own_answer(method, next(answers)) for method, _ in sight.asking]
        direct = stage.directly(name, group_of(name, server))[server]
        assert_same(seen, {**direct, "answers": direct["answers"][: len(sight.asking)]}, walker, server)
    assert next(answers, None) is None


def group_of(name: str, server: str) -> Group:
    """The group in which a client visits a server directly."""
    near_and_far = NEAR_AND_FAR[name]
    return (
        near_and_far
        if server in near_and_far
        else tuple(other for other in SIGHTS if other not in near_and_far)
    )
