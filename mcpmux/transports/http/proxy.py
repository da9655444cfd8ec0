"""HTTP proxies on the way to a server: which one to use, and tunnels through it.

The environment counts as everywhere: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in lower or upper case,
read by the standard library, which leaves HTTP_PROXY out inside CGI. Two things are ours: loopback addresses
are always reached directly (as Go's net/http does it: a proxy elsewhere could not reach them), and NO_PROXY
may also hold networks such as 10.0.0.0/8. A proxy that is configured for one server knows no exceptions.

User and password of a proxy appear in no error and no repr.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote, urlsplit

from mcpmux.config import Secret
from mcpmux.errors import ConfigError, ConnectFailed
from mcpmux.transports.http.connection import HttpConnection
from mcpmux.transports.http.origin import HttpOrigin
from mcpmux.transports.wire import Wire

AUTHENTICATION_REQUIRED = 407
ANSWER_BYTES = 16 * 1024  # of a proxy's answer to CONNECT
PHRASE_CHARACTERS = 100  # of its status line that are shown

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]*))?\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


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

    def check_answer(self, connection: HttpConnection) -> None:
        """Raises ConnectFailed, after closing the connection, when the proxy did not let us through."""
        if connection.parser.status == AUTHENTICATION_REQUIRED:
            connection.wire.close()
            raise self.wants_credentials()

    def wants_credentials(self) -> ConnectFailed:
        """What to raise for its status 407."""
        if self.authorization is None:
            return ConnectFailed(f"the proxy {self} asks for credentials: put user and password into its URL")
        return ConnectFailed(f"the proxy {self} refuses the user and password in its URL")


def choose_proxy(origin: HttpOrigin, setting: Secret | None) -> Proxy | None:
    """The proxy for requests to `origin`, None for a direct connection. Raises ConfigError.

    `setting` is a proxy's URL, "" for none, or None to go by the environment.
    """
    if setting is not None:
        url = setting.reveal()
        return parse_proxy(url, "proxy") if url else None
    if is_loopback(origin.host):
        return None
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment  # not at the top: it brings along all of e-mail

    proxies = getproxies_environment()
    for kind in ("https" if origin.secure else "http", "all"):
        if url := proxies.get(kind, ""):
            bypassed = _is_bypassed(origin, proxies)
            return None if bypassed else parse_proxy(url, f"environment variable {kind.upper()}_PROXY")
    return None


def parse_proxy(url: str, source: str) -> Proxy:
    """The proxy at `url`; http without a scheme. Raises ConfigError that names `source`, not the URL."""
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
    """Whether `host` is this machine: localhost and the names below it, 127.0.0.0/8, ::1."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_bypassed(origin: HttpOrigin, proxies: dict[str, str]) -> bool:
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed leaves it out

    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    names = (origin.host, f"{host}:{origin.port}")
    if any(proxy_bypass_environment(name, proxies) for name in names):
        return True
    try:
        address = ip_address(origin.host)
    except ValueError:
        return False
    return any(_holds(entry.strip(), address) for entry in proxies.get("no", "").split(","))


def _holds(entry: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


async def open_tunnel(wire: Wire, proxy: Proxy, origin: HttpOrigin) -> None:
    """Have `proxy`, which `wire` leads to, connect us to `origin`: after this the wire leads there.

    Raises ConnectFailed and TransportClosed. The caller owns the deadline, and the wire if this raises.
    Source: RFC 9110, section 9.3.6.
    """
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    fields = (("Host", f"{host}:{origin.port}"), *proxy.fields)
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    await wire.send(f"CONNECT {host}:{origin.port} HTTP/1.1\r\n{head}\r\n".encode())
    answer = b""
    while (end := _END_OF_HEAD.search(answer)) is None:
        data = await wire.receive()
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
        words = f"status {status}" + (f" ({phrase})" if phrase else "")
        raise ConnectFailed(f"the proxy {proxy} does not connect to {host}:{origin.port}: {words}")
    if end.end() < len(answer):
        raise ConnectFailed(f"the proxy {proxy} sends bytes that nobody asked for")


def _no_proxy(proxy: Proxy) -> ConnectFailed:
    return ConnectFailed(f"what answers at {proxy} is no HTTP proxy")
