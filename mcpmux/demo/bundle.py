"""The bundled servers as upstreams: child processes of the running interpreter."""

from __future__ import annotations

import sys

from mcpmux.config import Stdio, Upstream

SERVERS = ("notes", "clock", "library")


def demo_upstreams() -> tuple[Upstream, ...]:
    """All bundled servers, each under its own name."""
    return tuple(
        Upstream(name=name, target=Stdio(sys.executable, ("-m", f"mcpmux.demo.{name}"))) for name in SERVERS
    )
