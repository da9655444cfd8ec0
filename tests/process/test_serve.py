"""`serve` and `demo` as real processes: what they print, how they stop, what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke
from tests.peers.revision import MODERN, make_fields, make_greeting, make_request
from tests.process.running import (
    WAIT_SECONDS,
    Running,
    children_of,
    command_of,
    demo_command,
    demo_table,
    is_alive,
)

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "progressToken": 1,
}
CLOCK = demo_table("clock")
ANY_PORT = ("--http", "127.0.0.1:0")


def start_call(url: str, name: str, arguments: dict[str, object]) -> HTTPResponse:
    """Start a call, and return its response before any of the body is read."""
    call = make_request("tools/call", {"name": name, "arguments": arguments, "_meta": META})
    request = urllib.request.Request(url, json.dumps(call).encode(), make_fields(MODERN, call))
    response = urllib.request.urlopen(request, timeout=WAIT_SECONDS)
    assert isinstance(response, HTTPResponse)
    return response


def read_pid(file: Path) -> int:
    return int(file.read_text())


def test_url_is_printed_when_it_is_ready(invoke: Invoke) -> None:
    with Running("serve", "--upstream", "clock=" + demo_command("clock"), *ANY_PORT) as mux:
        url = mux.line().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        assert "clock__now" in invoke("ls", url, "tools").stdout
        assert mux.stop() == 0
        assert mux.stdout == ""


def test_the_log_counts_the_upstreams_that_are_ready() -> None:
    targets = ("clock=" + demo_command("clock"), "gone=http://127.0.0.1:1/mcp")
    options = [word for target in targets for word in ("--upstream", target)]
    with Running("serve", *options, *ANY_PORT) as mux:
        assert "1 of 2 upstreams are ready" in mux.line("stderr", containing="upstreams are")
        assert mux.stop() == 0


def test_configuration_comes_from_stdin_and_options_override_it(invoke: Invoke) -> None:
    text = CLOCK + '[listeners]\nhttp = ["127.0.0.1:1"]\n[logging]\nlevel = "debug"\n'
    arguments = ("serve", "-", *ANY_PORT, *ANY_PORT, "--log-level", "error")
    with Running(*arguments, stdin=text.encode()) as mux:
        urls = {mux.line().strip(), mux.line().strip()}
        assert len(urls) == 2
        for url in urls:
            assert "clock__now" in invoke("ls", url, "tools").stdout
        assert mux.stop(signal.SIGTERM) == 0
        assert (mux.stdout, mux.stderr) == ("", "")


def test_servers_of_a_file_and_of_options_are_served_together(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    file.write_text(CLOCK + '[listeners]\nhttp = ["127.0.0.1:0"]\n')
    with Running("serve", str(file), "--upstream", "library=" + demo_command("library")) as mux:
        names = invoke("ls", mux.line().strip(), "tools").stdout.split()
        assert {"clock__now", "library__find_chapters"} <= set(names)
        assert mux.stop() == 0


def test_address_in_use_is_a_failure_that_leaves_no_child_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    upstream = "clock=" + demo_command("clock", pid_file)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Running("serve", "--upstream", upstream, "--http", address, "--log-level", "error") as mux:
            assert mux.wait() == 1
            assert mux.stdout == ""
            assert mux.stderr.startswith(f"Error: cannot listen on {address}: address already in use; stop")
    assert not pid_file.exists() or not pid_file.read_text() or not is_alive(read_pid(pid_file))


def test_a_second_host_app_does_without_what_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listeners = f'[listeners]\nstdio = true\nhttp = ["{address}"]\n'
        file.write_text(f"{CLOCK}{listeners}[admin]\nport = {taken.getsockname()[1]}\n")
        with Running("serve", str(file)) as mux:
            mux.send_json({"id": 1, "method": "initialize", "params": make_greeting("2025-06-18")})
            assert mux.receive_json()["result"]["protocolVersion"] == "2025-06-18"
            mux.close_stdin()
            assert mux.wait() == 0
            for what in ("", "admin: "):
                assert f"'{what}cannot listen on {address}: address already in use; stop" in mux.stderr
        with Running("serve", str(file), *ANY_PORT) as mux:
            assert mux.wait() == 1
            assert f"Error: admin: cannot listen on {address}" in mux.stderr


def test_stdio_speaks_the_protocol_on_stdout_and_nothing_else() -> None:
    clock = "clock=" + demo_command("clock")
    with Running("serve", "--upstream", clock, "--stdio", *ANY_PORT) as mux:
        assert "http://127.0.0.1:" in mux.line("stderr", containing="/mcp")
        mux.send_json({"id": 1, "method": "initialize", "params": make_greeting("2025-06-18")})
        assert mux.receive_json()["result"]["protocolVersion"] == "2025-06-18"
        mux.send_json({"method": "notifications/initialized"})
        mux.send_json({"id": 2, "method": "tools/list"})
        assert [tool["name"] for tool in mux.receive_json()["result"]["tools"]] == ["clock__now"]
        mux.close_stdin()
        assert mux.wait() == 0
        assert mux.stdout == ""


VIEWS = """
[views.coding]
include = [{ upstream = "clock" }]
[views.reading]
include = [{ kind = "resources" }]
"""


def test_a_view_is_served_below_the_path_and_chosen_for_stdio(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    file.write_text(CLOCK + VIEWS)
    with Running("serve", str(file), "--stdio", "--view", "reading", *ANY_PORT) as mux:
        url = "http://" + mux.line("stderr", containing="/mcp").partition("http://")[2].strip()
        assert "clock__now" in invoke("ls", url.removesuffix("/mcp"), "tools").stdout
        assert "clock__now" in invoke("ls", f"{url}/coding", "tools").stdout
        assert "clock__now" not in invoke("ls", f"{url}/coding?tools=x*", "tools").stdout
        assert "Nothing here" in invoke("ls", f"{url}/codign", "tools").stderr
        mux.send_json({"id": 1, "method": "tools/list", "params": {"_meta": META}})
        assert mux.receive_json()["result"]["tools"] == []
        mux.close_stdin()
        assert mux.wait() == 0


def test_a_view_that_cannot_be_is_a_mistake(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    file.write_text(CLOCK + VIEWS)
    result = invoke("serve", str(file), "--view", "coding", *ANY_PORT)
    assert (result.exit_code, "--view: it is for --stdio" in result.stderr) == (2, True)
    result = invoke("serve", str(file), "--stdio", "--view", "codign")
    assert result.exit_code == 2
    assert "there is no view of this name; did you mean `coding`?" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_lets_calls_finish_and_stops_the_children(tmp_path: Path, number: int) -> None:
    pid_file = tmp_path / "pid"
    with Running("serve", "--upstream", "l=" + demo_command("library", pid_file), *ANY_PORT) as mux:
        with start_call(mux.line().strip(), "l__build_index", {"seconds": 0.5}) as response:
            response.readline()  # the first progress: it is at work
            mux.send_signal(number)
            assert b'"result"' in response.read()
        assert mux.wait() == 0
        assert "Traceback" not in mux.stderr
    assert not is_alive(read_pid(pid_file))


def test_second_signal_stops_at_once_and_leaves_no_child_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with Running("serve", "--upstream", "l=" + demo_command("library", pid_file), *ANY_PORT) as mux:
        with start_call(mux.line().strip(), "l__build_index", {"seconds": 10}) as response:
            response.readline()
            mux.send_signal(signal.SIGINT)
            mux.line("stderr", containing="once more")
            mux.send_signal(signal.SIGINT)
            assert mux.wait() == 0
            with pytest.raises((IncompleteRead, ConnectionError)):
                response.read()
        assert "Traceback" not in mux.stderr
    assert not is_alive(read_pid(pid_file))


def test_demo_shows_commands_that_work(invoke: Invoke) -> None:
    with Running("demo", *ANY_PORT) as demo:
        url = demo.line().strip()
        shown = [demo.line(containing="mcpmux ") for _ in range(5)]
        assert shown[0].split() == ["mcpmux", "ls", url]
        assert "/read" not in shown[1]
        assert invoke("read", url, "notes+note:///welcome").stdout.startswith("# Welcome")
        assert demo.stop() == 0
        assert demo.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="finds the servers that were started in /proc")
def test_demo_tells_of_a_server_that_was_killed(invoke: Invoke) -> None:
    with Running("demo", *ANY_PORT) as demo:
        url = demo.line().strip()
        assert invoke("call", url, "clock__now").exit_code == 0
        [clock] = [pid for pid in children_of(demo.pid) if b"mcpmux.demo.clock" in command_of(pid)]
        os.kill(clock, signal.SIGKILL)
        assert "clock" in demo.line("stderr", containing="signal 9")
        assert invoke("call", url, "clock__now").exit_code == 0
        assert demo.stop() == 0


def test_every_kind_of_listener_is_announced_and_can_be_asked(invoke: Invoke, tmp_path: Path) -> None:
    socket_file = tmp_path / "mux.sock"
    addresses = ("ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0", f"unix:{socket_file}", "http://127.0.0.1:0")
    options = [word for url in addresses for word in ("--listen", url)]
    with Running("serve", "--upstream", "clock=" + demo_command("clock"), *options) as mux:
        urls = [mux.line().strip() for _ in addresses]
        assert [url.partition(":")[0] for url in urls] == ["http", "ws", "tcp", "unix"]
        for url in urls:
            assert "clock__now" in invoke("ls", url, "tools").stdout
            assert json.loads(invoke("check", url, "--json").stdout)["state"] == "ready"
        assert mux.stop() == 0
        assert (mux.stdout, "Traceback" in mux.stderr) == ("", False)
    assert not socket_file.exists()
