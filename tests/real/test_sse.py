"""HTTP+SSE with real servers and clients: the documents are the same with and without mcpmux.

server-everything serves HTTP+SSE only; one mcpmux is in front of it, and another in front of that one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.process import free_port
from tests.process.running import COMMAND
from tests.real.mux import START_SECONDS, HttpMux, Json, write_config
from tests.real.parts import npm_env
from tests.real.web_server import run_web_server

HERE = Path(__file__).parent
SECONDS = 120  # for one client to see three servers
PATIENCE = {"connect_timeout": START_SECONDS, "list_timeout": START_SECONDS}


@pytest.fixture(scope="module")
def server(everything_command: list[str]) -> Iterator[str]:
    """Run server-everything, and yield the URL of its event stream."""
    port = free_port()
    command = [everything_command[0], "sse"]
    with run_web_server(command, "running on port", {"PORT": str(port)}):
        yield f"http://127.0.0.1:{port}/sse"


@pytest.fixture(scope="module")
def targets(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield the server itself, mcpmux in front of it, and mcpmux in front of that."""
    near = write_config(tmp_path_factory.mktemp("near"), {"x": {"url": server, "prefix": "", **PATIENCE}})
    with HttpMux(near) as first:
        far_config = {"x": {"url": sse_url(first), "prefix": "", "transport": "sse", **PATIENCE}}
        far = write_config(tmp_path_factory.mktemp("far"), far_config)
        with HttpMux(far) as second:
            yield [server, sse_url(first), sse_url(second)]


def sse_url(mux: HttpMux) -> str:
    return urlsplit(mux.url)._replace(path="/sse").geturl()


def see(command: list[str], targets: list[str]) -> list[Json]:
    done = subprocess.run([*command, *targets], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def say(*arguments: str) -> str:
    """Run a command of mcpmux, and return its output."""
    command = [*COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_alike(sights: list[Json]) -> None:
    direct, *others = sights
    assert "sampled" in json.dumps(direct["sampled"])
    assert len(others) == 2
    for sight in sights:
        progress = sight.pop("progress")
        assert progress in ([[1, 2], [2, 2]], [[2, 2]])  # the latest is enough for a busy client
    for sight in others:
        # The server has tools for what a client offers, and mcpmux offers all that there is.
        assert [tool for tool in direct["tools"] if tool not in sight["tools"]] == []
        assert {**sight, "tools": []} == {**direct, "tools": []}


def test_the_python_sdk_sees_the_same(targets: list[str], sdk1_python: str) -> None:
    check_alike(see([sdk1_python, str(HERE / "sse_client.py")], targets))


def test_the_typescript_sdk_sees_the_same(targets: list[str]) -> None:
    modules = npm_env("clients")
    command = [str(modules / ".bin" / "node"), str(HERE / "sse_client.mjs"), str(modules / "sdk-2025-11-25")]
    check_alike(see(command, targets))


@pytest.mark.parametrize("target", [0, 1], ids=["server-everything", "mcpmux"])
def test_the_command_line_works_with_such_a_url(targets: list[str], target: int) -> None:
    assert json.loads(say("check", targets[target], "--json"))["state"] == "ready"
    assert "features.md" in say("ls", targets[target])
