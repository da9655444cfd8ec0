"""Servers that mcpmux has started and that do not behave: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import trio

from mcpmux import app
from mcpmux.config import Config, Stdio, Upstream
from mcpmux.runtime.upstreams import channels, status
from mcpmux.transports.process import StopLadder
from tests.runtime.scripted_web import exchange
from tests.transports.test_orphans import ended, is_gone

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
    monkeypatch.setattr(status, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(status, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("mcpmux.mux.breaker.FIRST_PAUSE_SECONDS", 0.1)
    real = channels.open_process

    def hasty(*args, **options):
        return real(*args, **options | {"stop": StopLadder(0.1, 0.1)})

    monkeypatch.setattr(channels, "open_process", hasty)
    target = Stdio(sys.executable, (str(write_server(tmp_path)), str(tmp_path / "pid")))
    config = Config(upstreams=(Upstream(name="x", target=target, prefix="", health_interval=0.3),))
    with trio.fail_after(30):
        async with app.open_mux(config) as mux:
            upstream = mux.upstreams["x"]
            first = await pid_of_server(mux)
            while not upstream.speaks_up:  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            os.kill(first, signal.SIGSTOP)
            while upstream.connects < 2:  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            second = await pid_of_server(mux)
            assert second != first
            assert is_gone(first)
            assert upstream.restarts == 1
    assert is_gone(second)


async def pid_of_server(mux: app.Mux) -> int:
    return int((await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"][0]["text"])


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
