"""Servers and listeners in arguments of the command line: `NAME=URL`, `NAME=COMMAND LINE`, `SCHEME:…`."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

import attrs

from mcpmux.config.layout import SERVER_URL, URL_STARTS, make_target
from mcpmux.config.listener import (
    URL_PATH,
    AnyListener,
    HttpListener,
    TcpListener,
    UnixListener,
    WebSocketListener,
    parse_listener,
)
from mcpmux.config.model import Stdio, Target, Unix, Upstream, find_conflicts
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import derive_name, is_name
from mcpmux.errors import ConfigError

# A host with a port or a path behind it, and no scheme in front.
_SCHEMELESS = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+)(?::[0-9]{1,5}(?:/\S*)?|/\S*)")
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)
_KINDS: Mapping[str, type[AnyListener]] = {"http": HttpListener, "ws": WebSocketListener, "tcp": TcpListener}


def parse_upstream_arguments(texts: Sequence[str]) -> tuple[Upstream, ...]:
    """Return the upstreams of all `--upstream` arguments. Raises ConfigError with all mistakes."""
    upstreams: list[Upstream] = []
    problems: list[str] = []
    for number, text in enumerate(texts, start=1):
        try:
            upstreams.append(parse_upstream_argument(text))
            if not upstreams[-1].prefix and len(texts) > 1:
                raise InvalidValue("expected NAME= in front, as there are several")
        except InvalidValue as mistake:
            problems.append(f"--upstream number {number}: {mistake}")
    named = [upstream for upstream in upstreams if upstream.prefix]
    problems += [f"--upstream {name}: {problem}" for name, problem in find_conflicts(named)]
    if problems:
        raise ConfigError(problems)
    return tuple(upstreams)


def parse_upstream_argument(text: str) -> Upstream:
    """Return the upstream that `NAME=URL` or `NAME=COMMAND LINE` describes. Raises InvalidValue.

    Without `NAME=` it has no prefix, and its name comes from the URL or the command. The command line is
    split as a shell does it. It is not expanded.
    """
    if text.startswith("="):
        raise InvalidValue("expected a name before =")
    match = None if text.startswith(URL_STARTS) else _NAMED.fullmatch(text)
    if match is None:
        target = _parse_target(text)
        if isinstance(target, Stdio | Unix):
            own = PurePath(target.command if isinstance(target, Stdio) else target.path).stem
        else:
            own = urlsplit(target.display).hostname or ""
        return Upstream(name=derive_name(own), target=target, prefix="")
    name, value = match.groups()
    if not is_name(name):
        raise InvalidValue(
            f"`{name}` is no name; expected a-z, 0-9, `.` and `-`, such as `{derive_name(name)}`"
        )
    return Upstream(name=name, target=_parse_target(value))


def _parse_target(text: str) -> Target:
    if text.startswith(URL_STARTS):
        return make_target(SERVER_URL.read(text))
    words = split_command(text)
    if not words or not words[0] or "\0" in text:
        raise InvalidValue("expected [NAME=]URL or [NAME=]COMMAND LINE")
    return Stdio(words[0], words[1:])


def split_command(text: str) -> tuple[str, ...]:
    """Split a command line as a shell does; the path of a program may have blanks.

    Raises InvalidValue, also for a URL that lacks its scheme.
    """
    if shutil.which(text) is not None:
        return (text,)
    if _SCHEMELESS.fullmatch(text):
        raise InvalidValue("expected a URL or a command; a URL begins with https:// or http://")
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise InvalidValue("expected a command line, its quotation marks do not match") from None


def parse_listen_argument(text: str) -> AnyListener:
    """Return the listener at a URL: http, ws, tcp and `//HOST:PORT`, or `unix:PATH`. Raises InvalidValue."""
    scheme, colon, rest = text.partition(":")
    if scheme in ("https", "wss", "tls") and colon:
        raise InvalidValue(f"{scheme}:// needs a certificate, which only a configuration file can name")
    if scheme == "unix" and rest:
        place = make_target(SERVER_URL.read(text))
        assert isinstance(place, Unix)
        return UnixListener(path=place.path)
    if scheme not in _KINDS or not rest.startswith("//"):
        raise InvalidValue("expected http://HOST:PORT, ws://HOST:PORT, tcp://HOST:PORT or unix:PATH")
    address, _, path = rest[2:].partition("/")
    listener = parse_listener(_KINDS[scheme], address)
    if path and scheme == "tcp":
        raise InvalidValue("expected tcp://HOST:PORT, which has no path")
    return attrs.evolve(listener, path=URL_PATH.read(f"/{path}")) if path else listener
