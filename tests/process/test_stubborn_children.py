"""Servers that mcpmux has started and that do not behave: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest
import trio
import trio.testing

from mcpmux import app
from mcpmux.channels import opener
from mcpmux.config import Config, Stdio, Upstream
from mcpmux.mux.breaker import DEATHS
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.transports.process import StopLadder, open_process
from mcpmux.upstreams import health
from tests.process.running import ended, is_gone
from tests.runtime.web_world import exchange

SERVER = """
    import json, os, signal, sys, time
    from pathlib import Path

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        results = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"resources": {}},
                "serverInfo": {"name": "stubborn", "version": "1"},
            },
            "resources/read": {"contents": [{"uri": "a:1", "text": str(os.getpid())}]},
            "ping": {},
        }
        if "id" in message and "method" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"]}
            if message["method"] in results:
                answer["result"] = results[message["method"]]
            else:
                answer["error"] = {"code": -32601, "message": "Method not found"}
            print(json.dumps(answer), flush=True)
        if message.get("method") == "notifications/initialized":
            Path(sys.argv[1]).write_text(str(os.getpid()))
    while True:  # the end of its input means nothing to it
        time.sleep(60)
"""


def write_server(folder: Path) -> Path:
    path = folder / "server.py"
    path.write_text(dedent(SERVER))
    return path


async def test_a_process_that_is_stopped_is_replaced_and_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(health, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("mcpmux.mux.breaker.FIRST_PAUSE_SECONDS", 0.1)

    def hasty(*args, **options):
        return open_process(*args, **options | {"stop": StopLadder(0.1, 0.1)})

    monkeypatch.setattr(opener, "open_process", hasty)
    target = Stdio(sys.executable, (str(write_server(tmp_path)), str(tmp_path / "pid")))
    config = Config(upstreams=(Upstream(name="x", target=target, prefix="", health_interval=0.3),))
    with trio.fail_after(30):
        async with app.open_mux(config) as mux:
            upstream = mux.upstreams["x"]
            first = await pid_of_server(mux)
            while not upstream.health.speaks_up:  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            os.kill(first, signal.SIGSTOP)
            while upstream.status.connects < 2:  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            second = await pid_of_server(mux)
            assert second != first
            assert is_gone(first)
            assert upstream.status.restarts == 1
    assert is_gone(second)


async def pid_of_server(mux: app.Mux) -> int:
    return int((await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"][0]["text"])


ONCE = """
    import json, os, sys

    legacy = sys.argv[1] != "2026-07-28"
    facts = {"capabilities": {"resources": {}}, "serverInfo": {"name": "once", "version": "1"}}
    complete = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    results = {"resources/read": {"contents": [{"uri": "a:1", "text": str(os.getpid())}]} | complete}
    if legacy:
        results["initialize"] = facts | {"protocolVersion": sys.argv[1]}
    else:
        results["server/discover"] = facts | complete | {"supportedVersions": [sys.argv[1]]}
    for line in sys.stdin:
        message = json.loads(line)
        answer = {"jsonrpc": "2.0", "id": message.get("id")}
        if message["method"] in results:
            print(json.dumps(answer | {"result": results[message["method"]]}), flush=True)
        elif "id" in message:
            print(json.dumps(answer | {"error": {"code": -32601, "message": "no"}}), flush=True)
        if message["method"] == "resources/read":
            sys.exit(int(sys.argv[2]))
"""
"""A server that ends after one read, with a status."""


@asynccontextmanager
async def open_once(folder: Path, revision: str, status: int) -> AsyncIterator[app.Mux]:
    path = folder / "once.py"
    path.write_text(dedent(ONCE))
    target = Stdio(sys.executable, (str(path), revision, str(status)))
    config = Config(upstreams=(Upstream(name="x", target=target, prefix="", health_interval=0),))
    with trio.fail_after(30):
        async with app.open_mux(config) as mux:
            yield mux


async def read_once(mux: app.Mux) -> int:
    """Read from the server, wait until it has ended, and return its pid."""
    pid = await pid_of_server(mux)
    while mux.upstreams["x"].status.connection is not None:  # noqa: ASYNC110  # no event tells of it
        await trio.sleep(0.01)
    return pid


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_server_that_ends_after_each_call_starts_when_needed(tmp_path, revision):
    async with open_once(tmp_path, revision, 0) as mux:
        upstream = mux.upstreams["x"]
        pids = [await read_once(mux)]
        outbox = mux.hub.join(ClientOutbox(frozenset({"notifications/resources/list_changed"})))
        pids += [await read_once(mux) for _ in range(DEATHS + 1)]
        with trio.fail_after(30):
            while (upstream.state, upstream.status.connection) != ("ready", None):  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
        assert upstream.status.connects == len(set(pids)) == DEATHS + 2
        assert not outbox.waiting
        mux.hub.leave(outbox)


async def test_a_server_that_fails_after_each_call_is_in_a_crash_loop(tmp_path, monkeypatch):
    monkeypatch.setattr("mcpmux.mux.breaker.FIRST_SECONDS", 0.0)
    async with open_once(tmp_path, "2025-11-25", 1) as mux:
        for _ in range(DEATHS):
            await read_once(mux)
        while mux.upstreams["x"].state != "crash-loop":  # noqa: ASYNC110  # no event tells of it
            await trio.sleep(0.01)


async def test_no_server_outlives_mcpmux_that_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    config = tmp_path / "mcpmux.toml"
    args = [str(write_server(tmp_path)), str(pid_file)]
    config.write_text(f"[upstreams.x]\ncommand = {sys.executable!r}\nargs = {args!r}\n")
    with trio.fail_after(30):
        mux = await trio.lowlevel.open_process(
            [sys.executable, "-m", "mcpmux", "serve", str(config), "--listen", "http://127.0.0.1:0"],
            stdout=subprocess.PIPE,
        )
        try:
            while not (pid_file.exists() and pid_file.read_text()):  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            server = int(pid_file.read_text())
            assert not is_gone(server)
        finally:
            mux.send_signal(signal.SIGKILL)
            await mux.wait()
    try:
        with trio.fail_after(20):
            await ended(server)
    finally:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
