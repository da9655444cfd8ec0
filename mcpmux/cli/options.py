"""Options that several commands share, and the configuration that a command line names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from mcpmux.cli.process import Mistake
from mcpmux.config import Config, Http, Secret, WebSocket
from mcpmux.config.argument import parse_listen_argument, parse_upstream_argument, parse_upstream_arguments
from mcpmux.config.layout import URL_STARTS
from mcpmux.config.listener import parse_http_argument
from mcpmux.config.reading import STANDARD_INPUT
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import HEADER_VALUE
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config
from mcpmux.logs import configure_logs, redact_logs
from mcpmux.traffic.redaction.redactor import Redactor

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_ADDRESS = "127.0.0.1:8484"
DEFAULT_FILE = "mcpmux.toml"
"""The configuration of commands that change one, or that need one and are not told which."""

PATH = click.Path(path_type=Path)
LEVELS = click.Choice(["debug", "info", "warning", "error"])


class Parsed(click.ParamType[Any]):
    """An option whose text `parse` reads. InvalidValue becomes a Mistake. `name` is shown in help."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType. A default that is no text stays as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except InvalidValue as mistake:
            what = param.opts[0] if isinstance(param, click.Option) else self.name
            raise Mistake(f"{what}: {mistake}") from None


HTTP = Parsed("HOST:PORT", parse_http_argument)
LISTEN = Parsed("URL", parse_listen_argument)
ADDRESS = Parsed(
    "HOST:PORT|URL",
    lambda text: parse_listen_argument(text) if text.startswith(URL_STARTS) else parse_http_argument(text),
)

upstream_option: Decorator = click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="NAME=URL|COMMAND",
    help="Add a server by its URL (http, ws, tcp, unix …) or command line. May be repeated.",
)
json_option = partial(click.option, "--json", "as_json", is_flag=True)
upstream_json_option: Decorator = json_option(help="Print one JSON object per upstream, one per line.")


def log_level_option(default: str) -> Decorator:
    """The option `--log-level`, which configures the log at once."""
    return click.option(
        "--log-level",
        type=LEVELS,
        default=default,
        expose_value=False,
        show_default=True,
        callback=lambda _context, _parameter, level: configure_logs(level, "console"),
        help="Lowest level of log events to write to stderr.",
    )


token_option: Decorator = click.option(
    "--token",
    type=Parsed("TEXT", lambda text: HEADER_VALUE.read(f"Bearer {text}")),
    envvar="MCPMUX_TOKEN",
    help="Bearer token for a TARGET that is a URL. Default: MCPMUX_TOKEN.",
)
quiet_option: Decorator = log_level_option("error")
"""For a command whose output says everything."""


# TARGET or CONFIG: a configuration file, or one server by its URL or command line.


def choose_config(config: str | None, upstreams: Sequence[str] = ()) -> str | None:
    """CONFIG as given. When nothing is, DEFAULT_FILE, if it is in the current folder."""
    if config is None and not upstreams and Path(DEFAULT_FILE).is_file():
        return DEFAULT_FILE
    return config


EXPECTED = "a configuration file, a URL with http://, https:// or the like, or a command line in quotes"


def load_config(target: str | None, upstreams: Sequence[str] = (), *, allow_anyone: bool = False) -> Config:
    """The configuration of `target` and the options. Its redaction applies to the log. Raises ConfigError."""
    added = parse_upstream_arguments(upstreams)
    if target is not None:
        config = _read_target(target)
        redact_logs(Redactor(config.redaction))
        config = attrs.evolve(config, upstreams=(*config.upstreams, *added))
    elif added:
        config = Config(upstreams=added)
    else:
        raise ConfigError([f"no target given: expected CONFIG ({EXPECTED}) or --upstream NAME=URL"])
    auth = attrs.evolve(config.auth, allow_anyone=allow_anyone or config.auth.allow_anyone)
    return attrs.evolve(config, auth=auth)


def load_target(target: str, token: Secret | None) -> Config:
    """The configuration of `target` alone. A server at a URL is shown the token. Raises ConfigError."""
    config = load_config(target)
    if token is None or not target.startswith(URL_STARTS):
        return config
    (upstream,) = config.upstreams
    if not isinstance(upstream.target, Http | WebSocket):
        return config
    server = attrs.evolve(upstream.target, headers={"Authorization": token})
    return attrs.evolve(config, upstreams=(attrs.evolve(upstream, target=server),))


def _read_target(target: str) -> Config:
    if _is_server(target):
        return Config(upstreams=(parse_upstream_argument(target),))
    if not target:
        raise ConfigError([f"CONFIG is empty; expected {EXPECTED}"])
    if target != STANDARD_INPUT and not _exists(target):
        raise ConfigError([f"{target}: there is no such file; expected {EXPECTED}"])
    return read_config(target, os.environ, lambda: sys.stdin.buffer.read())


def is_file(target: str) -> bool:
    """Whether `target` is a file, which can be read again."""
    return target != STANDARD_INPUT and not _is_server(target) and Path(target).is_file()


def _is_server(target: str) -> bool:
    return target.startswith(URL_STARTS) or (" " in target and not _exists(target))


def _exists(target: str) -> bool:
    with suppress(OSError, ValueError):  # too long for the name of a file, or with a NUL
        return Path(target).exists()
    return False
