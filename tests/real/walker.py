"""Real clients of every revision, and the documents that they make of servers.

A document is what a client saw of one server:
* `revision`, `server` (its name), `capabilities` and `instructions`
* the whole lists `resources`, `templates`, `tools`, `prompts`; `pages`, the number of pages of each
* `contents` of every resource by URI, `messages` of every prompt by name
* `answers` to what else was to be asked, in order; `ping`

An answer is a result as received (of a tool call with the `progress heard` if the SDK can tell it), or
`{"error": {"code", "message", "data"}}`, or `{"unreadable": …}` when the SDK could not read the result.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.real.mux import Json
from tests.real.parts import npm_env, pip_env

PROGRAMS = Path(__file__).parent / "clients"
SECONDS = 150  # for one client to see all its servers


class Walker(NamedTuple):
    """A real client: the environment that has its SDK, its program, its newest revision."""

    kind: str
    env: str
    program: str
    revision: str
    sdk: str = ""
    mode: str = "auto"

    @property
    def http(self) -> bool:
        """Whether it knows Streamable HTTP."""
        return self.revision > "2024-11-05"

    @property
    def pages(self) -> bool:
        """Whether it can ask for the second page of a list."""
        return self.http or self.kind == "npm"

    @property
    def elicits(self) -> bool:
        """Whether it can be asked to elicit."""
        return self.revision >= "2025-06-18"

    @property
    def modern(self) -> bool:
        """Whether it speaks 2026-07-28 where the server does."""
        return self.revision >= "2026-07-28"

    def command(self) -> list[str]:
        """Return the command, without the targets. Installs the SDK if needed."""
        program = str(PROGRAMS / self.program)
        if self.kind == "pip":
            return [str(pip_env(self.env)), program]
        modules = npm_env(self.env)
        return [str(modules / ".bin" / "node"), program, str(modules / self.sdk)]


def _python(env: str, revision: str, program: str = "python1.py", mode: str = "auto") -> Walker:
    return Walker("pip", env, program, revision, mode=mode)


def _typescript(revision: str, sdk: str = "", program: str = "typescript1.mjs", mode: str = "auto") -> Walker:
    return Walker("npm", "clients", program, revision, sdk or f"sdk-{revision}", mode)


_NEWEST = "@modelcontextprotocol/client"

WALKERS = {
    "python-1.6.0": _python("client-2024-11-05", "2024-11-05"),
    "python-1.9.4": _python("client-2025-03-26", "2025-03-26"),
    "python-1.16.0": _python("client-2025-06-18", "2025-06-18"),
    "python-1": _python("sdk1", "2025-11-25"),
    "python-2-legacy": _python("sdk2", "2025-11-25", "python2.py", "legacy"),
    "python-2": _python("sdk2", "2026-07-28", "python2.py"),
    "typescript-1.7.0": _typescript("2024-11-05"),
    "typescript-1.11.5": _typescript("2025-03-26"),
    "typescript-1.17.5": _typescript("2025-06-18"),
    "typescript-1.32.2": _typescript("2025-11-25"),
    "typescript-2-legacy": _typescript("2025-11-25", _NEWEST, "typescript2.mjs", "legacy"),
    "typescript-2": _typescript("2026-07-28", _NEWEST, "typescript2.mjs"),
}


def see(walker: Walker, targets: Mapping[str, Json]) -> dict[str, Json]:
    """Return the documents that a client makes of servers, which it visits side by side."""
    arguments = [json.dumps({"mode": walker.mode, **target}) for target in targets.values()]
    done = subprocess.run(
        [*walker.command(), *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(targets, map(json.loads, done.stdout.splitlines()), strict=True))
