"""The suite's client program: our client, straight to the suite's server or through mcpmux.

Usage: adapter ROUTE NODE MODULES URL. Through mcpmux the URL is the only, unprefixed upstream, so what the
suite's server sees is what mcpmux sent. ROUTE is

    direct      the client program alone, to know that it and the suite are right
    mcpmux      the client speaks to mcpmux in the era of the suite's server
    crossed     and in the other era
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.process.running import Running

CLIENT = Path(__file__).with_name("client.mjs")
REVISION = "MCP_CONFORMANCE_PROTOCOL_VERSION"
NEWEST = "2026-07-28"
NEWEST_LEGACY = "2025-11-25"


def main(route: str, node: str, modules: str, url: str) -> int:
    """Run the client to its end: its exit code, or mcpmux's when only that ended badly."""
    if route == "direct":
        return run_client(node, modules, url, os.environ[REVISION])
    with Running("serve", url, "--http", "127.0.0.1:0", "--log-level", "info") as mux:
        code = run_client(node, modules, mux.line().strip(), client_revision(route))
        mux_code = mux.stop()
        print(mux.stderr, file=sys.stderr)
    return code or mux_code


def client_revision(route: str) -> str:
    """Return the revision that the client speaks to mcpmux."""
    revision = os.environ[REVISION]
    if route == "mcpmux":
        return revision
    return NEWEST_LEGACY if revision == NEWEST else NEWEST


def run_client(node: str, modules: str, url: str, revision: str) -> int:
    """Run the program from standard input, for Node looks for packages where it runs."""
    command = [node, "--input-type=module", "-", url]
    env = {**os.environ, REVISION: revision}
    with CLIENT.open("rb") as program:
        return subprocess.run(command, stdin=program, cwd=modules, env=env, check=False).returncode


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the suite is tired of waiting: mcpmux ends, too
    sys.exit(main(*sys.argv[1:]))
