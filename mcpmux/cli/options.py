"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from mcpmux.config import AnyListener, HttpListener, parse_listen_argument, parse_listener_argument
from mcpmux.errors import ConfigError
from mcpmux.logs import configure_logs

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_ADDRESS = "127.0.0.1:8484"

LEVELS = click.Choice(["debug", "info", "warning", "error"])

upstream_option: Decorator = click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="NAME=URL|COMMAND",
    help="One more server: its URL (http, ws, tcp, unix …) or command line. May be repeated.",
)


def _configure(_context: click.Context, _parameter: click.Parameter, level: str) -> None:
    configure_logs(level, "console")


def log_level_option(default: str) -> Decorator:
    """The option that says how much of what happens is logged, and `default` where it is left out."""
    return click.option(
        "--log-level",
        type=LEVELS,
        default=default,
        expose_value=False,
        show_default=True,
        callback=_configure,
        help="Least important events to write to stderr.",
    )


quiet_option: Decorator = log_level_option("error")
"""For a command whose answer tells all there is to tell."""


def parse_http(address: str, option: str = "--http") -> HttpListener:
    """The listener that an option describes. Raises click.BadParameter."""
    try:
        return parse_listener_argument(address)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def parse_listen(url: str) -> AnyListener:
    """The listener that `--listen` describes. Raises click.BadParameter."""
    try:
        return parse_listen_argument(url)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
