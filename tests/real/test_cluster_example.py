"""The replicas of configs/cluster, started by the commands of its README, on ports that are free."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.journeys import Place, blocks_of
from tests.process.running import wait_until
from tests.real.mux import START_SECONDS
from tests.real.parts import ROOT, program

PAGE, HEADING = "configs/cluster/README.md", "Run three replicas"
PORT_OF = {"redis-server": "6390", "a": "8501", "b": "8502", "c": "8503", "haproxy": "8484"}
PROGRAMS = ("haproxy", "redis-server", "openssl", "curl")
WELCOME = {"uri": "notes+note:///welcome"}
HANDSHAKE: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def is_listened_on(port: str) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", int(port))) == 0


def kill(place: Place, name: str) -> None:
    """Kill a server, and wait until its port is free."""
    place.kill(name)
    wait_until(lambda: not is_listened_on(place.port(PORT_OF[name])))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Run all programs of the page until all replicas get requests."""
    home = tmp_path_factory.mktemp("home")
    for name in PROGRAMS:
        program(name)
    _install, prepare, *rest = blocks_of(PAGE, HEADING)
    repository = home / "repository"
    (repository / ".venv" / "bin").mkdir(parents=True)
    (repository / ".venv" / "bin" / "activate").touch()  # what it would change is so already
    (repository / "configs").symlink_to(ROOT / "configs")
    with Place(home, repository) as place:
        place.run(prepare.text)
        place.folder = home / "replicas"
        for name in ("mux.toml", "haproxy.cfg", "redis.conf"):
            place.put(name, (place.folder / name).read_text())
        place.follow(rest)
        for name in "abc":
            wait_until(partial(is_up, place, name))
        yield place


def is_up(place: Place, name: str) -> bool:
    return f"Server mcpmux/{name} is UP" in place.said("haproxy")


class Client:
    """A client of an older revision, with one session."""

    def __init__(self, place: Place, http: httpx.Client) -> None:
        self._http, self._url = http, f"http://127.0.0.1:{place.port('8484')}/mcp"
        secrets = dict(
            line.split("=", 1) for line in (place.folder / "mcpmux.env").read_text().splitlines() if line
        )
        http.headers["Authorization"] = f"Bearer {secrets['CLIENT_TOKEN']}"
        http.headers["Accept"] = "application/json, text/event-stream"

    def send(self, message: dict[str, Any]) -> httpx.Response:
        return self._http.post(self._url, json={"jsonrpc": "2.0", **message})

    def open(self) -> None:
        opened = self.send({"id": 1, "method": "initialize", "params": HANDSHAKE})
        assert opened.status_code == 200, opened.text
        self._http.headers["Mcp-Session-Id"] = opened.headers["Mcp-Session-Id"]
        self._http.headers["MCP-Protocol-Version"] = HANDSHAKE["protocolVersion"]
        assert self.send({"method": "notifications/initialized"}).status_code == 202

    def read(self) -> str:
        answer = self.send({"id": 2, "method": "resources/read", "params": WELCOME})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["result"]["contents"][0]["text"])


def asked(place: Place) -> list[str]:
    """Return the replicas to which HAProxy has sent requests of clients, in turn."""
    return re.findall(r' mcpmux/(\w) .* "POST /mcp HTTP', place.said("haproxy"))


def test_the_commands_are_in_the_readme():
    install = blocks_of(PAGE, HEADING)[0].text
    for name in ("pip install", *PROGRAMS):
        assert name in install


def test_all_replicas_answer_a_session_which_survives_the_death_of_its_own(place: Place):
    with httpx.Client(timeout=START_SECONDS) as http:
        client, count = Client(place, http), len(asked(place))
        client.open()
        wait_until(lambda: len(asked(place)) > count)
        owner = asked(place)[count]
        welcome = client.read()
        wait_until(lambda: client.read() == welcome and {*asked(place)[count + 2 :]} == {"a", "b", "c"})
        kill(place, owner)
        assert client.read() == welcome
        assert client.read() == welcome
        wait_until(lambda: f"Server mcpmux/{owner} is DOWN" in place.said("haproxy"))
        count = len(asked(place))
        place.start(owner)
        wait_until(lambda: client.read() == welcome and owner in asked(place)[count:])
        other, *_ = {"a", "b", "c"} - {owner}
        kill(place, other)
        place.start(other)  # at once, as a service manager does
        wait_until(lambda: is_listened_on(place.port(PORT_OF[other])))
        assert client.read() == welcome


def test_sessions_go_on_when_redis_was_away(place: Place):
    with httpx.Client(timeout=START_SECONDS) as http:
        client = Client(place, http)
        client.open()
        welcome = client.read()
        kill(place, "redis-server")
        wait_until(lambda: "the store of the cluster is away" in place.said("a"))
        place.start("redis-server")
        wait_until(lambda: client.send({"id": 3, "method": "ping"}).status_code == 200)
        assert client.read() == welcome
