"""Upstreams and listeners on the command line: `NAME=URL`, `NAME=COMMAND LINE`, `HOST:PORT`, `SCHEME:…`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

from mcpmux.config.address import parse_address, split_address
from mcpmux.config.listener import (
    URL_PATH,
    AnyListener,
    HttpListener,
    TcpListener,
    UnixListener,
    WebSocketListener,
)
from mcpmux.config.model import Stdio, Target, Unix, Upstream, find_conflicts
from mcpmux.config.naming import derive_name, is_name
from mcpmux.config.report import Unfit
from mcpmux.config.target import URL_STARTS, ServerUrl, make_target
from mcpmux.errors import ConfigError

_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)
_DEFAULT_PATH = "/mcp"


def parse_upstream_argument(text: str) -> Upstream:
    """The upstream that `NAME=URL` or `NAME=COMMAND LINE` describes. Raises ConfigError.

    Without `NAME=` it is unprefixed, and its name is taken from the URL or the command. The command
    line is split as a shell does, and nothing in it is expanded.
    """
    try:
        return _parse_upstream(text)
    except Unfit as mistake:
        problem = f"--upstream: {mistake}"
    raise ConfigError([problem])


def parse_upstream_arguments(texts: Sequence[str]) -> tuple[Upstream, ...]:
    """The upstreams of all arguments; only a single one may go without a name.

    Raises ConfigError with every mistake at once.
    """
    upstreams: list[Upstream] = []
    problems: list[str] = []
    for number, text in enumerate(texts, start=1):
        try:
            upstream = _parse_upstream(text)
        except Unfit as mistake:
            problems.append(f"--upstream number {number}: {mistake}")
        else:
            upstreams.append(upstream)
            if not upstream.prefix and len(texts) > 1:
                problems.append(f"--upstream number {number}: expected NAME= in front, as there are several")
    named = [upstream for upstream in upstreams if upstream.prefix]
    problems += [f"--upstream {name}: {problem}" for name, problem in find_conflicts(named)]
    if problems:
        raise ConfigError(problems)
    return tuple(upstreams)


def parse_listener_argument(text: str) -> HttpListener:
    """The listener at `HOST:PORT`. Raises ConfigError."""
    try:
        return parse_address(text)
    except Unfit as mistake:
        problem = str(mistake)
    raise ConfigError([problem])


def parse_listen_argument(text: str) -> AnyListener:
    """The listener at a URL: http, ws or tcp and `//HOST:PORT`, or `unix:PATH`. Raises ConfigError."""
    try:
        return _parse_listener(text)
    except Unfit as mistake:
        problem = str(mistake)
    raise ConfigError([problem])


def _parse_listener(text: str) -> AnyListener:
    scheme, colon, rest = text.partition(":")
    if scheme in ("https", "wss", "tls") and colon:
        raise Unfit(f"{scheme}:// needs a certificate, which only a configuration file can name")
    if scheme == "unix" and rest:
        place = make_target(ServerUrl().read(text))
        assert isinstance(place, Unix)
        return UnixListener(path=place.path)
    if scheme not in ("http", "ws", "tcp") or not rest.startswith("//"):
        raise Unfit("expected http://HOST:PORT, ws://HOST:PORT, tcp://HOST:PORT or unix:PATH")
    address, _, path = rest[2:].partition("/")
    host, port = split_address(address)
    if scheme == "tcp":
        if path:
            raise Unfit("expected tcp://HOST:PORT, which has no path")
        return TcpListener(host=host, port=port)
    path = URL_PATH.read(f"/{path}") if path else _DEFAULT_PATH
    return (HttpListener if scheme == "http" else WebSocketListener)(host=host, port=port, path=path)


def _parse_upstream(text: str) -> Upstream:
    if text.startswith("="):
        raise Unfit("expected a name before =")
    match = None if text.startswith(URL_STARTS) else _NAMED.fullmatch(text)
    if match is None:
        target = _parse_target(text)
        return Upstream(name=_name_target(target), target=target, prefix="")
    name, value = match.groups()
    if not is_name(name):
        raise Unfit(f"`{name}` is no name; expected a-z, 0-9, `.` and `-`, such as `{derive_name(name)}`")
    return Upstream(name=name, target=_parse_target(value))


def _parse_target(text: str) -> Target:
    if text.startswith(URL_STARTS):
        return make_target(ServerUrl().read(text))
    try:
        words = shlex.split(text)
    except ValueError:
        raise Unfit("expected a command line, its quotation marks do not match") from None
    if not words or not words[0] or "\0" in text:
        raise Unfit("expected [NAME=]URL or [NAME=]COMMAND LINE")
    return Stdio(words[0], tuple(words[1:]))


def _name_target(target: Target) -> str:
    """A name for an upstream that was given none."""
    if isinstance(target, Stdio):
        return derive_name(PurePath(target.command).stem)
    if isinstance(target, Unix):
        return derive_name(PurePath(target.path).stem)
    return derive_name(urlsplit(target.display).hostname or "")
