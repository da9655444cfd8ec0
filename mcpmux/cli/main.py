"""`mcpmux` and `mcpmux traffic`: the groups whose commands are imported when they are run."""

from __future__ import annotations

import click

from mcpmux import __version__
from mcpmux.cli.lazy import LazyCommands, is_compiled

PLACES = {
    "serve": "mcpmux.cli.serve:serve",
    "demo": "mcpmux.cli.serve:demo",
    "ctl": "mcpmux.cli.ctl:ctl",
    "check": "mcpmux.cli.check:check",
    "ls": "mcpmux.cli.client:ls",
    "read": "mcpmux.cli.client:read",
    "call": "mcpmux.cli.client:call",
    "auth": "mcpmux.cli.auth:auth",
    "access": "mcpmux.cli.config:access",
    "audit": "mcpmux.cli.audit:audit",
    "traffic": "mcpmux.cli.main:traffic",
    "bench": "mcpmux.cli.bench:bench",
    "config": "mcpmux.cli.config:config",
}
TRAFFIC_PLACES = {
    "tail": "mcpmux.cli.traffic_tail:tail",
    "show": "mcpmux.cli.traffic_search:show",
    "grep": "mcpmux.cli.traffic_search:grep",
    "stats": "mcpmux.cli.traffic_report:stats",
    "export": "mcpmux.cli.traffic_report:export",
    "replay": "mcpmux.cli.traffic_replay:replay",
    "mock": "mcpmux.cli.traffic_replay:mock",
}


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    places=PLACES,
)
@click.version_option(__version__, message="%(prog)s %(version)s" + " (compiled)" * is_compiled())
def cli() -> None:
    """Put one Model Context Protocol endpoint in front of many servers.

    Exit codes: 0 for success, 1 for failure, 2 for a mistake on the command line or in a file.

    \b
    Examples:
      mcpmux demo                                   see it work, without installing anything
      mcpmux serve mcpmux.toml                      the servers of a file at http://127.0.0.1:8484/mcp
      mcpmux serve --upstream time="uvx mcp-server-time"
      mcpmux ls https://example.com/mcp             list what a server offers
    """


@click.group(cls=LazyCommands, places=TRAFFIC_PLACES)
def traffic() -> None:
    """Watch, search, measure and export the traffic of mcpmux.

    \b
    Examples:
      mcpmux traffic tail mcpmux-capture                              live, as it passes
      mcpmux traffic stats mcpmux-capture method=resources/read       rates, errors, latency
    """
