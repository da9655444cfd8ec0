"""WebSocket with peers of other people: the Python SDK 1.x as client and as server (uvicorn)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.process import free_port
from tests.process.running import Running
from tests.real.mux import START_SECONDS, Json
from tests.real.parts import pip_env
from tests.real.web_server import run_web_server

PROGRAM = Path(__file__).parent / "websocket_sdk1.py"
VISIT_SECONDS = 150


@pytest.fixture(scope="module")
def python() -> str:
    """Return a Python with the SDK and `websockets`."""
    return str(pip_env("websocket"))


@pytest.fixture(scope="module")
def server_url(python: str) -> Iterator[str]:
    """Run an SDK server, and yield its URL."""
    port = free_port()
    with run_web_server([python, str(PROGRAM), "serve", str(port)], "Uvicorn running", {}):
        yield f"ws://127.0.0.1:{port}/ws"


def visit(python: str, url: str) -> Json:
    """Run the SDK's client, and return its document."""
    command = [python, str(PROGRAM), "visit", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VISIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    document: Json = json.loads(done.stdout)
    return document


def serve(directory: Path, url: str, *listen: str) -> Running:
    """Run mcpmux in front of the server at `url`."""
    config = directory / "mux.json"
    patience = {"connect_timeout": START_SECONDS, "list_timeout": START_SECONDS}
    config.write_text(json.dumps({"upstreams": {"x": {"url": url, **patience}}}))
    options = [word for address in listen for word in ("--listen", address)]
    return Running("serve", str(config), *options, "--log-level", "error")


def test_the_sdks_client_sees_the_sdks_server_through_mcpmux(python: str, server_url: str, tmp_path: Path):
    with serve(tmp_path, server_url, "ws://127.0.0.1:0/mcp") as mux:
        seen = visit(python, mux.line().strip())
        direct = visit(python, server_url)
        assert mux.stop() == 0
    assert direct["tools"] == ["count"]
    assert direct["progress"] == [[1, 2], [2, 2]]
    assert direct["result"] == "counted; the model said hello"
    expected = {
        **direct,
        "tools": ["x__count"],
        "resources": ["x+memo:note"],
        "updates": ["x+memo:note"],
    }
    assert seen == expected


def test_the_same_through_a_chain_of_mcpmuxes_over_every_kind_of_stream(
    python: str, server_url: str, tmp_path: Path
):
    socket = f"unix:{tmp_path}/mux.sock"
    directories = [tmp_path / name for name in "abc"]
    for directory in directories:
        directory.mkdir()
    with (
        serve(directories[0], server_url, socket) as first,
        serve(directories[1], first.line().strip(), "tcp://127.0.0.1:0") as second,
        serve(directories[2], second.line().strip(), "ws://127.0.0.1:0") as third,
    ):
        seen = visit(python, third.line().strip())
        assert [mux.stop() for mux in (third, second, first)] == [0, 0, 0]
    assert seen["tools"] == ["x__x__x__count"]
    assert seen["resources"] == seen["updates"] == ["x+x+x+memo:note"]
    assert seen["text"] == "text of memo:note"
    assert seen["result"] == "counted; the model said hello"
    assert seen["progress"] == [[1, 2], [2, 2]]
    assert not Path(socket.removeprefix("unix:")).exists()
