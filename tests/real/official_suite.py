"""The official conformance suite as a program."""

from __future__ import annotations

import os
import subprocess

from tests.real.parts import ROOT, npm_env


def official_node() -> str:
    """Return the path of the Node that the suite brings."""
    return str(npm_env("conformance") / ".bin" / "node")


def run_official_suite(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the suite to its end, `seconds` at most. Node keeps what it compiles, a third of its work."""
    suite = npm_env("conformance")
    program = suite / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return subprocess.run(
        [official_node(), str(program), *arguments],
        cwd=ROOT,
        env={**os.environ, "NODE_COMPILE_CACHE": str(suite.parent / "compile-cache")},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
