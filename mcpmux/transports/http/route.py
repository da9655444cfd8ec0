"""Open the way to an origin: direct or through a proxy, plain or inside TLS.

    http:   TCP to it                               or TCP to the proxy, which takes the whole URL
    https:  TCP to it, TLS with it                  or TCP to the proxy, CONNECT, TLS with the origin
A proxy at an https URL adds TLS with the proxy itself, verified with the system's authorities.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
import trio

from mcpmux.config import Secret, display_url
from mcpmux.config.listener import join_address
from mcpmux.errors import ConfigError, ConnectFailed, TransportClosed
from mcpmux.transports.byte_stream import PlainStream, open_socket
from mcpmux.transports.http.message import HEAD_FIELDS, is_target
from mcpmux.transports.stream import open_unix
from mcpmux.transports.tls import ByteStream, CurrentContext, connect_tls

DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class HttpOrigin(msgspec.Struct, frozen=True):
    """Scheme, host and port of a URL."""

    secure: bool
    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> HttpOrigin:
        """Return the origin of `url`. Raises ValueError when that is not an http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url!r}")
        port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
        return cls(parts.scheme == "https", parts.hostname.encode("idna").decode(), port)

    @property
    def address(self) -> str:
        """Host and port, in the form of a URL."""
        return join_address(self.host, self.port)

    @property
    def authority(self) -> str:
        """Host and port without a default port, for the Host field."""
        is_default = self.port == DEFAULT_PORTS["https" if self.secure else "http"]
        return self.address.rpartition(":")[0] if is_default else self.address

    @property
    def url(self) -> str:
        """The origin as a URL without a path."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"


class PoolLimits(msgspec.Struct, frozen=True):
    """Limits of what a pool demands of its origin, and accepts from it."""

    head_bytes: int = 64 * 1024
    head_fields: int = HEAD_FIELDS
    body_bytes: int = 64 * 1024 * 1024  # of a response that is read whole
    connections: int = 256  # every running request holds one, streams included
    waiting: int = 1024  # requests queued for a connection; one more fails at once
    idle: int = 64  # connections kept for reuse
    idle_seconds: float = 30  # most servers close theirs sooner, which the pool notices


def as_http(url: str) -> str:
    """Return a WebSocket URL as the http or https URL of its server; any other URL unchanged."""
    return f"http{url[2:]}" if url.startswith(("ws:", "wss:")) else url


def target_of(url: str) -> str:
    """Return path and query of a URL, in the form of a request line."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


# HTTP proxies on the way to a server: which one to use, and tunnels through it. User and password of a proxy
# appear in no error and no repr.

AUTHENTICATION_REQUIRED: Final = 407
ANSWER_BYTES: Final = 16 * 1024  # of a proxy's answer to CONNECT
PHRASE_CHARACTERS: Final = 100  # of its status line that are shown

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]*))?\r?\n")
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `authorization` is the value of Proxy-Authorization, None without credentials."""

    origin: HttpOrigin
    authorization: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.origin.url

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """The header fields that are for the proxy itself."""
        return () if self.authorization is None else (("Proxy-Authorization", self.authorization),)

    def wants_credentials(self) -> ConnectFailed:
        """Return the error for a status 407 of this proxy."""
        if self.authorization is None:
            return ConnectFailed(f"the proxy {self} asks for credentials; put user and password into its URL")
        return ConnectFailed(f"the proxy {self} refuses the user and password in its URL")


def choose_proxy(origin: HttpOrigin, setting: Secret | None) -> Proxy | None:
    """Return the proxy for requests to `origin`, None for a direct connection. Raises ConfigError.

    `setting` is a proxy's URL, to which NO_PROXY does not apply, "" for no proxy, or None to use the
    environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in either case. NO_PROXY may hold networks
    such as 10.0.0.0/8. Loopback addresses are always reached directly.
    """
    if setting is not None:
        url = setting.reveal()
        return parse_proxy(url, "proxy") if url else None
    # A proxy elsewhere could not reach a loopback address.
    if is_loopback(origin.host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment  # not at the top: it brings along all of e-mail

    # By the standard library, which ignores HTTP_PROXY inside CGI: there it is a header of the client's.
    proxies = getproxies_environment()
    for kind in ("https" if origin.secure else "http", "all"):
        if (url := proxies.get(kind, "")) and not _is_bypassed(origin, proxies):
            return parse_proxy(url, f"environment variable {kind.upper()}_PROXY")
    return None


def parse_proxy(url: str, source: str) -> Proxy:
    """Return the proxy at `url`, by default http. Raises ConfigError that names `source`, not the URL."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        origin = HttpOrigin.from_url(url)
    except ValueError:
        problem = f"{source}: expected the URL of an HTTP proxy, such as http://proxy.example.com:3128"
        if url.lower().startswith("socks"):
            problem += "; SOCKS proxies are not supported"
        raise ConfigError([problem]) from None
    if parts.username is None and parts.password is None:
        return Proxy(origin)
    credentials = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return Proxy(origin, "Basic " + b64encode(credentials.encode()).decode())


def is_loopback(host: str) -> bool:
    """Return whether `host` is this machine: localhost and names below it, 127.0.0.0/8, ::1."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_bypassed(origin: HttpOrigin, proxies: dict[str, str]) -> bool:
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed leaves it out

    if any(proxy_bypass_environment(name, proxies) for name in (origin.host, origin.address)):
        return True
    for entry in proxies.get("no", "").split(","):
        with suppress(ValueError):  # raised for names, which are no addresses
            if ip_address(origin.host) in ip_network(entry.strip().strip("[]"), strict=False):
                return True
    return False


async def open_tunnel(byte_stream: ByteStream, proxy: Proxy, origin: HttpOrigin) -> None:
    """Open a tunnel through `proxy`, to which `byte_stream` leads, to `origin`: then the stream leads there.

    Raises ConnectFailed and TransportClosed. The caller owns the deadline, and the stream if this raises.
    Source: RFC 9110, section 9.3.6.
    """
    there = origin.address
    head = "".join(f"{name}: {value}\r\n" for name, value in (("Host", there), *proxy.fields))
    await byte_stream.send(f"CONNECT {there} HTTP/1.1\r\n{head}\r\n".encode())
    answer = b""
    while (end := _END_OF_HEAD.search(answer)) is None:
        data = await byte_stream.receive()
        if not data:
            raise ConnectFailed(f"the proxy {proxy} closed the connection instead of an answer")
        answer += data
        if len(answer) > ANSWER_BYTES or not (answer.startswith(b"HTTP/") or b"HTTP/".startswith(answer)):
            raise _no_proxy(proxy)
    status_line = _STATUS_LINE.match(answer)
    if status_line is None:
        raise _no_proxy(proxy)
    status = int(status_line[1])
    if status == AUTHENTICATION_REQUIRED:
        raise proxy.wants_credentials()
    if not 200 <= status < 300:
        phrase = (status_line[2] or b"").decode("latin-1").strip()[:PHRASE_CHARACTERS]
        refused = ConnectFailed(f"the proxy {proxy} does not connect to {there}: status {status}")
        raise refused.quoting(f" ({phrase})" if phrase else "")
    if end.end() < len(answer):  # not from the origin: servers of HTTP and TLS wait for the client's bytes
        raise ConnectFailed(f"the proxy {proxy} sends bytes that nobody asked for")


def _no_proxy(proxy: Proxy) -> ConnectFailed:
    return ConnectFailed(f"what answers at {proxy} is no HTTP proxy")


# Where a response with a redirecting status leads, and whether a request may follow it there. Pure.
# Source: RFC 9110, sections 10.2.2 and 15.4.

MOVES: Final = frozenset({301, 302, 303, 307, 308})
KEEPING_METHOD: Final = frozenset({307, 308})
SHOWN_CHARACTERS: Final = 200  # of a location


def target_after(origin: HttpOrigin, target: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Return path and query at which to repeat the request for `target`; None if it may not be repeated."""
    # With the other statuses a POST may become a GET.
    url = location_of(origin, target, headers) if status in KEEPING_METHOD else None
    if url is None:
        return None
    try:
        same, there = HttpOrigin.from_url(url) == origin, target_of(url)
    except ValueError:
        return None
    # Headers with credentials never go to another scheme, host or port.
    return there if same and is_target(there) else None


def location_of(origin: HttpOrigin, target: str, headers: Mapping[str, str]) -> str | None:
    """Return the absolute URL that a response to a request for `target` redirects to; None if it has none."""
    location = headers.get("location", "")
    try:
        return urljoin(origin.url + target, location) if location else None
    except ValueError:
        return None


def describe_move(origin: HttpOrigin, target: str, headers: Mapping[str, str]) -> str:
    """Return a description of a redirect that is not followed, without the query: it may hold a secret."""
    url = location_of(origin, target, headers)
    if url is None:
        return "it redirects, and does not say where to"
    return f"it redirects to {display_url(url)[:SHOWN_CHARACTERS]!r}: give that URL if you trust it"


TUNNEL_SECONDS = 30.0  # for a proxy to connect us; it may have to try several addresses


class Route(msgspec.Struct, frozen=True):
    """The way to an origin. `tls` is for a secure origin, `proxy_tls` for a secure proxy.

    `server_name`: the name that the origin's certificate must have, if that is not its host. `unix`: the path
    of the socket at which the origin listens, instead of a port.
    """

    origin: HttpOrigin
    tls: CurrentContext | None = None
    server_name: str | None = None
    proxy: Proxy | None = None
    proxy_tls: CurrentContext | None = None
    unix: str | None = None

    async def open(self) -> ByteStream:
        """Open a stream for requests. Raises ConnectFailed. Cancelling leaves no socket behind."""
        origin, proxy = self.origin, self.proxy
        if proxy is not None:
            try:
                byte_stream: ByteStream = PlainStream(await open_socket(proxy.origin.host, proxy.origin.port))
                if (own_tls := self.proxy_tls) is not None:
                    own = proxy.origin
                    byte_stream = await connect_tls(byte_stream, own_tls(), own.authority, own.host)
            except ConnectFailed as error:
                raise ConnectFailed(f"the proxy {proxy} cannot be used: {error}") from error
            if origin.secure:  # an http origin needs no tunnel: the proxy forwards each request
                await _tunnel(byte_stream, proxy, origin)
        elif self.unix is not None:
            byte_stream = PlainStream(await open_unix(self.unix))
        else:
            byte_stream = PlainStream(await open_socket(origin.host, origin.port))
        if self.tls is None:
            assert not origin.secure
            return byte_stream
        peer = f"{origin.host}:{origin.port}"
        return await connect_tls(byte_stream, self.tls(), peer, self.server_name or origin.host)


async def _tunnel(byte_stream: ByteStream, proxy: Proxy, origin: HttpOrigin) -> None:
    try:
        with trio.fail_after(TUNNEL_SECONDS):
            await open_tunnel(byte_stream, proxy, origin)
    except BaseException as error:
        byte_stream.close()
        if isinstance(error, trio.TooSlowError):
            where = f"{origin.host}:{origin.port} within {TUNNEL_SECONDS:g} s"
            raise ConnectFailed(f"the proxy {proxy} did not connect to {where}") from None
        if isinstance(error, TransportClosed):
            raise ConnectFailed(f"the proxy {proxy} cannot be used: {error}") from error
        raise
