"""Updates from real servers to real clients through mcpmux, in every pair of eras, and over kills.

Every client subscribes to one resource of every server, before anything happens.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from benchmarks.process import free_port
from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.real.listener import LIST_CHANGED, UPDATED, Listener
from tests.real.mux import START_SECONDS, HttpMux, Json, descendants, stdio, write_config
from tests.real.parts import npm_env
from tests.real.sdk import CLIENTS

POLL_SECONDS = 0.05


class Watched(NamedTuple):
    """A server's resource, and the tool that changes it."""

    uri: str
    tool: str
    arguments: Json


FEATURES = Watched("demo://resource/static/document/features.md", "toggle-subscriber-updates", {})
GRAPH = Watched("memory://knowledge-graph", "create_entities", {"entities": []})
TEXT = Watched("memo://text", "touch", {"uri": "memo://text"})
SERVERS = {
    "everything": FEATURES,
    "everything-web": FEATURES,
    "memory": GRAPH,
    "modern": TEXT,
    "modern-web": TEXT,
}


class WebServer:
    """A real server that mcpmux does not start, on its own port."""

    def __init__(self, command: list[str], env: dict[str, str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._command = command
        self._env = {**os.environ, **env}
        self._port = port

    def __enter__(self) -> Self:
        self.start()
        self.expect_serving()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, env=self._env, stdout=quiet, stderr=quiet)

    def expect_serving(self) -> None:
        """Wait until it can be connected to."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self._port)):
                return
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{self._command} does not serve")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Stage(NamedTuple):
    """Everything running."""

    mux: HttpMux
    webs: dict[str, WebServer]
    listeners: dict[str, Listener]

    def change(self, server: str) -> None:
        """Have a server tell that its resource has changed."""
        watched = SERVERS[server]
        client = HttpClient(self.mux.url, MODERN)
        call = {"name": f"{server}__{watched.tool}", "arguments": watched.arguments}
        answer = client.ask("tools/call", call)[-1]
        assert not answer["result"].get("isError"), answer
        if "Stopped" in str(answer):  # it told every five seconds; starting again tells at once
            client.ask("tools/call", call)

    def calm(self, server: str) -> None:
        """Stop the periodic updates of a server."""
        if SERVERS[server] is FEATURES:
            call = {"name": f"{server}__{FEATURES.tool}", "arguments": {}}
            while "Stopped" not in str(HttpClient(self.mux.url, MODERN).ask("tools/call", call)):
                pass

    def kill(self, server: str) -> None:
        """Kill it by SIGKILL. mcpmux starts its own servers again, the others are started here."""
        if server in self.webs:
            self.webs[server].kill()
            self.webs[server].start()
            return
        program = {
            "everything": "mcp-server-everything",
            "memory": "mcp-server-memory",
            "modern": "sdk2_server",
        }
        for pid in descendants(self.mux.pid):
            if program[server] in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    everything_command: list[str],
    sdk2_command: list[str],
) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("push")
    memory = str(npm_env("servers") / ".bin" / "mcp-server-memory")
    port, other_port = free_port(), free_port()
    with ExitStack() as stack:
        webs = {
            "everything-web": WebServer([everything_command[0], "streamableHttp"], {"PORT": str(port)}, port),
            "modern-web": WebServer([*sdk2_command[:-1], "http", str(other_port)], {}, other_port),
        }
        for web in webs.values():
            stack.enter_context(web)
        upstreams = {
            "everything": stdio(everything_command),
            "everything-web": {"url": webs["everything-web"].url},
            "memory": stdio([memory], env={"MEMORY_FILE_PATH": str(directory / "memory.jsonl")}),
            "modern": stdio(sdk2_command),
            "modern-web": {"url": webs["modern-web"].url},
        }
        mux = stack.enter_context(HttpMux(write_config(directory, upstreams)))
        uris = [f"{name}+{watched.uri}" for name, watched in SERVERS.items()]
        listeners = {
            name: stack.enter_context(Listener(client.found(request), mux.url, uris))
            for name, client in CLIENTS.items()
        }
        for listener in listeners.values():
            listener.expect_subscribed()
        yield Stage(mux, webs, listeners)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server", SERVERS)
def test_an_update_arrives(stage: Stage, server: str, client: str) -> None:
    stage.listeners[client].forget()
    stage.change(server)
    stage.listeners[client].hear(UPDATED, f"{server}+{SERVERS[server].uri}")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_list_change_arrives(stage: Stage, client: str) -> None:
    stage.listeners[client].forget()
    HttpClient(stage.mux.url, MODERN).ask("tools/call", {"name": "modern__announce", "arguments": {}})
    stage.listeners[client].hear(LIST_CHANGED)


@pytest.mark.parametrize("server", SERVERS)
def test_a_kill_is_caught_up_and_updates_go_on(stage: Stage, server: str) -> None:
    stage.calm(server)
    uri = f"{server}+{SERVERS[server].uri}"
    for after in (stage.kill, stage.change):
        for listener in stage.listeners.values():
            listener.forget()
        after(server)
        for listener in stage.listeners.values():
            listener.hear(UPDATED, uri)
