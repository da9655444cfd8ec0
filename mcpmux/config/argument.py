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

    Without `NAME=` it has no prefix, and is called by what people see of it: `127.0.0.1:8484`, `old` for
    `python old.py`. The command line is split as a shell does it. It is not expanded.
    """
    if text.startswith("="):
        raise InvalidValue("expected a name before =")
    match = None if text.startswith(URL_STARTS) else _NAMED.fullmatch(text)
    if match is None:
        target = _parse_target(text)
        return Upstream(name=_name_of(target), target=target, prefix="")
    name, value = match.groups()
    if not is_name(name):
        raise InvalidValue(
            f"`{name}` is no name; expected a-z, 0-9, `.` and `-`, such as `{derive_name(name)}`"
        )
    return Upstream(name=name, target=_parse_target(value))


_STARTER = re.compile(r"(?:python|node|npx|uvx|uv|bunx?|deno|pipx|tsx|pnpm|yarn)[\d.]*(?:\.exe|\.cmd)?")
"""A program that starts the server, which is a module, script or package in its arguments."""
_NO_SERVER = re.compile(r"--(?!yes )[\w-]+ \S+ |-\S* |(?:run|exec|dlx|x|tool) ")
"""Arguments before it: an option with its value, a flag, a verb."""
_SERVER = re.compile(r"(?!\S*://)(?:\S*[/\\])?(\w[\w.-]*)(?:@[\w.^~-]+)? ")
_SUFFIX = re.compile(r"\.(?:py|[cm]?[jt]s|exe|cmd|sh|sock)$")
_NAME_LENGTH = 32  # characters; a table has no room for more


def _name_of(target: Target) -> str:
    """Return HOST:PORT of a URL, and of a command the module, script or package that it runs."""
    if not isinstance(target, Stdio | Unix):
        return urlsplit(target.display).netloc.rpartition("@")[2].lower()
    path = target.path if isinstance(target, Unix) else target.command
    name = PurePath(path).name
    if isinstance(target, Stdio) and _STARTER.fullmatch(name):
        words, start = "".join(f"{word} " for word in target.args if word), 0
        while skipped := _NO_SERVER.match(words, start):
            start = skipped.end()
        server = _SERVER.match(words, start)
        name = server[1] if server is not None else name
    return _SUFFIX.sub("", name)[:_NAME_LENGTH]


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
