"""Options that several commands share, and the configuration that a command line names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import click

from mcpmux.cli.completion import Items, complete_file, offer
from mcpmux.cli.process import Mistake, naming
from mcpmux.config import Config, Http, Secret, WebSocket
from mcpmux.config.argument import parse_listen_argument, parse_upstream_argument, parse_upstream_arguments
from mcpmux.config.layout import URL_STARTS
from mcpmux.config.listener import ADDRESS_PATTERN, HttpListener, parse_http_argument
from mcpmux.config.reading import STANDARD_INPUT
from mcpmux.config.scalars import HEADER_NAME, HEADER_VALUE
from mcpmux.errors import ConfigError
from mcpmux.files import CONFIG_BYTES
from mcpmux.hosts.configuration import read_config
from mcpmux.logs import configure_logs, redact_logs
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.http.route import HttpOrigin, as_http, is_loopback

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_ADDRESS = "127.0.0.1:8484"
DEFAULT_FILE = "mcpmux.toml"
"""The configuration of commands that change one, or that need one and are not given one."""

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a listener at every address is asked."""

PATH = click.Path(path_type=Path)
LEVELS = click.Choice(["debug", "info", "warning", "error"])


class Parsed(click.ParamType[Any]):
    """An option whose text `parse` reads. InvalidValue becomes a Mistake. `name` is shown in help."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType. A default that is no text stays unchanged."""
        if not isinstance(value, str):
            return value
        with naming(param.opts[0] if isinstance(param, click.Option) else self.name):
            return self._parse(value)


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
    """Return the option `--log-level`, which configures the log at once."""
    return click.option(
        "--log-level",
        type=LEVELS,
        default=default,
        expose_value=False,
        show_default=True,
        callback=lambda _context, _parameter, level: configure_logs(level, "console"),
        help="Lowest level of log events to write to stderr.",
    )


def pairs_of(option: str, texts: Iterable[str], *, is_header: bool = False) -> dict[str, str]:
    """Read NAME=VALUE as a table; of headers also `Name: value`, as curl has it. Raises Mistake."""
    pairs: dict[str, str] = {}
    # The first sign counts: it may be in a value, and in no name of a header.
    pattern = r"([^:=]+)(?:=|:[ \t]*)(.*)" if is_header else r"([^=]+)=(.*)"
    for text in texts:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is None or match[1] in pairs:
            either = "NAME=VALUE or 'NAME: VALUE'" if is_header else "NAME=VALUE"
            raise Mistake(f"{option}: expected {either}, and each name once")
        pairs[match[1]] = match[2]
    return pairs


# Credentials for a server at a URL.

TOKEN_VARIABLE = "MCPMUX_TOKEN"
ADDRESS_VARIABLE = "MCPMUX_TOKEN_FOR"


class Credentials(NamedTuple):
    """The header fields of the options, and the token of the environment, which is for one address alone."""

    given: Mapping[str, Secret]
    ambient: Secret | None = None
    address: str | None = None

    @classmethod
    def of(cls, token: Secret | None, headers: Sequence[str]) -> Credentials:
        """Read the options and the environment. Raises Mistake."""
        with naming("--header"):
            pairs = pairs_of("--header", headers, is_header=True).items()
            given = {str(HEADER_NAME.read(name)): _secret(value) for name, value in pairs}
        if token is not None:
            if "authorization" in map(str.lower, given):
                raise Mistake("--token is an Authorization header; leave out one of --token and --header")
            given["Authorization"] = token
        text = os.environ.get(TOKEN_VARIABLE)
        with naming(TOKEN_VARIABLE):
            ambient = _secret(f"Bearer {text}") if text else None
        return cls(given, ambient, os.environ.get(ADDRESS_VARIABLE) or None)

    def headers_for(self, origin: HttpOrigin) -> Mapping[str, Secret]:
        """Return the header fields for a server; report if it does not get the token. Raises ConfigError."""
        if self.ambient is None or "authorization" in map(str.lower, self.given):
            return self.given
        if self.address is None and not is_loopback(origin.host):
            from mcpmux.cli.console import tell  # not at the top: it brings along all of rich

            tell(f"{TOKEN_VARIABLE} is not sent to {origin.url}; {ADDRESS_VARIABLE}={origin.url} allows that")
            return self.given
        if self.address is not None:
            try:
                allowed = HttpOrigin.from_url(as_http(as_url(self.address)))
            except ValueError:
                problem = f"{ADDRESS_VARIABLE}: expected a URL such as https://mux.example.com"
                raise ConfigError([problem]) from None
            if allowed != origin:
                return self.given
        return {**self.given, "Authorization": self.ambient}


def _secret(text: str) -> Secret:
    """Return the value of a header. Raises InvalidValue."""
    value: Secret = HEADER_VALUE.read(text)
    return value


def credentials_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--token` and `--header` to a command, which gets both as `credentials`."""

    @click.option(
        "--token",
        type=Parsed("TEXT", lambda text: HEADER_VALUE.read(f"Bearer {text}")),
        help="Bearer token for a TARGET that is a URL. Default: MCPMUX_TOKEN, for the address in "
        "MCPMUX_TOKEN_FOR, which is this machine if it is not set.",
    )
    @click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="Header for a TARGET that is a URL, also as 'NAME: VALUE'. May be repeated.",
    )
    @wraps(command)
    def run(*args: Any, token: Secret | None, headers: tuple[str, ...], **options: Any) -> Any:
        return command(*args, credentials=Credentials.of(token, headers), **options)

    return run


stdio_option: Decorator = click.option(
    "--stdio", is_flag=True, help="Serve the program that started mcpmux, on stdin and stdout."
)
config_argument: Decorator = click.argument("config", required=False, shell_complete=complete_file)
target_argument: Decorator = click.argument("target", shell_complete=complete_file)
quiet_option: Decorator = log_level_option("error")
"""For a command whose output says everything."""


def config_option(text: str, default: str | None = None) -> Decorator:
    """Return the option `-c`, which names a configuration file; `text` is its help."""
    return click.option(
        "-c",
        "--config",
        default=default,
        show_default=default is not None,
        metavar="FILE",
        help=text,
        shell_complete=complete_file,
    )


# TARGET or CONFIG: a configuration file, or one server by its URL or command line.


def choose_config(config: str | None, upstreams: Sequence[str] = ()) -> str | None:
    """Return CONFIG as given, or without it DEFAULT_FILE, if that is in the current folder."""
    if config is None and not upstreams and Path(DEFAULT_FILE).is_file():
        return DEFAULT_FILE
    return config


_NO_TARGET = re.compile(r"(?!-$)(?!.*\.(toml|json)$)[^\s/\\:\0]{1,100}")  # a name, or a glob of names


def split_config(config: str | None, words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the configuration to use and the words behind it, of which `config` may be the first one.

    A name is no CONFIG if DEFAULT_FILE is in the current folder, and no file has that name.
    """
    if config is not None and _NO_TARGET.fullmatch(config) and not is_file(config) and is_file(DEFAULT_FILE):
        return DEFAULT_FILE, (config, *words)
    return choose_config(config), tuple(words)


EXPECTED = (
    "a configuration file, a URL with http://, https:// or the like, HOST:PORT, or a command line in quotes"
)


NO_TARGET = f"""no target given, and there is no {DEFAULT_FILE} in this folder:
  mcpmux import --write        makes one with the servers of your host apps
  mcpmux add NAME COMMAND      makes one with a server of yours
  mcpmux demo                  serves examples without a file
Otherwise give {EXPECTED}, or --upstream NAME=URL."""


def load_config(
    target: str | None, upstreams: Sequence[str] = (), *, allow_anyone: bool = False, known_file: bool = False
) -> Config:
    """Return the configuration of `target` and the options, and redact the log by it.

    `known_file`: `target` was found to be a file before; the redaction of the log does not change. Raises
    ConfigError, or Mistake when there is none.
    """
    added = parse_upstream_arguments(upstreams)
    if target is not None:
        target = target if known_file else as_url(target)
        # A path with a space, whose file is away for a moment, must not be started as a command.
        if not known_file and _is_server(target):
            config = Config(upstreams=(parse_upstream_argument(target),))
        elif not target:
            raise ConfigError([f"CONFIG is empty; expected {EXPECTED}"])
        elif not known_file and target != STANDARD_INPUT and not _exists(target):
            raise ConfigError([f"{target}: there is no such file; expected {EXPECTED}"])
        else:
            config = read_config(target, os.environ, lambda: sys.stdin.buffer.read(CONFIG_BYTES + 1))
        if not known_file:  # else it may still be refused, and must have no effect then
            redact_logs(Redactor(config.redaction))
        config = attrs.evolve(config, upstreams=(*config.upstreams, *added))
    elif added:
        config = Config(upstreams=added)
    else:
        raise Mistake(NO_TARGET)
    auth = attrs.evolve(config.auth, allow_anyone=allow_anyone or config.auth.allow_anyone)
    return attrs.evolve(config, auth=auth)


def load_target(target: str, credentials: Credentials) -> Config:
    """Return the configuration of `target` alone, with the credentials for a URL. Raises ConfigError."""
    (config,) = load_targets((target,), credentials)
    return config


def load_targets(targets: Sequence[str], credentials: Credentials) -> list[Config]:
    """Return the configuration of each target. Raises ConfigError.

    The credentials are shown to servers at URLs, which have to be one host if they are on the command line. A
    configuration file says itself what its servers are shown.
    """
    configs = [load_config(target) for target in targets]
    origins: dict[int, HttpOrigin] = {}  # of servers at URLs, by their number
    for number, (target, config) in enumerate(zip(targets, configs, strict=True)):
        server = config.upstreams[0].target if as_url(target).startswith(URL_STARTS) else None
        if isinstance(server, Http | WebSocket):
            origins[number] = HttpOrigin.from_url(as_http(server.url))
    hosts = dict.fromkeys(origin.url for origin in origins.values())
    if credentials.given and len(hosts) != 1:
        place = (
            f"one host, and these are {len(hosts)}: {', '.join(hosts)}" if hosts else "a TARGET that is a URL"
        )
        raise ConfigError([f"--token and --header are for {place}"])
    for number, origin in origins.items():
        (upstream,) = configs[number].upstreams
        assert isinstance(upstream.target, Http | WebSocket)
        headers = {**upstream.target.headers, **credentials.headers_for(origin)}
        shown = attrs.evolve(upstream, target=attrs.evolve(upstream.target, headers=headers))
        configs[number] = attrs.evolve(configs[number], upstreams=(shown,))
    return configs


def as_url(target: str) -> str:
    """Return HOST:PORT[/PATH] as a URL, without a path that of the mcpmux there; all else unchanged."""
    match = re.fullmatch(rf"{ADDRESS_PATTERN}(/\S*)?", target)
    if match is None or _exists(target):
        return target
    return f"http://{target}" if match[4] else f"http://{target}{HttpListener(port=0).path}"


def complete_server(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the upstreams of the configuration file."""
    return offer(incomplete, lambda: [upstream.name for upstream in _configured(context).upstreams])


def complete_file_or_server(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Return the upstreams of the default configuration file, and let the shell complete files."""
    files = complete_file(context, parameter, incomplete)
    return [*files, *complete_server(context, parameter, incomplete)]


def complete_view(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the views of the configuration file."""
    return offer(incomplete, lambda: _configured(context).views)


def _configured(context: click.Context) -> Config:
    return load_config(str(context.params.get("config") or context.params.get("file") or DEFAULT_FILE))


def is_file(target: str) -> bool:
    """Return whether `target` is a file, which can be read again."""
    return target != STANDARD_INPUT and not _is_server(target) and Path(target).is_file()


def _is_server(target: str) -> bool:
    return target.startswith(URL_STARTS) or (" " in target and not _exists(target))


def _exists(target: str) -> bool:
    with suppress(OSError, ValueError):  # too long for the name of a file, or with a NUL
        return Path(target).exists()
    return False
