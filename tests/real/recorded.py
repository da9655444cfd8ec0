"""A real client's session with real servers through mcpmux, recorded; then replayed, and served as a mock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.browser.sights import SIGHTS, Asking
from tests.process.running import COMMAND, Running
from tests.real.merged import exposed_params
from tests.real.mux import HttpMux, Json
from tests.real.walker import Walker, see

Door = str
"""How the client reaches mcpmux: `http` or `stdio`."""

REPLAY_SECONDS = 120
REPLAY = ("--with-tools", "--json")


class Recording(NamedTuple):
    """What was recorded: by whom, what it saw, and where the capture and the configuration are."""

    walker: Walker
    document: Json
    asking: list[Asking]
    capture: Path
    config: Path


def write_capture_config(directory: Path, upstreams: dict[str, Json], **tables: Json) -> Path:
    """A configuration that captures everything into `capture` beside it. `tables`: more of it."""
    capture = {"level": "full", "directory": str(directory / "capture")}
    path = directory / "mcpmux.json"
    path.write_text(json.dumps({"upstreams": upstreams, "capture": capture, **tables}))
    return path


def asking_all(servers: dict[str, str], walker: Walker) -> list[Asking]:
    """What a client asks of all servers behind one mcpmux. `servers`: name of the upstream → its sight."""
    return [
        (method, exposed_params(method, params, name))
        for name, sight in servers.items()
        for method, params in (
            *SIGHTS[sight].asking,
            *SIGHTS[sight].sampling,
            *(SIGHTS[sight].elicitation if walker.elicits else ()),
        )
    ]


def record(walker: Walker, door: Door, config: Path, asking: list[Asking]) -> Recording:
    """Have the client take its walk through a mux that captures."""
    document = walk(walker, door, serve_command(config), config, asking)
    return Recording(walker, document, asking, config.with_name("capture"), config)


def serve_command(config: Path) -> list[str]:
    """mcpmux as a host app starts it."""
    return [sys.executable, "-m", "mcpmux", "serve", str(config), "--stdio", "--log-level", "error"]


def walk(walker: Walker, door: Door, command: list[str], config: Path, asking: list[Asking]) -> Json:
    """The document of a client that reaches a mux with this configuration, or on stdio this command."""
    if door == "stdio":
        return _see(walker, {"command": command}, asking)
    with HttpMux(config) as mux:
        document = _see(walker, {"url": mux.url}, asking)
        assert mux.stop() == 0, mux.stderr
    return document


def mocked(recording: Recording, door: Door) -> Json:
    """The document of the same client in front of the mock."""
    mock = ["traffic", "mock", str(recording.capture), "--log-level", "error"]
    if door == "stdio":
        command = [*COMMAND, *mock, "--stdio"]
        return _see(recording.walker, {"command": command}, recording.asking)
    with Running(*mock, "--listen", "127.0.0.1:0") as server:
        document = _see(recording.walker, {"url": server.line().strip()}, recording.asking)
        assert server.stop() == 0, server.stderr
    return document


def replay(recording: Recording, target: str, *options: str) -> tuple[int, Json]:
    """Exit code and report of a replay to `target`, tools included."""
    done = subprocess.run(
        [*COMMAND, "traffic", "replay", str(recording.capture), "--to", target, *REPLAY, *options],
        capture_output=True,
        text=True,
        timeout=REPLAY_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def _see(walker: Walker, target: Json, asking: list[Asking]) -> Json:
    return see(walker, {"all": {**target, "read": True, "asking": asking}})["all"]
