"""The group of all commands."""

from __future__ import annotations

import click

from mcpmux import __version__
from mcpmux.cli.audit import audit
from mcpmux.cli.bench import bench
from mcpmux.cli.browse import ls, read
from mcpmux.cli.call import call
from mcpmux.cli.check import check
from mcpmux.cli.demo import demo
from mcpmux.cli.schema import config
from mcpmux.cli.serve import serve
from mcpmux.cli.traffic import traffic
from mcpmux.cli.wall import Commands


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    commands=[serve, demo, check, ls, read, call, audit, traffic, bench, config],
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """One Model Context Protocol endpoint in front of many servers.

    \b
    Examples:
      mcpmux demo                                   see it work, nothing to install
      mcpmux serve mcpmux.toml                      the servers of a file at http://127.0.0.1:8484/mcp
      mcpmux serve --upstream time="uvx mcp-server-time"
      mcpmux ls https://example.com/mcp             what a server has
    """
