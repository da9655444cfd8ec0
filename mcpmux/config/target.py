"""The URL of a running server: which transport it means, and which settings go with that.

    http:// https://    Streamable HTTP, or HTTP+SSE        tcp://HOST:PORT    lines of JSON over TCP
    ws:// wss://        WebSocket                           tls://HOST:PORT    the same inside TLS
                                                            unix:PATH          lines of JSON, Unix socket

The scheme alone decides. Whether there is TLS stands in the scheme too; a `tls` table only says how.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from mcpmux.config.model import Http, Tcp, Unix, WebSocket
from mcpmux.config.oauth import OAuth
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Text
from mcpmux.config.secret import Secret
from mcpmux.config.tls import ClientTls

URL_STARTS = ("http://", "https://", "ws://", "wss://", "tcp://", "tls://", "unix:")

_SECURE = ("https", "wss", "tls")
_INSTEAD = {"http": "https://", "ws": "wss://", "tcp": "tls://"}
_NOT_OVER_HTTP = ("proxy", "transport")
_NOT_IN_LINES = ("headers", "oauth", *_NOT_OVER_HTTP)


class ServerUrl(Text, frozen=True):
    """A URL with a scheme of the table above, without a fragment."""

    expected: str = (
        "a URL: http://, https://, ws:// or wss:// and a host; tcp:// or tls:// and HOST:PORT; or unix:PATH"
    )
    pattern: str = (
        r"(?:https?|wss?)://[^\s\x00-\x1f/?#]+(?:[/?][^\s\x00-\x1f#]*)?"
        r"|(?:tcp|tls)://[^\s\x00-\x1f/?#@]+/?|unix:[^\x00]*[^\x00/]"
    )

    def read(self, value: object) -> str:
        url: str = super().read(value)
        try:
            parts = urlsplit(url)
            usable = url.startswith("unix:") or (bool(parts.hostname) and parts.port != 0)
            if parts.scheme in ("tcp", "tls"):
                usable = usable and parts.port is not None
        except ValueError:  # brackets that do not match, a port out of range
            usable = False
        if not usable:
            raise Unfit(f"expected {self.expected}")
        return url


def make_target(
    url: str,
    headers: Mapping[str, Secret] | None = None,
    tls: ClientTls | None = None,
    proxy: Secret | None = None,
    transport: str = "auto",
    oauth: OAuth | None = None,
) -> Http | WebSocket | Tcp | Unix:
    """The server at `url`, which a ServerUrl has read; settings that do not go with it are not looked at."""
    tls = tls or ClientTls()
    scheme, parts = url.partition(":")[0], urlsplit(url)
    if scheme == "unix":
        return Unix(re.sub(r"^unix:(?://(?=/))?", "", url))
    if scheme in ("tcp", "tls"):
        assert parts.hostname is not None and parts.port is not None
        return Tcp(parts.hostname, parts.port, tls if scheme == "tls" else None)
    if scheme in ("ws", "wss"):
        return WebSocket(url, headers or {}, tls, oauth)
    return Http(url, headers or {}, tls, proxy, transport, oauth)


def find_url_clashes(settings: Mapping[str, Any], url: object) -> Iterator[str]:
    """Every setting that does not go with the scheme of `url`. One that expansion makes is not judged."""
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
    strangers: tuple[str, ...] = ()
    if scheme in ("ws", "wss"):
        strangers = _NOT_OVER_HTTP
    elif scheme in ("tcp", "tls", "unix"):
        strangers = _NOT_IN_LINES
    for key in strangers:
        if key in settings:
            yield f"`{key}` does not go with {_article(scheme)} {_start(scheme)} URL"
    if "oauth" in settings and any(key.lower() == "authorization" for key in _names(settings.get("headers"))):
        yield "`oauth` and a header `Authorization` are given; remove one of them"
    if "tls" in settings and scheme and f"{scheme}:" in " ".join(URL_STARTS) and scheme not in _SECURE:
        better = f"; expected {_INSTEAD[scheme]}" if scheme in _INSTEAD else ""
        yield f"`tls` does not go with {_article(scheme)} {_start(scheme)} URL{better}"


def _names(headers: object) -> Iterator[str]:
    if isinstance(headers, Mapping):
        yield from (key for key in headers if isinstance(key, str))


def _start(scheme: str) -> str:
    return "unix:" if scheme == "unix" else f"{scheme}://"


def _article(scheme: str) -> str:
    return "an" if scheme.startswith("http") else "a"
