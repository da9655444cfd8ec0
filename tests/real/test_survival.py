"""Killing: a killed server is started again, and a killed mcpmux leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.peers.blocking_client import HttpClient, StdioClient
from tests.peers.revision import MODERN
from tests.real.mux import (
    START_SECONDS,
    HttpMux,
    Json,
    StdioMux,
    Watch,
    descendants,
    stdio,
    write_config,
)

ASKING = 4  # clients at the same time
ENOUGH = 20  # whole answers in a row that show that a server is back
EXIT_SECONDS = 60.0  # for a server to see that mcpmux is gone

READS = {
    "everything": "everything+demo://resource/static/document/features.md",
    "modern": "modern+memo://text",
}
RESOURCES = 12  # of both
PROGRAMS = {"everything": "mcp-server-everything", "modern": "sdk2_server.py"}


@pytest.fixture(scope="module")
def config(
    tmp_path_factory: pytest.TempPathFactory, everything_command: list[str], sdk2_command: list[str]
) -> Path:
    upstreams = {"everything": stdio(everything_command), "modern": stdio(sdk2_command)}
    return write_config(tmp_path_factory.mktemp("survival"), upstreams)


@pytest.fixture(scope="module")
def mux(config: Path) -> Iterator[HttpMux]:
    with HttpMux(config) as mux:
        yield mux


def find_child(mux: HttpMux, program: str) -> int:
    """Return the process id of the one server of a mux that runs `program`."""
    [pid] = [pid for pid in descendants(mux.pid) if program in Path(f"/proc/{pid}/cmdline").read_text()]
    return pid


def is_well(answer: Json) -> bool:
    """Return whether an answer is complete: no error, no server left out, and every item of a list."""
    if "result" not in answer or "dev.mcpmux/upstreams" in answer["result"]["_meta"]:
        return False
    return len(answer["result"].get("resources", range(RESOURCES))) == RESOURCES


def ask_through_a_kill(
    url: str, method: str, params: Json, busy: threading.Barrier, killed: threading.Event
) -> list[Json]:
    """Ask the same over and over, until all is well after the kill: the answers that were not whole."""
    client = HttpClient(url, MODERN)
    assert is_well(client.ask(method, params)[-1])
    busy.wait(START_SECONDS)
    troubles: list[Json] = []
    in_a_row = 0
    deadline = time.monotonic() + START_SECONDS
    while in_a_row < ENOUGH:
        assert time.monotonic() < deadline, f"still not well: {troubles[-1:]}"
        after_the_kill = killed.is_set()
        answer = client.ask(method, params)[-1]
        if not is_well(answer):
            troubles.append(answer)
        in_a_row = in_a_row + 1 if after_the_kill and is_well(answer) else 0
    return troubles


def kill_while_asked(mux: HttpMux, server: str, method: str, params: Json) -> list[Json]:
    """Kill a server while several clients ask for something: the answers that were not whole."""
    busy, killed = threading.Barrier(ASKING + 1), threading.Event()
    with ThreadPoolExecutor(ASKING) as pool:
        asking = [
            pool.submit(ask_through_a_kill, mux.url, method, params, busy, killed) for _ in range(ASKING)
        ]
        busy.wait(START_SECONDS)
        pid = find_child(mux, PROGRAMS[server])
        death = Watch({pid})
        os.kill(pid, signal.SIGKILL)
        assert death.wait(EXIT_SECONDS) == set()
        killed.set()
        return [trouble for future in asking for trouble in future.result()]


@pytest.mark.parametrize("server", READS)
def test_a_server_killed_while_it_is_read_is_read_again(mux: HttpMux, server: str) -> None:
    troubles = kill_while_asked(mux, server, "resources/read", {"uri": READS[server]})
    assert {answer["error"]["data"]["upstream"] for answer in troubles} <= {server}


@pytest.mark.parametrize("server", READS)
def test_a_server_killed_while_it_is_listed_is_listed_again(mux: HttpMux, server: str) -> None:
    troubles = kill_while_asked(mux, server, "resources/list", {})
    for answer in troubles:
        assert answer["result"]["_meta"]["dev.mcpmux/upstreams"].keys() == {server}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_mux_has_stopped_its_servers(config: Path, number: int) -> None:
    with HttpMux(config) as mux:
        HttpClient(mux.url, MODERN).ask("tools/list")
        servers = Watch(descendants(mux.pid))
        assert mux.stop(number) == 0
        assert servers.wait(0) == set()


def test_a_mux_whose_client_has_gone_has_stopped_its_servers(config: Path) -> None:
    with StdioMux(config) as mux:
        StdioClient(mux, MODERN).ask("tools/list")
        servers = Watch(descendants(mux.pid))
        mux.close_stdin()
        assert mux.wait() == 0
        assert servers.wait(0) == set()
