"""The group of all commands, each imported when it is asked for."""

from __future__ import annotations

import click

from mcpmux import __version__
from mcpmux.cli.lazy import LazyCommands, is_compiled

PLACES = {
    "serve": "mcpmux.cli.serve:serve",
    "demo": "mcpmux.cli.demo:demo",
    "ctl": "mcpmux.cli.ctl:ctl",
    "check": "mcpmux.cli.check:check",
    "ls": "mcpmux.cli.client:ls",
    "read": "mcpmux.cli.client:read",
    "call": "mcpmux.cli.client:call",
    "auth": "mcpmux.cli.auth:auth",
    "access": "mcpmux.cli.access:access",
    "audit": "mcpmux.cli.audit:audit",
    "traffic": "mcpmux.cli.traffic:traffic",
    "bench": "mcpmux.cli.bench:bench",
    "config": "mcpmux.cli.schema:config",
}


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    places=PLACES,
)
@click.version_option(__version__, message="%(prog)s %(version)s" + " (compiled)" * is_compiled())
def cli() -> None:
    """One Model Context Protocol endpoint in front of many servers.

    Exit code 0: done; 1: it did not work out; 2: what was written, here or in a file, has to be changed.

    \b
    Examples:
      mcpmux demo                                   see it work, nothing to install
      mcpmux serve mcpmux.toml                      the servers of a file at http://127.0.0.1:8484/mcp
      mcpmux serve --upstream time="uvx mcp-server-time"
      mcpmux ls https://example.com/mcp             what a server has
    """
