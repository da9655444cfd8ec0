"""Real clients: the SDKs' own, each run by the Python of its environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.real.mux import Json

PROGRAMS = Path(__file__).parent / "clients"
SECONDS = 150  # for one client to see all its servers


class Client(NamedTuple):
    """A real client: its Python (or the fixture that has it), its mode, and what it speaks to mcpmux."""

    python: str
    mode: str
    revision: str
    program: str = "python2.py"

    def found(self, request: pytest.FixtureRequest) -> Client:
        """Return the client with the path of its Python."""
        return self._replace(python=request.getfixturevalue(self.python))


CLIENTS = {
    "sdk1": Client("sdk1_python", "legacy", "2025-11-25", "python1.py"),
    "sdk2": Client("sdk2_python", "auto", "2026-07-28"),
    "sdk2-legacy": Client("sdk2_python", "legacy", "2025-11-25"),
}


def see(client: Client, targets: Mapping[str, Json]) -> dict[str, Json]:
    """Return the documents of `walker.py` that a client makes of servers, which it visits side by side.

    The client declares no capabilities.
    """
    settings = {"mode": client.mode, "answers": False}
    arguments = [json.dumps({**target, **settings}) for target in targets.values()]
    command = [client.python, str(PROGRAMS / client.program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(targets, map(json.loads, done.stdout.splitlines()), strict=True))
