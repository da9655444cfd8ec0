"""Servers and listeners as text: the URL of a running server, and arguments of the command line.

    http:// https://    Streamable HTTP, or HTTP+SSE        tcp://HOST:PORT    lines of JSON over TCP
    ws:// wss://        WebSocket                           tls://HOST:PORT    the same inside TLS
                                                            unix:PATH          lines of JSON, Unix socket

Only the scheme decides, also about TLS. A `tls` table says how TLS is used, not whether.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import SplitResult, urlsplit

from mcpmux.config.auth import OAuth
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import (
    URL_PATH,
    AnyListener,
    ClientTls,
    HttpListener,
    TcpListener,
    UnixListener,
    WebSocketListener,
    split_address,
)
from mcpmux.config.model import Http, Stdio, Target, Tcp, Unix, Upstream, WebSocket, find_conflicts
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import HttpUrl, derive_name, is_name
from mcpmux.errors import ConfigError

# Arguments of the command line: `NAME=URL`, `NAME=COMMAND LINE`, `HOST:PORT`, `SCHEME:…`.

_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)


def parse_upstream_arguments(texts: Sequence[str]) -> tuple[Upstream, ...]:
    """The upstreams of all `--upstream` arguments. A single one needs no name.

    Raises ConfigError with every mistake at once.
    """
    upstreams: list[Upstream] = []
    problems: list[str] = []
    for number, text in enumerate(texts, start=1):
        try:
            upstream = parse_upstream_argument(text)
        except InvalidValue as mistake:
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


def parse_upstream_argument(text: str) -> Upstream:
    """The upstream that `NAME=URL` or `NAME=COMMAND LINE` describes. Raises InvalidValue.

    Without `NAME=` it has no prefix, and its name comes from the URL or the command. The command line is
    split as a shell does it. Nothing in it is expanded.
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
        return make_target(ServerUrl().read(text))
    try:
        words = shlex.split(text)
    except ValueError:
        raise InvalidValue("expected a command line, its quotation marks do not match") from None
    if not words or not words[0] or "\0" in text:
        raise InvalidValue("expected [NAME=]URL or [NAME=]COMMAND LINE")
    return Stdio(words[0], tuple(words[1:]))


def parse_listen_argument(text: str) -> AnyListener:
    """The listener at a URL: http, ws or tcp and `//HOST:PORT`, or `unix:PATH`. Raises InvalidValue."""
    scheme, colon, rest = text.partition(":")
    if scheme in ("https", "wss", "tls") and colon:
        raise InvalidValue(f"{scheme}:// needs a certificate, which only a configuration file can name")
    if scheme == "unix" and rest:
        place = make_target(ServerUrl().read(text))
        assert isinstance(place, Unix)
        return UnixListener(path=place.path)
    if scheme not in ("http", "ws", "tcp") or not rest.startswith("//"):
        raise InvalidValue("expected http://HOST:PORT, ws://HOST:PORT, tcp://HOST:PORT or unix:PATH")
    address, _, path = rest[2:].partition("/")
    host, port = split_address(address)
    if scheme == "tcp":
        if path:
            raise InvalidValue("expected tcp://HOST:PORT, which has no path")
        return TcpListener(host=host, port=port)
    kind = HttpListener if scheme == "http" else WebSocketListener
    return kind(host=host, port=port, **({"path": URL_PATH.read(f"/{path}")} if path else {}))


# URLs of servers.

URL_STARTS = ("http://", "https://", "ws://", "wss://", "tcp://", "tls://", "unix:")

_STRANGERS: Mapping[str, tuple[str, ...]] = {
    "command": ("headers", "transport", "tls", "proxy", "oauth"),
    "url": ("args", "env", "cwd"),
    **dict.fromkeys(("ws", "wss"), ("proxy", "transport")),
    **dict.fromkeys(("tcp", "tls", "unix"), ("headers", "oauth", "proxy", "transport")),
}
"""Key, or scheme of a URL -> keys that do not go with it."""

_INSTEAD = {"http": "; expected https://", "ws": "; expected wss://", "tcp": "; expected tls://", "unix": ""}
"""Scheme without TLS -> what to say when there are settings of TLS."""


class ServerUrl(HttpUrl, frozen=True):
    """A URL without a fragment, with a scheme from the table at the top of this file."""

    expected: str = (
        "a URL: http://, https://, ws:// or wss:// and a host; tcp:// or tls:// and HOST:PORT; or unix:PATH"
    )
    pattern: str = (
        r"(?:https?|wss?)://[^\s\x00-\x1f/?#]+(?:[/?][^\s\x00-\x1f#]*)?"
        r"|(?:tcp|tls)://[^\s\x00-\x1f/?#@]+/?|unix:[^\x00]*[^\x00/]"
    )

    def is_usable(self, parts: SplitResult) -> bool:
        if parts.scheme == "unix":
            return True
        return super().is_usable(parts) and (parts.scheme not in ("tcp", "tls") or parts.port is not None)


def make_target(
    url: str,
    headers: Mapping[str, Secret] | None = None,
    tls: ClientTls | None = None,
    proxy: Secret | None = None,
    transport: str = "auto",
    oauth: OAuth | None = None,
) -> Http | WebSocket | Tcp | Unix:
    """The server at `url`, which a ServerUrl has read. Settings that do not go with it are ignored."""
    tls = tls or ClientTls()
    scheme, parts = url.partition(":")[0], urlsplit(url)
    if scheme == "unix":
        return Unix(re.sub(r"^unix:(?://(?=/))?", "", url))
    if scheme in ("tcp", "tls"):
        assert parts.hostname is not None and parts.port is not None
        return Tcp(parts.hostname, parts.port, tls if scheme == "tls" else None)
    if scheme in ("ws", "wss"):
        return WebSocket(url, headers or {}, tls, oauth)
    return Http(url, headers or {}, tls, oauth, proxy, transport)


def find_clashes(settings: Mapping[str, Any], url: object) -> Iterator[str]:
    """Yields every mistake about the settings of a server at `url`, which is None for a program.

    A URL that only expansion completes has no scheme yet, so nothing is wrong with it here.
    """
    present = "command" if url is None else "url"
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
    start = "unix:" if scheme == "unix" else f"{scheme}://"
    kind = f"{'an' if scheme.startswith('http') else 'a'} {start} URL"
    for key, what in ((present, f"`{present}`"), (scheme, kind)):
        for stranger in filter(settings.__contains__, _STRANGERS.get(key, ())):
            yield f"`{stranger}` does not go with {what}"
    headers = settings.get("headers")
    names = [str(key).lower() for key in headers] if isinstance(headers, Mapping) else []
    if "oauth" in settings and "authorization" in names:
        yield "`oauth` and a header `Authorization` are given; remove one of them"
    if "tls" in settings and scheme in _INSTEAD:
        yield f"`tls` does not go with {kind}{_INSTEAD[scheme]}"
