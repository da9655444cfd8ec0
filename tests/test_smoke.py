"""The commands that a person tries first, in processes, with a server and a client of the official SDK."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.process.running import COMMAND, WAIT_SECONDS, Running
from tests.real import sdk2_server
from tests.real.sdk import Client, see

SDK = Client(sys.executable, "auto", "2026-07-28")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command of mcpmux to its end."""
    return subprocess.run(
        [*COMMAND, *args], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def served_url() -> Iterator[str]:
    """Yield the URL of a mcpmux in front of a server on the official SDK, and stop it with Ctrl-C."""
    server = shlex.join([sys.executable, str(sdk2_server.__file__), "stdio"])
    with Running("serve", "--upstream", f"sdk={server}", "--http", "127.0.0.1:0") as mux:
        url = mux.line().strip()
        for _ in range(20):  # on a busy machine the server takes its time to start
            if "sdk__echo" in run("ls", url, "tools").stdout:
                break
        yield url
        assert mux.stop() == 0, mux.stderr


def test_demo_is_ready_answers_and_ends_upon_ctrl_c() -> None:
    with Running("demo", "--http", "127.0.0.1:0") as demo:
        url = demo.line().strip()
        listed = run("ls", url, "tools")
        assert listed.returncode == 0, listed.stderr
        assert "notes__add_note" in listed.stdout
        assert demo.stop() == 0, demo.stderr


def test_call_prints_what_the_tool_answers(served_url: str) -> None:
    called = run("call", served_url, "sdk__echo", "text=héllo")
    assert (called.returncode, called.stdout) == (0, "héllo\n"), called.stderr


def test_a_client_of_the_sdk_sees_through_mcpmux_what_the_server_has(served_url: str) -> None:
    server = [sys.executable, str(sdk2_server.__file__), "stdio"]
    seen = see(SDK, {"direct": {"command": server}, "merged": {"url": served_url}})
    assert seen["merged"]["revision"] == SDK.revision
    assert {tool["name"] for tool in seen["merged"]["tools"]} == {
        f"sdk__{tool['name']}" for tool in seen["direct"]["tools"]
    }
    assert seen["merged"]["contents"].keys() == {f"sdk+{uri}" for uri in seen["direct"]["contents"]}


def test_bad_input_ends_with_2_and_what_to_do() -> None:
    refused = run("serve", "nowhere.toml")
    assert refused.returncode == 2
    assert "nowhere.toml" in refused.stderr
