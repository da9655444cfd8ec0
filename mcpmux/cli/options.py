"""Options that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from mcpmux.config import (
    URL_STARTS,
    AnyListener,
    Config,
    HttpListener,
    parse_http_argument,
    parse_listen_argument,
    parse_upstream_argument,
    parse_upstream_arguments,
    read_config,
)
from mcpmux.config.report import Unfit
from mcpmux.errors import ConfigError
from mcpmux.logs import configure_logs, redact_logs
from mcpmux.traffic.redaction.redactor import Redactor

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
        return parse_http_argument(address)
    except Unfit as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def parse_listen(url: str) -> AnyListener:
    """The listener that `--listen` describes. Raises click.BadParameter."""
    try:
        return parse_listen_argument(url)
    except Unfit as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None


# What a command is pointed at: a configuration, or one server by its URL or its command line.

STANDARD_INPUT = "-"

EXPECTED = "a configuration file, a URL with http://, https:// or the like, or a command line in quotes"


def load_config(target: str | None, upstreams: Sequence[str] = ()) -> Config:
    """The configuration of `target`, with the servers of `--upstream` added. Raises ConfigError.

    From then on its [redaction] holds for the log.
    """
    added = parse_upstream_arguments(upstreams)
    if target is not None:
        config = _read_target(target)
        redact_logs(Redactor(config.redaction))
        return attrs.evolve(config, upstreams=(*config.upstreams, *added))
    if not added:
        raise ConfigError([f"name what to connect to: CONFIG ({EXPECTED}), or --upstream NAME=URL"])
    return Config(upstreams=added)


def _read_target(target: str) -> Config:
    if _is_server(target):
        try:
            return Config(upstreams=(parse_upstream_argument(target),))
        except Unfit as mistake:
            raise ConfigError([str(mistake)]) from None
    if not target:
        raise ConfigError([f"CONFIG is empty; expected {EXPECTED}"])
    if target != STANDARD_INPUT and not Path(target).exists():
        raise ConfigError([f"{target}: there is no such file; expected {EXPECTED}"])
    return read_config(target, os.environ, _read_stdin)


def is_file(target: str) -> bool:
    """Whether `target` is a file, which can be read again."""
    return target != STANDARD_INPUT and not _is_server(target) and Path(target).is_file()


def _is_server(target: str) -> bool:
    """Whether `target` is one server itself; a file whose name has blanks in it is none."""
    if target.startswith(URL_STARTS):
        return True
    return " " in target and not Path(target).exists()


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError([f"standard input: expected UTF-8 text, byte {error.start + 1} is none"]) from None
