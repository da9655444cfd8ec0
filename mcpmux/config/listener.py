"""Where clients connect: one class for each kind of listener, and how TLS is spoken. Settings only."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, TypeAlias, TypeVar

from attrs import frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import NAME_PATTERN, Choice, Flag, Size, Text, Whole

URL_PATH = Text('a path starting with "/"', r"/[^\s\x00-\x1f?#]*")
MIN_TOKEN = 16  # characters; random text of this length cannot be guessed

Host: TypeAlias = Annotated[str, Text("a host name or an IP address without brackets", r"[A-Za-z0-9._:%-]+")]
Port: TypeAlias = Annotated[int, Whole(0, 65535)]
FilePath: TypeAlias = Annotated[str, Text("the path of a file", r"[^\x00]+")]
Password: TypeAlias = Annotated[Secret, Text(make=Secret)]

CARD = "server-card"
"""The last part of the path of the server card of an HTTP endpoint, where else views are."""
VIEW_NAME = Text('a name (a letter, then up to 31 of a-z, 0-9, "." and "-")', NAME_PATTERN)
HOST_PATTERN = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?"
HOST_HEADER = Text("a host name with an optional port", HOST_PATTERN)
ORIGIN = Text('an origin such as "https://app.example.com"', r"[a-z][a-z0-9+.-]*://[^\s\x00-\x1f/?#]+")
TOKEN_PATTERN = rf"[A-Za-z0-9._~-]{{{MIN_TOKEN},}}"
ADMIN_TOKEN = Text(f"at least {MIN_TOKEN} letters, digits and -._~", TOKEN_PATTERN, Secret)


@frozen(kw_only=True)
class ServerTls:
    """TLS on a listener. Files are read at the start and with each reload of the configuration.

    Their paths are relative to the folder that mcpmux was started in.
    """

    certificate: FilePath
    """PEM file with the certificate, followed by those of intermediate authorities."""
    key: FilePath | None = None
    """PEM file with the private key of the certificate. Default: it is in `certificate`."""
    key_password: Password | None = None
    """Passphrase of the private key. It is best taken from an environment variable."""
    client_ca: FilePath | None = None
    """PEM file with authorities. Clients must then show a certificate that one of them has signed."""


@frozen(kw_only=True)
class ClientTls:
    """TLS to a server. Files are read at the start and with each reload of the configuration.

    Their paths are relative to the folder that mcpmux was started in.
    """

    ca: FilePath | None = None
    """PEM file with the authorities to trust in place of the system's."""
    certificate: FilePath | None = None
    """PEM file with the certificate to show to servers that ask for one."""
    key: FilePath | None = None
    """PEM file with the private key of the certificate. Default: it is in `certificate`."""
    key_password: Password | None = None
    """Passphrase of the private key. It is best taken from an environment variable."""
    verify: Annotated[bool, Flag()] = True
    """`false` trusts any server. Anyone on the way can then read and change everything."""
    server_name: Host | None = None
    """The name that the server's certificate must have if it is not the host of the URL."""

    def __attrs_post_init__(self) -> None:
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise InvalidValue("`key` and `key_password` need `certificate` beside them")
        if not self.verify and self.ca is not None:
            raise InvalidValue("`ca` has no effect with `verify` false; remove one of them")


@frozen(kw_only=True)
class TcpAddress:
    """Where a listener is reached."""

    host: Host = "127.0.0.1"
    """Address to listen on. 0.0.0.0 or :: stands for every address."""
    port: Port
    """TCP port. With 0 the system chooses a free one."""

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)


@frozen(kw_only=True)
class WebListener(TcpAddress):
    """An endpoint that browsers can reach."""

    path: Annotated[str, URL_PATH] = "/mcp"
    """Path of the endpoint."""
    allowed_hosts: tuple[Annotated[str, HOST_HEADER], ...] = ()
    """Host headers to accept besides the address itself and the loopback names."""
    allowed_origins: tuple[Annotated[str, ORIGIN], ...] = ()
    """Origins of web pages that may connect, besides pages of the listener itself and of this machine."""
    tls: ServerTls | None = None
    """Serve https or wss with this certificate."""


@frozen(kw_only=True)
class HttpListener(WebListener):
    """An HTTP endpoint for clients."""

    sse_path: Annotated[str, Text('a path starting with "/", or ""', r"(?:/[^\s\x00-\x1f?#]*)?")] = "/sse"
    """Path of the event stream for clients that speak HTTP+SSE (2024-11-05). "" turns it off."""

    def __attrs_post_init__(self) -> None:
        if self.sse_path == self.path:
            raise InvalidValue('`sse_path` is the same as `path`; expected another path, or "" for none')


@frozen(kw_only=True)
class WebSocketListener(WebListener):
    """A WebSocket endpoint for clients."""


@frozen(kw_only=True)
class TcpListener(TcpAddress):
    """A TCP port for clients that send lines of JSON, as on stdio. All that reach it may do everything."""

    tls: ServerTls | None = None
    """Use TLS with this certificate."""
    view: Annotated[str, VIEW_NAME] | None = None
    """The view that its clients get. Default: everything."""


@frozen(kw_only=True)
class UnixListener:
    """A Unix socket for clients that send lines of JSON, as on stdio."""

    path: FilePath
    """Path of the socket file. mcpmux creates it, and removes it at the end."""
    mode: Annotated[str, Text('permissions such as "0600"', "0?[0-7]{3}")] = "0600"
    """Permissions of the file in octal. They decide who may connect."""

    view: Annotated[str, VIEW_NAME] | None = None
    """The view that its clients get. Default: everything."""

    tls: ClassVar[None] = None

    @property
    def address(self) -> str:
        return self.path


AnyListener: TypeAlias = HttpListener | WebSocketListener | TcpListener | UnixListener
Listener = TypeVar("Listener", bound=AnyListener)

LISTENER_KEYS: Mapping[type[AnyListener], str] = {
    HttpListener: "http",
    WebSocketListener: "websocket",
    TcpListener: "tcp",
    UnixListener: "unix",
}
"""The keys of `Listeners` by what they hold."""


def asks_certificate(listener: AnyListener) -> bool:
    return listener.tls is not None and listener.tls.client_ca is not None


@frozen(kw_only=True)
class Listeners:
    """Where clients connect."""

    stdio: Annotated[bool, Flag()] = False
    """Serve one client on standard input and output."""
    stdio_view: Annotated[str, VIEW_NAME] | None = None
    """The view that the client on standard input and output gets. Default: everything."""
    share: Annotated[bool, Flag()] = False
    """With `stdio`: one mcpmux serves all host apps of this user that start it from the same file."""
    http: tuple[HttpListener, ...] = ()
    """HTTP endpoints: "HOST:PORT", or a table for more settings."""
    websocket: tuple[WebSocketListener, ...] = ()
    """WebSocket endpoints: "HOST:PORT", or a table for more settings."""
    tcp: tuple[TcpListener, ...] = ()
    """TCP ports for lines of JSON: "HOST:PORT", or a table for more settings."""
    unix: tuple[UnixListener, ...] = ()
    """Unix sockets for lines of JSON: the path, or a table for more settings."""

    def __attrs_post_init__(self) -> None:
        places = [
            listener.address for listener in self.bound if isinstance(listener, UnixListener) or listener.port
        ]
        for place in places:
            if places.count(place) > 1:
                raise InvalidValue(
                    f"two listeners have the address {place}; leave one out, or choose another port"
                )

    @property
    def bound(self) -> tuple[AnyListener, ...]:
        """All listeners with an address, in the order in which workers number them."""
        return (*self.http, *self.websocket, *self.tcp, *self.unix)


@frozen(kw_only=True)
class Admin:
    """A listener for the people who run mcpmux, to see traffic and control upstreams. Never for clients."""

    host: Host = "127.0.0.1"
    """Address to listen on. An address that is not loopback needs a `token`, and should have `tls`."""
    port: Port | None = None
    """TCP port. With 0 the system chooses a free one. Without a port the listener is off."""
    token: Annotated[Secret, ADMIN_TOKEN] | None = None
    """The token to show. Default: mcpmux makes a new one at each start and prints it in the URL."""
    allowed_hosts: tuple[Annotated[str, HOST_HEADER], ...] = ()
    """Host headers to accept besides the address itself and the loopback names."""
    tls: ServerTls | None = None
    """Serve https with this certificate."""
    ready: Annotated[str, Choice(("listening", "any", "all"))] = "any"
    """When `/health/ready` answers 200, while mcpmux is not stopping. `listening`: always. `any`: every
    upstream was tried and at least one is ready. `all`: every upstream is ready.
    """
    keep_exchanges: Annotated[int, Whole(1, 10_000_000)] = 100_000
    """Number of exchanges to remember. The oldest are forgotten first."""
    keep_bytes: Annotated[int, Size(2**20)] = 64 * 2**20
    """Approximate memory for the exchanges that are remembered."""
    calls: Annotated[bool, Flag()] | None = None
    """Whether the inspector may send requests, as a client. Default: if `host` is a loopback address."""

    @property
    def may_call(self) -> bool:
        return is_loopback(self.host) if self.calls is None else self.calls

    def __attrs_post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise InvalidValue(
                f"`host` {self.host} is reached from the network; set `token` too, or use 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# The short ways to write a listener: `HOST:PORT`, or the path of a Unix socket.

ADDRESS_PATTERN = r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})"
PATH_PATTERN = r"[^\x00]+"


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:8484", "localhost:0" or "[::1]:8484". Raises InvalidValue."""
    match = re.fullmatch(ADDRESS_PATTERN, text)
    if match is None or int(match[3]) > 65535:
        raise InvalidValue('expected "HOST:PORT", for example "127.0.0.1:8484" or "[::1]:8484"')
    return match[1] or match[2], int(match[3])


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, as in a URL: an address of IPv6 has brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listener(kind: Callable[..., Listener], text: str) -> Listener:
    """Return the listener of that kind that `text` is the short form of. Raises InvalidValue."""
    if kind is UnixListener:
        return kind(path=Text("the path of a socket", PATH_PATTERN).read(text))
    host, port = split_address(text)
    return kind(host=host, port=port)


def parse_http_argument(text: str) -> HttpListener:
    """Return the listener at HOST:PORT, or at a port of this machine. Raises InvalidValue."""
    return parse_listener(HttpListener, f"127.0.0.1:{text}" if text.isdecimal() else text)
