"""`mcpmux serve`: the mux for clients, until it is told to stop."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import click
import trio

from mcpmux import app
from mcpmux.cli.options import DEFAULT_ADDRESS, LEVELS, parse_http, parse_listen, upstream_option
from mcpmux.cli.source import STANDARD_INPUT, load_config
from mcpmux.config import (
    AnyListener,
    Config,
    HttpListener,
    Listeners,
    TcpListener,
    UnixListener,
    WebSocketListener,
)
from mcpmux.errors import ConfigError
from mcpmux.logs import configure_logs
from mcpmux.traffic.redaction.redactor import Redactor


@click.command()
@click.argument("config", required=False)
@upstream_option
@click.option("--stdio", is_flag=True, help="Serve the program that started mcpmux, on stdin and stdout.")
@click.option("--http", "http", multiple=True, metavar="HOST:PORT", help="Listen there. May be repeated.")
@click.option(
    "--listen",
    multiple=True,
    metavar="URL",
    help="Listen at http, ws or tcp://HOST:PORT, or at unix:PATH. May be repeated.",
)
@click.option("--log-level", type=LEVELS, help="Least important events to write to stderr.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or for machines.")
def serve(
    config: str | None,
    upstreams: tuple[str, ...],
    stdio: bool,
    http: tuple[str, ...],
    listen: tuple[str, ...],
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Serve many servers as one, until Ctrl-C; once more stops at once.

    CONFIG is a TOML or JSON file (that of a host app will do), - for standard input, or one server by its
    URL or its command line in quotes. Options override the file's listeners and logging; when nothing
    says where to listen it is 127.0.0.1:8484. Each URL is printed when it is ready.

    \b
    Examples:
      mcpmux serve mcpmux.toml
      mcpmux serve ~/.cursor/mcp.json --http 127.0.0.1:9000
      mcpmux serve --upstream time="uvx mcp-server-time" --upstream web=https://example.com/mcp
      mcpmux serve mcpmux.toml --listen ws://127.0.0.1:9000/mcp --listen unix:mcpmux.sock
      mcpmux serve mcpmux.toml --stdio              for a host app that starts its servers itself
    """
    if stdio and config == STANDARD_INPUT:
        raise ConfigError(["--stdio: standard input is the configuration already; put it into a file"])
    loaded = load_config(config, upstreams)
    run_server(
        attrs.evolve(
            loaded,
            listeners=choose_listeners(
                loaded.listeners,
                stdio,
                [*(parse_http(address) for address in http), *(parse_listen(url) for url in listen)],
            ),
            logging=attrs.evolve(
                loaded.logging,
                level=log_level or loaded.logging.level,
                format=log_format or loaded.logging.format,
            ),
        )
    )


def choose_listeners(configured: Listeners, stdio: bool, chosen: Sequence[AnyListener]) -> Listeners:
    """Where to serve: what the options say, else what the file says, else the usual address."""
    if stdio or chosen:
        return Listeners(
            stdio=stdio,
            http=tuple(each for each in chosen if isinstance(each, HttpListener)),
            websocket=tuple(each for each in chosen if isinstance(each, WebSocketListener)),
            tcp=tuple(each for each in chosen if isinstance(each, TcpListener)),
            unix=tuple(each for each in chosen if isinstance(each, UnixListener)),
        )
    if configured.stdio or configured.http or configured.streams:
        return configured
    return Listeners(http=(parse_http(DEFAULT_ADDRESS),))


def run_server(config: Config) -> None:
    """Serve until stopped, printing each URL. Raises what `app.serve` raises."""
    redactor = Redactor(config.redaction)
    configure_logs(config.logging.level, config.logging.format, lambda text: redactor.redact_text(text)[0])
    on_stderr = config.listeners.stdio  # then stdout belongs to the protocol

    def announce(url: str) -> None:
        click.echo(url, err=on_stderr)

    trio.run(app.serve, config, announce)
