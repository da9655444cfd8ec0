"""Real clients of each revision in front of real servers of each revision, with and without mcpmux.

A client takes the same walk directly, through an mcpmux in front of one server alone, and through one in
front of all servers. `differences.py` has the differences that are allowed. The clients can be asked to
sample and to elicit, and have roots. The mcpmux of one server alone gives each client a session of its own,
so that the server's questions are the same with and without mcpmux.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.browser.sights import SIGHTS, Asking
from tests.real.differences import comparable, first_pages, offers_as_much, same_tools, without_links
from tests.real.merged import exposed_params, own_answer, part_of
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env
from tests.real.walker import WALKERS, Walker, see
from tests.whole import WHOLE

GRAPH = '{"type":"entity","name":"Moon","entityType":"moon","observations":["bright"]}\n'

SEEN: dict[str, tuple[str, ...]] = {
    "python-1.6.0": ("everything-2024-11-05", "modern", "everything-2025-03-26", "everything"),
    "typescript-1.7.0": ("everything-2024-11-05", "modern", "everything-2025-06-18", "memory", "time"),
    "python-1.9.4": ("everything-2025-03-26", "modern", "everything-2024-11-05", "everything"),
    "typescript-1.11.5": ("everything-2025-03-26", "modern", "everything-2025-06-18", "memory", "time"),
    "python-1.16.0": ("everything-2025-06-18", "modern", "everything-2025-03-26", "time"),
    "typescript-1.17.5": ("everything-2025-06-18", "modern", "everything-2024-11-05", "everything", "memory"),
    "python-1": ("everything", "everything-2024-11-05", "modern", "everything-2025-03-26"),
    "python-2-legacy": ("memory", "everything-2024-11-05", "time"),
    "typescript-1.32.2": ("everything", "everything-2024-11-05", "time"),
    "typescript-2-legacy": ("memory", "everything-2024-11-05", "modern", "everything-2025-06-18"),
    "python-2": ("time", "everything-2024-11-05", "everything", "everything-2025-06-18"),
    "typescript-2": ("modern", "everything-2024-11-05", "everything", "everything-2025-03-26", "memory"),
}
"""Each client with a server of its own revision and the one that is furthest away. The clients of a revision,
in Python and TypeScript, see all servers between them: mcpmux does not know which SDK a client has.
"""
if WHOLE:
    SEEN = dict.fromkeys(SEEN, tuple(SIGHTS))


class Stage:
    """The servers, and the muxes in front of them as far as needed."""

    def __init__(self, commands: dict[str, list[str]], directory: Path, muxes: ExitStack) -> None:
        self._commands = commands
        self._directory = directory
        self._muxes = muxes
        self._urls: dict[Path, str] = {}

    def directly(self, name: str) -> dict[str, Json]:
        """Return the documents of the servers that a client sees, without mcpmux."""
        return self._see(name, lambda _walker, server: {"command": self._commands[server]})

    def alone(self, name: str) -> dict[str, Json]:
        """Return the documents of these servers, each alone and unprefixed behind an mcpmux."""
        return self._see(name, self._own_target)

    def merged(self, name: str) -> Json:
        """Return the document of all servers at once, behind one mcpmux that its clients share."""
        walker = WALKERS[name]
        config = self._config("all", {server: stdio(command) for server, command in self._commands.items()})
        asking = [
            (method, exposed_params(method, params, server))
            for server in SEEN[name]
            for method, params in SIGHTS[server].asking
        ]
        return see(walker, {"all": {**self._target(walker, config), "read": True, "asking": asking}})["all"]

    def _see(self, name: str, find_target: Callable[[Walker, str], Json]) -> dict[str, Json]:
        walker = WALKERS[name]
        targets = {
            server: {**find_target(walker, server), "read": True, "asking": asking_of(walker, server)}
            for server in SEEN[name]
        }
        return see(walker, targets)

    def _own_target(self, walker: Walker, server: str) -> Json:
        upstream = stdio(self._commands[server], prefix="", session="per-client")
        return self._target(walker, self._config(server, {server: upstream}))

    def _config(self, name: str, upstreams: dict[str, Json]) -> Path:
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        return write_config(directory, upstreams)

    def _target(self, walker: Walker, config: Path) -> Json:
        """Return the target of mcpmux for a client: over HTTP if the client knows that."""
        if not walker.http:
            options = ["--stdio", "--log-level", "error"]
            return {"command": [sys.executable, "-m", "mcpmux", "serve", str(config), *options]}
        if config not in self._urls:
            mux = self._muxes.enter_context(HttpMux(config))
            self._muxes.callback(mux.stop, signal.SIGTERM)  # a killed mux leaves the oldest server behind
            self._urls[config] = mux.url
        return {"url": self._urls[config]}


def asking_of(walker: Walker, server: str) -> list[Asking]:
    """Return the client's requests to a server that it does not share."""
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
    """Return the command of the server-everything of an older revision."""
    return [str(npm_env(name) / ".bin" / "mcp-server-everything"), "stdio"]


def assert_same(seen: Json, direct: Json, walker: Walker, server: str) -> None:
    mine, theirs = (comparable(document, walker, SIGHTS[server].revision) for document in (seen, direct))
    if not walker.pages:
        mine = first_pages(mine, theirs)
    mine["answers"], theirs["answers"] = without_links(mine["answers"], theirs["answers"], walker)
    for key, value in theirs.items():
        assert mine[key] == value, key


def test_clients_of_each_revision_see_all_servers() -> None:
    seen: dict[str, set[str]] = {}
    for name, servers in SEEN.items():
        seen.setdefault(WALKERS[name].revision, set()).update(servers)
    assert all(servers == SIGHTS.keys() for servers in seen.values())


@pytest.mark.parametrize("name", WALKERS)
def test_client_sees_servers_through_mcpmux_as_they_are(
    stage: Stage, subtests: pytest.Subtests, name: str
) -> None:
    walker = WALKERS[name]
    direct, alone, merged = stage.directly(name), stage.alone(name), stage.merged(name)
    assert (merged["server"], merged["revision"]) == ("mcpmux", walker.revision)
    answers = iter(merged["answers"])
    for server in SEEN[name]:
        with subtests.test(server):
            assert_seen_alone(alone[server], direct[server], walker, server)
        requests = SIGHTS[server].asking
        seen = part_of(merged, server)
        seen["answers"] = [own_answer(method, next(answers)) for method, _ in requests]
        with subtests.test(f"{server} among all"):
            expected = {**direct[server], "answers": direct[server]["answers"][: len(requests)]}
            assert_same(seen, expected, walker, server)
    assert next(answers, None) is None


def assert_seen_alone(seen: Json, direct: Json, walker: Walker, server: str) -> None:
    assert (seen["server"], seen["revision"]) == ("mcpmux", walker.revision)
    assert direct["revision"] == min(walker.revision, SIGHTS[server].revision)
    assert_same(seen, direct, walker, server)
    assert seen["instructions"] == direct["instructions"]
    assert offers_as_much(seen, direct)
    if not walker.modern:
        assert seen["ping"] == {}
        assert seen["pages"] == direct["pages"]
        assert same_tools(seen, direct)
