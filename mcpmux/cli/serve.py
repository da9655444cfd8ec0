"""`mcpmux serve` and `mcpmux demo`: serve clients until told to stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import click
import trio

from mcpmux import app
from mcpmux.app import ConfigFile
from mcpmux.cli.completion import complete_file
from mcpmux.cli.options import (
    DEFAULT_ADDRESS,
    HTTP,
    LEVELS,
    LISTEN,
    choose_config,
    is_file,
    load_config,
    log_level_option,
    upstream_option,
)
from mcpmux.cli.process import allow_clients
from mcpmux.config import AnyListener, Config, HttpListener, Listeners, Stdio, Upstream
from mcpmux.config.listener import LISTENER_KEYS, parse_http_argument
from mcpmux.config.reading import STANDARD_INPUT
from mcpmux.errors import ConfigError
from mcpmux.logs import set_up_logs, tell_notes
from mcpmux.mux.rewrite import WORKERS_LIMIT


@click.command()
@click.argument("config", required=False, shell_complete=complete_file)
@upstream_option
@click.option("--stdio", is_flag=True, help="Serve the program that started mcpmux, on stdin and stdout.")
@click.option("--view", help="The view that the program on stdin and stdout gets; see [views].")
@click.option("--http", multiple=True, type=HTTP, help="Address to listen on. May be repeated.")
@click.option(
    "--listen",
    multiple=True,
    type=LISTEN,
    help="Address to listen on: http, ws or tcp://HOST:PORT, or unix:PATH. May be repeated.",
)
@click.option(
    "--allow-anyone",
    is_flag=True,
    help="Start even if clients on the network need no authentication; see [auth] in the configuration.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_LIMIT),
    default=1,
    show_default=True,
    help="Number of worker processes.",
)
@click.option("--no-watch", is_flag=True, help="Reload CONFIG only on SIGHUP, not when it changes.")
@click.option("--log-level", type=LEVELS, help="Lowest level of log events to write to stderr.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Lines for people, or JSON.")
def serve(
    config: str | None,
    upstreams: tuple[str, ...],
    stdio: bool,
    view: str | None,
    http: tuple[HttpListener, ...],
    listen: tuple[AnyListener, ...],
    allow_anyone: bool,
    workers: int,
    no_watch: bool,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Serve many servers as one until Ctrl-C. A second Ctrl-C stops at once.

    CONFIG is a TOML or JSON file (the file of a host app works too), - for standard input, or one server by
    its URL or its command line in quotes. The default is mcpmux.toml. Options override the file's listeners
    and logging. Without any listener mcpmux listens at 127.0.0.1:8484. It prints each URL when it is ready.

    --workers N serves each address from N processes, to use several processors. A server that mcpmux starts
    runs once for all of them, unless its `per_worker` is set.

    A file is read again when it changes, and on SIGHUP. Only what changed is restarted. A file with mistakes
    changes nothing.

    \b
    Examples:
      mcpmux serve
      mcpmux serve ~/.cursor/mcp.json --http 127.0.0.1:9000
      mcpmux serve --upstream time="uvx mcp-server-time" --upstream web=https://example.com/mcp
      mcpmux serve mcpmux.toml --listen ws://127.0.0.1:9000/mcp --listen unix:mcpmux.sock
      mcpmux serve mcpmux.toml --stdio              for a host app that starts its servers itself
      mcpmux serve mcpmux.toml --stdio --view coding
    """
    config = choose_config(config, upstreams)
    if stdio and config == STANDARD_INPUT:
        raise ConfigError(["--stdio: CONFIG is read from standard input already; put it into a file"])

    def load() -> Config:
        loaded = load_config(config, upstreams, allow_anyone=allow_anyone)
        logging = {key: word for key, word in (("level", log_level), ("format", log_format)) if word}
        listeners = choose_listeners(loaded.listeners, stdio, [*http, *listen])
        if view is not None and not listeners.stdio:
            raise ConfigError(["--view: it is for --stdio; clients of a listener connect to /mcp/NAME"])
        if view is not None:
            listeners = attrs.evolve(listeners, stdio_view=view)
        return attrs.evolve(loaded, listeners=listeners, logging=attrs.evolve(loaded.logging, **logging))

    file = ConfigFile(config, load) if config is not None and is_file(config) else None
    run_server(load() if file is None else file.load(), file, watch=not no_watch, workers=workers)


def choose_listeners(configured: Listeners, stdio: bool, chosen: Sequence[AnyListener]) -> Listeners:
    """The listeners of the options, or else of the file, or else the default one. Raises InvalidValue."""
    if stdio or chosen:
        of_kind: dict[str, Any] = {
            key: tuple(listener for listener in chosen if isinstance(listener, kind))
            for kind, key in LISTENER_KEYS.items()
        }
        return Listeners(stdio=stdio, **of_kind)
    if configured.stdio or configured.bound:
        return configured
    return Listeners(http=(parse_http_argument(DEFAULT_ADDRESS),))


def run_server(
    config: Config, file: ConfigFile | None = None, *, watch: bool = True, workers: int = 1
) -> None:
    """Serve until stopped, printing each URL. `file`: see `app.serve`. Raises what that raises."""
    followers = [set_up_logs, allow_clients, tell_notes]
    for follow in followers:
        follow(config)
    announce = partial(click.echo, err=config.listeners.stdio)  # stdout then belongs to the protocol
    serving = app.serve
    if workers > 1:
        # Not at the top: few serve from several processes.
        from mcpmux.app.workers.supervisor import serve_workers

        serving = partial(serve_workers, workers=workers)
    trio.run(partial(serving, config, announce, file, watch=watch, followers=followers))


SERVERS = ("notes", "clock", "library")  # modules of `mcpmux.demo`

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
@click.option("--http", type=HTTP, default=DEFAULT_ADDRESS, show_default=True, help="Address to listen on.")
@log_level_option("warning")
def demo(http: HttpListener) -> None:
    """Serve three bundled servers, to show what mcpmux does.

    They are real MCP servers that mcpmux starts as child processes. One of them knows only an older revision
    of the protocol. Nothing is installed, and nothing leaves this machine.

    \b
    Examples:
      mcpmux demo
      mcpmux demo --http 127.0.0.1:0                let the system choose a port
    """

    def guide(url: str) -> None:
        click.echo(GUIDE.format(url=url, count=len(SERVERS), names=", ".join(SERVERS)))

    upstreams = tuple(
        Upstream(name=name, target=Stdio(sys.executable, ("-m", f"mcpmux.demo.{name}"))) for name in SERVERS
    )
    config = Config(upstreams=upstreams, listeners=Listeners(http=(http,)))
    allow_clients(config)
    trio.run(app.serve, config, guide)
