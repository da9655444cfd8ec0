"""The pair of configs/cluster, started by the commands of its README, on ports that are free."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.mux import START_SECONDS
from tests.real.parts import ROOT, program

pytestmark = pytest.mark.real

README = ROOT / "configs" / "cluster" / "README.md"
PORTS = ("8484", "8501", "8502", "8511", "8512", "8521", "8522", "6390")
PORT_OF = {"redis": "6390", "a": "8501", "b": "8502", "haproxy": "8484"}
POLL_SECONDS = 0.05  # what is waited for is in the log of another program
WELCOME = {"uri": "notes+note:///welcome"}
HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def free_ports(number: int) -> list[str]:
    """Ports that nobody listens on, each another one."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [str(each.getsockname()[1]) for each in taken]


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it is not so in time"
        time.sleep(POLL_SECONDS)


def is_listened_on(port: str) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", int(port))) == 0


class Pair:
    """The folder of the README, and the programs that run there, by what they are."""

    def __init__(self, home: Path) -> None:
        blocks = re.findall(r"^```sh\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
        self.install, self._prepare, *servers, self.look, self.session = blocks[:8]
        self._servers = dict(zip(PORT_OF, servers, strict=True))
        self._home, self.folder = home, home / "mcpmux-pair"
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_error: object) -> None:
        for name in list(self._running):
            self.kill(name)

    def port(self, number: str) -> str:
        """The port that stands for one of the README's."""
        return self._ports[number]

    def with_free_ports(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda match: self._ports[match[1]], text)

    def prepare(self) -> None:
        """Make the folder, as from the top of the repository with its environment."""
        repository = self._home / "repository"
        (repository / ".venv" / "bin").mkdir(parents=True)
        (repository / ".venv" / "bin" / "activate").touch()  # `_options` has activated it
        (repository / "configs").symlink_to(ROOT / "configs")
        self.run(self._prepare, repository)
        for name in ("mux.toml", "haproxy.cfg", "redis.conf"):
            path = self.folder / name
            path.write_text(self.with_free_ports(path.read_text()))

    def run(self, block: str, folder: Path | None = None) -> str:
        """Run commands to their end: what they print."""
        done = subprocess.run(
            ["sh", "-e", "-c", self.with_free_ports(block)],
            **self._options(folder or self.folder),
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        """Start what the README has in a terminal of its own."""
        with self.log_path(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["sh", "-e", "-c", self.with_free_ports(self._servers[name])],
                **self._options(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill a program together with its shell, and wait until nobody has its port any more."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        until(lambda: not is_listened_on(self.port(PORT_OF[name])))

    def log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log_path(name).read_text()

    def _options(self, folder: Path) -> dict[str, Any]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
        python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {
            "cwd": folder,
            "env": {**os.environ, "HOME": str(self._home), "PATH": path, "PYTHONPATH": python},
        }


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """All four programs of the README; both replicas get requests."""
    for name in ("haproxy", "redis-server", "openssl", "curl"):
        program(name)
    with Pair(tmp_path) as pair:
        pair.prepare()
        for name in PORT_OF:
            pair.start(name)
        for name in "ab":
            until(lambda name=name: f"Server mcpmux/{name} is UP" in pair.said("haproxy"))
        yield pair


class Client:
    """A client of an older revision, with one session."""

    def __init__(self, pair: Pair, http: httpx.Client) -> None:
        self._http, self._url = http, f"http://127.0.0.1:{pair.port('8484')}/mcp"
        secrets = dict(
            line.split("=", 1) for line in (pair.folder / "mcpmux.env").read_text().splitlines() if line
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


def asked(pair: Pair) -> list[str]:
    """The replicas that HAProxy has sent requests of clients to, in turn."""
    return re.findall(r' mcpmux/(\w) .* "POST /mcp HTTP', pair.said("haproxy"))


def test_the_commands_are_in_the_readme():
    blocks = Pair(Path("/nowhere"))
    assert "pip install" in blocks.install
    for name in ("haproxy", "redis-server", "openssl", "curl"):
        assert name in blocks.install


def test_a_session_is_answered_by_both_replicas_and_goes_on_when_its_own_is_killed(pair: Pair):
    assert pair.run(pair.look).count('{"ready":true}') == 2
    assert pair.run(pair.session).count("You are reading this through mcpmux") == 2
    with httpx.Client(timeout=START_SECONDS) as http:
        client, before = Client(pair, http), len(asked(pair))
        client.open()
        until(lambda: len(asked(pair)) > before)
        owner = asked(pair)[before]
        welcome = client.read()
        until(lambda: client.read() == welcome and {*asked(pair)[before + 2 :]} == {"a", "b"})
        pair.kill(owner)
        assert client.read() == welcome
        assert client.read() == welcome
        until(lambda: f"Server mcpmux/{owner} is DOWN" in pair.said("haproxy"))
        before = len(asked(pair))
        pair.start(owner)
        until(lambda: client.read() == welcome and owner in asked(pair)[before:])
        (other,) = {"a", "b"} - {owner}
        pair.kill(other)
        pair.start(other)  # at once, as a service manager does
        until(lambda: is_listened_on(pair.port(PORT_OF[other])))
        assert client.read() == welcome


def test_sessions_go_on_when_redis_was_away(pair: Pair):
    with httpx.Client(timeout=START_SECONDS) as http:
        client = Client(pair, http)
        client.open()
        welcome = client.read()
        pair.kill("redis")
        until(lambda: "the store of the cluster is away" in pair.said("a"))
        pair.start("redis")
        until(lambda: client.send({"id": 3, "method": "ping"}).status_code == 200)
        assert client.read() == welcome
