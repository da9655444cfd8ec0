"""`mcpmux demo`: bundled servers behind the mux, and what to try with them."""

from __future__ import annotations

import click
import trio

from mcpmux import app
from mcpmux.cli.options import DEFAULT_ADDRESS, log_level_option, parse_http
from mcpmux.cli.process import allow_clients
from mcpmux.config import Config, Listeners
from mcpmux.demo.bundle import SERVERS, demo_upstreams

GUIDE = """\
{url}

{count} servers ({names}) are behind this endpoint. Try in another terminal:

  mcpmux ls {url}
  mcpmux read {url} 'notes+note:///welcome'
  mcpmux read {url} 'library+book:///cover' -o cover.png
  mcpmux call {url} clock__now zone=Europe/Paris
  mcpmux call {url} library__build_index seconds:=3

Or give the URL to any MCP client. Ctrl-C stops it."""


@click.command()
@click.option("--http", metavar="HOST:PORT", default=DEFAULT_ADDRESS, show_default=True, help="Listen there.")
@log_level_option("warning")
def demo(http: str) -> None:
    """Serve three bundled servers, to see what mcpmux does.

    They are real MCP servers, started as child processes; one of them knows only an older revision of the
    protocol. Nothing is installed and nothing leaves this machine.

    \b
    Examples:
      mcpmux demo
      mcpmux demo --http 127.0.0.1:0                let the system choose a port
    """
    config = Config(upstreams=demo_upstreams(), listeners=Listeners(http=(parse_http(http),)))
    allow_clients(config)
    trio.run(app.serve, config, guide)


def guide(url: str) -> None:
    """Say where it is and what to do next."""
    click.echo(GUIDE.format(url=url, count=len(SERVERS), names=", ".join(SERVERS)))
