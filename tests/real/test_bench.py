"""`mcpmux bench` against servers of other people, over every transport, and against mcpmux itself."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import free_port
from tests.process.running import Running
from tests.real.parts import pip_env
from tests.real.web_server import run_web_server

BENCH_SECONDS = 120
SHORT = ["--count", "40", "--warm-up", "200ms", "--clients", "4"]
WEBSOCKET_SERVER = Path(__file__).parent / "websocket_sdk1.py"


def bench(directory: Path, *args: str) -> dict[str, Any]:
    """Run `mcpmux bench` with one target, check that it succeeds, and return the results."""
    file = directory / "results.json"
    command = [sys.executable, "-m", "mcpmux", "bench", *args, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BENCH_SECONDS, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (results,) = json.loads(file.read_text())["results"]
    return results


@pytest.fixture(scope="module")
def webs(everything_command: list[str], sdk2_command: list[str]) -> Iterator[dict[str, str]]:
    """Run servers, and yield their URLs."""
    port, sse_port, sdk_port, ws_port = (free_port() for _ in range(4))
    everything, websocket = everything_command[0], str(pip_env("websocket"))
    with ExitStack() as stack:
        run = stack.enter_context
        run(run_web_server([everything, "streamableHttp"], str(port), {"PORT": str(port)}))
        run(run_web_server([everything, "sse"], "running on port", {"PORT": str(sse_port)}))
        run(run_web_server([*sdk2_command[:-1], "http", str(sdk_port)], "listening on", {}))
        serve_websocket = [websocket, str(WEBSOCKET_SERVER), "serve", str(ws_port)]
        run(run_web_server(serve_websocket, "Uvicorn running", {}))
        demo = run(Running("demo", "--http", "127.0.0.1:0"))
        upstream = f"sdk2=http://127.0.0.1:{sdk_port}/mcp"
        mux = run(Running("serve", "--upstream", upstream, "--http", "127.0.0.1:0", "--log-level", "error"))
        yield {
            "mcpmux to sdk2": mux.line().strip(),
            "everything": f"http://127.0.0.1:{port}/mcp",
            "sse": f"http://127.0.0.1:{sse_port}/sse",
            "sdk2": f"http://127.0.0.1:{sdk_port}/mcp",
            "websocket": f"ws://127.0.0.1:{ws_port}/ws",
            "mcpmux": demo.line().strip(),
        }


WEB = {
    "everything": ("everything", "2025-11-25", []),
    "older revision": ("everything", "2025-03-26", ["--revision", "2025-03-26"]),
    "HTTP+SSE": ("sse", "2025-11-25", []),
    "SDK 2": ("sdk2", "2026-07-28", ["--check", "hash"]),
    "SDK 2, a session": ("sdk2", "2025-06-18", ["--revision", "2025-06-18", "--check", "length"]),
    "WebSocket": ("websocket", "2025-11-25", ["--sessions", "2"]),
    "mcpmux": ("mcpmux", "2026-07-28", ["--do", "read note*", "--do", "list", "--check", "hash"]),
    "mcpmux, sessions": ("mcpmux", "2025-11-25", ["--revision", "2025-11-25", "--sessions", "3"]),
    "calls": ("sdk2", "2026-07-28", ["--do", 'tool echo {"text": "{{n}}"}', "--do", "prompt simple"]),
    "subscribes": ("sdk2", "2026-07-28", ["--do", "subscribe memo:*"]),
    "subscribes in a session": ("everything", "2025-11-25", ["--do", "subscribe"]),
    "pings": ("everything", "2025-11-25", ["--do", "ping", "--revision", "2025-11-25"]),
}


SLOW = {"older revision", "SDK 2, a session", "mcpmux, sessions", "subscribes in a session", "pings"}


@pytest.mark.parametrize(
    ("name", "revision", "options"),
    [
        pytest.param(*run, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, run in WEB.items()
    ],
)
def test_running_server(webs: dict[str, str], tmp_path: Path, name: str, revision: str, options: list[str]):
    results = bench(tmp_path, webs[name], *SHORT, *options)
    assert results["about"]["revision"] == revision
    assert results["operations"]
    for operation in results["operations"].values():
        assert operation["count"] > 0
        assert operation["errors"] == {}


@pytest.mark.parametrize(
    "server",
    ["everything_command", pytest.param("filesystem_command", marks=pytest.mark.slow), "sdk2_command"],
)
def test_command(request: pytest.FixtureRequest, tmp_path: Path, server: str):
    results = bench(tmp_path, shlex.join(request.getfixturevalue(server)), *SHORT)
    assert results["about"]["transport"] == "stdio"
    (operation,) = results["operations"].values()
    assert operation["count"] > 0
    assert operation["errors"] == {}


def test_open_load_on_a_real_server_keeps_its_rate(webs: dict[str, str], tmp_path: Path):
    results = bench(tmp_path, webs["sdk2"], "--rate", "100/2s", "--even")
    (operation,) = results["operations"].values()
    assert operation["count"] == 200


@pytest.mark.parametrize(
    ("server", "revision"),
    [
        pytest.param("sdk2", "2026-07-28", marks=pytest.mark.slow),
        ("mcpmux to sdk2", "2026-07-28"),
        ("mcpmux to sdk2", "2025-11-25"),
    ],
)
def test_pushes_reach_every_subscriber(webs: dict[str, str], tmp_path: Path, server: str, revision: str):
    """Notify eight sessions once of each change of the SDK's server."""
    tool = "touch" if server == "sdk2" else "sdk2__touch"
    push = ["--push", f'tool {tool} {{"uri": "{{{{uri}}}}"}}', "--resources", "2", "--count", "10"]
    options = [*push, "--sessions", "8", "--do", "subscribe *memo:*", "--revision", revision]
    fan_out = bench(tmp_path, webs[server], *options)["fan_out"]
    assert (fan_out["changes"], fan_out["expected"], fan_out["deliveries"]) == (10, 80, 80)
    assert fan_out["duplicates"] == 0
    assert fan_out["delay"]["count"] == 80
