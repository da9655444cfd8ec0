"""`mcpmux serve` and `mcpmux demo`: serve clients until a signal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import attrs
import click
import structlog
import trio

from mcpmux import __version__, app
from mcpmux.app import ConfigFile
from mcpmux.app.sharing import Hello, SharedMux, SharedPlace, ensure, join, noting_admin, pipe
from mcpmux.cli.options import (
    DEFAULT_ADDRESS,
    HTTP,
    LEVELS,
    LISTEN,
    choose_config,
    config_argument,
    is_file,
    load_config,
    log_level_option,
    stdio_option,
    upstream_option,
)
from mcpmux.cli.process import allow_clients, run
from mcpmux.config import AnyListener, Config, HttpListener, Listeners, Stdio, Upstream
from mcpmux.config.listener import LISTENER_KEYS, parse_http_argument
from mcpmux.config.reading import STANDARD_INPUT
from mcpmux.errors import ConfigError, TransportError
from mcpmux.logs import set_up_logs, tell_notes
from mcpmux.mux.rewrite import WORKERS_LIMIT
from mcpmux.transports.stdio import open_stdio

log = structlog.get_logger()

JOIN_TRIES = 3  # of a host app that starts while an unused shared mcpmux ends


@click.command()
@config_argument
@upstream_option
@stdio_option
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
@click.option(
    "--share/--no-share",
    default=None,
    help="With --stdio: serve all host apps of this user that start CONFIG from one process.",
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
    share: bool | None,
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
      mcpmux serve mcpmux.toml --stdio --share      the same from one process for all host apps
    """
    config = choose_config(config, upstreams)
    if stdio and config == STANDARD_INPUT:
        raise ConfigError(["--stdio: CONFIG is read from standard input already; put it into a file"])

    shared: SharedMux | None = None

    def load() -> Config:
        loaded = load_config(config, upstreams, allow_anyone=allow_anyone, known_file=file is not None)
        logging = {key: word for key, word in (("level", log_level), ("format", log_format)) if word}
        if shared is not None:  # its clients come through the processes of host apps, each with its view
            listeners = Listeners()
        else:
            listeners = choose_listeners(loaded.listeners, stdio, [*http, *listen])
            if view is not None and not listeners.stdio:
                raise ConfigError(["--view: it is for --stdio; clients of a listener connect to /mcp/NAME"])
            if view is not None:
                listeners = attrs.evolve(listeners, stdio_view=view)
        return attrs.evolve(loaded, listeners=listeners, logging=attrs.evolve(loaded.logging, **logging))

    open_file = partial(ConfigFile, read=load, is_watched=not no_watch)
    file = open_file(config) if config is not None and is_file(config) else None
    loaded = load() if file is None else file.load()
    has_own = upstreams or http or listen or workers > 1
    if file is not None and not has_own and is_to_share(loaded.listeners, share):
        place = find_shared_place(loaded, file.path)
        if place is not None:
            for _ in range(JOIN_TRIES):
                if ensure(place):
                    break
                if run(serve_through, place, loaded):
                    return
            else:
                raise TransportError(f"the shared mcpmux ended {JOIN_TRIES} times; its log is {place.log}")
            # This is the new process.
            shared = SharedMux(place, place.fingerprints())
            config = str(place.file)
            file = open_file(config)
            loaded = file.load()
    run_server(loaded, file, workers=workers, shared=shared)


def is_to_share(listeners: Listeners, share: bool | None) -> bool:
    """Return whether a host app shares its mcpmux. `share`: as the option says, None without it."""
    return listeners.stdio and not listeners.bound and (listeners.share if share is None else share)


def find_shared_place(config: Config, file: str) -> SharedPlace | None:
    """Return where the shared mcpmux of a file is; None, with a warning, where there can be none."""
    set_up_logs(config)
    try:
        if os.name == "nt":
            raise TransportError("this system has no Unix sockets for it")
        return SharedPlace.of(file)
    except TransportError as error:
        log.warning("this host app has a mcpmux of its own", reason=str(error))
        return None


async def serve_through(place: SharedPlace, config: Config) -> bool:
    """Serve the program on stdin and stdout by the shared mcpmux. Return False if that has ended before.

    Raises TransportError.
    """
    hello = Hello(view=config.listeners.stdio_view or "", environ=place.fingerprints())
    with open_stdio() as own:
        joined = await join(place, hello)
        if joined is None:
            return False
        stream, welcome = joined
        stop = f"`mcpmux stop {shlex.quote(str(place.file))}` ends it, and the next host app starts it anew"
        if welcome.version != __version__:
            log.warning("the shared mcpmux has another version", version=welcome.version, advice=stop)
        if welcome.differing:
            log.warning("the shared mcpmux has other values", variables=welcome.differing, advice=stop)
        if not await pipe(own, stream):
            raise TransportError(f"the shared mcpmux has ended; its log is {place.log}")
    return True


def choose_listeners(configured: Listeners, stdio: bool, chosen: Sequence[AnyListener]) -> Listeners:
    """Return the listeners of the options, else of the file, else the default one. Raises InvalidValue."""
    if stdio or chosen:
        of_kind: dict[str, Any] = {
            key: tuple(listener for listener in chosen if isinstance(listener, kind))
            for kind, key in LISTENER_KEYS.items()
        }
        view, share = configured.stdio_view, configured.share
        return Listeners(stdio=stdio, stdio_view=view, share=share, **of_kind)
    if configured.stdio or configured.bound:
        return configured
    return Listeners(http=(parse_http_argument(DEFAULT_ADDRESS),))


def run_server(
    config: Config,
    file: ConfigFile | None = None,
    *,
    workers: int = 1,
    shared: SharedMux | None = None,
) -> None:
    """Serve until stopped, printing each URL. `file`, `shared`: see `app.serve`. Raises what that raises."""
    followers = [set_up_logs, allow_clients, tell_notes]
    for follow in followers:
        follow(config)
    announce = partial(click.echo, err=config.listeners.stdio)  # stdout then belongs to the protocol
    serving = partial(app.serve, shared=shared)
    if workers > 1:
        # Not at the top: few serve from several processes.
        from mcpmux.app.workers.supervisor import serve_workers

        serving = partial(serve_workers, workers=workers)
    with nullcontext(announce) if file is None else noting_admin(file.path, announce) as note:
        trio.run(partial(serving, config, note, file, followers=followers))


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
