"""Where clients connect, as values: one class for each kind of listener."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from attrs import field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Choice, Flag, SecretText, Size, Text, Whole, about

# How TLS is spoken, with servers and with clients: settings alone, nothing is read here.

Host: TypeAlias = Annotated[str, Text("a host name or an IP address without brackets", r"[A-Za-z0-9._:%-]+")]
FilePath: TypeAlias = Annotated[str, Text("the path of a file", r"[^\x00]+")]
Password: TypeAlias = Annotated[Secret, SecretText()]


@frozen(kw_only=True)
class ServerTls:
    """TLS on a listener. Files are read at start and again with the configuration.

    They are relative to where mcpmux was started.
    """

    certificate: FilePath = field(
        metadata=about("PEM file with the certificate, followed by those of intermediate authorities.")
    )
    key: FilePath | None = field(
        default=None, metadata=about("PEM file with its private key; default: it is in `certificate`.")
    )
    key_password: Password | None = field(
        default=None, metadata=about("Passphrase of the private key, best taken from a variable.")
    )
    client_ca: FilePath | None = field(
        default=None,
        metadata=about("PEM file with authorities: clients must show a certificate that one has signed."),
    )


@frozen(kw_only=True)
class ClientTls:
    """TLS towards a server. Files are read at start and on a reload, relative to where mcpmux was started."""

    ca: FilePath | None = field(
        default=None,
        metadata=about("PEM file with the authorities to trust, in place of the system's."),
    )
    certificate: FilePath | None = field(
        default=None,
        metadata=about("PEM file with the certificate to show, for servers that ask for one."),
    )
    key: FilePath | None = field(
        default=None, metadata=about("PEM file with its private key; default: it is in `certificate`.")
    )
    key_password: Password | None = field(
        default=None, metadata=about("Passphrase of the private key, best taken from a variable.")
    )
    verify: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about("`false` believes any server, so anyone on the way can read and change everything."),
    )
    server_name: Host | None = field(
        default=None,
        metadata=about("Name that the server's certificate must have, when it is not the URL's host."),
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for keys that would have no effect."""
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise Unfit("`key` and `key_password` need `certificate` beside them")
        if not self.verify and self.ca is not None:
            raise Unfit("`ca` has no effect with `verify` false; remove one of them")


URL_PATH = Text('a path starting with "/"', r"/[^\s\x00-\x1f?#]*")

UrlPath: TypeAlias = Annotated[str, URL_PATH]
AnyPath: TypeAlias = Annotated[str, Text('a path starting with "/", or ""', r"(?:/[^\s\x00-\x1f?#]*)?")]
HostHeader: TypeAlias = Annotated[
    str, Text("a host name with an optional port", r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
]
Origin: TypeAlias = Annotated[
    str, Text('an origin such as "https://app.example.com"', r"[a-z][a-z0-9+.-]*://[^\s\x00-\x1f/?#]+")
]


@frozen(kw_only=True)
class HttpListener:
    """An HTTP endpoint for clients."""

    host: Host = field(
        default="127.0.0.1", metadata=about("Address to listen on; every address is 0.0.0.0 or ::.")
    )
    port: Annotated[int, Whole(0, 65535)] = field(
        metadata=about("TCP port; 0 lets the system choose a free one.")
    )
    path: UrlPath = field(default="/mcp", metadata=about("Path of the endpoint."))
    sse_path: AnyPath = field(
        default="/sse",
        metadata=about('Path of the event stream for clients of HTTP+SSE (2024-11-05); "" for none.'),
    )
    allowed_hosts: tuple[HostHeader, ...] = field(
        default=(),
        metadata=about("Host headers to accept besides the address itself and the loopback names."),
    )
    allowed_origins: tuple[Origin, ...] = field(
        default=(),
        metadata=about("Origins of web pages that may connect, besides pages of the listener itself."),
    )
    tls: ServerTls | None = field(default=None, metadata=about("Serve https with this certificate."))

    def __attrs_post_init__(self) -> None:
        """Raises Unfit when two endpoints are at one path."""
        if self.sse_path == self.path:
            raise Unfit('`sse_path` is the same as `path`; expected another path, or "" for none')


@frozen(kw_only=True)
class WebSocketListener:
    """A WebSocket endpoint for clients."""

    host: Host = field(
        default="127.0.0.1", metadata=about("Address to listen on; every address is 0.0.0.0 or ::.")
    )
    port: Annotated[int, Whole(0, 65535)] = field(
        metadata=about("TCP port; 0 lets the system choose a free one.")
    )
    path: UrlPath = field(default="/mcp", metadata=about("Path of the endpoint."))
    allowed_hosts: tuple[HostHeader, ...] = field(
        default=(),
        metadata=about("Host headers to accept besides the address itself and the loopback names."),
    )
    allowed_origins: tuple[Origin, ...] = field(
        default=(),
        metadata=about("Origins of web pages that may connect, besides pages of the listener itself."),
    )
    tls: ServerTls | None = field(default=None, metadata=about("Serve wss with this certificate."))


@frozen(kw_only=True)
class TcpListener:
    """A TCP port for clients that send lines of JSON, as on stdio."""

    host: Host = field(
        default="127.0.0.1", metadata=about("Address to listen on; whoever reaches it may do everything.")
    )
    port: Annotated[int, Whole(0, 65535)] = field(
        metadata=about("TCP port; 0 lets the system choose a free one.")
    )
    tls: ServerTls | None = field(default=None, metadata=about("Serve inside TLS with this certificate."))


@frozen(kw_only=True)
class UnixListener:
    """A Unix socket for clients that send lines of JSON, as on stdio."""

    path: FilePath = field(metadata=about("Where its file is made; it is removed at the end."))
    mode: Annotated[str, Text('permissions such as "0600"', "0?[0-7]{3}")] = field(
        default="0600", metadata=about("Permissions of the file, in octal: who may connect.")
    )


AnyListener: TypeAlias = HttpListener | WebSocketListener | TcpListener | UnixListener


@frozen(kw_only=True)
class Listeners:
    """Where clients connect."""

    stdio: Annotated[bool, Flag()] = field(
        default=False, metadata=about("Serve one client on standard input and output.")
    )
    http: tuple[HttpListener, ...] = field(
        default=(), metadata=about('HTTP endpoints: "HOST:PORT", or a table for more settings.')
    )
    websocket: tuple[WebSocketListener, ...] = field(
        default=(), metadata=about('WebSocket endpoints: "HOST:PORT", or a table for more settings.')
    )
    tcp: tuple[TcpListener, ...] = field(
        default=(), metadata=about('TCP ports for lines of JSON: "HOST:PORT", or a table.')
    )
    unix: tuple[UnixListener, ...] = field(
        default=(), metadata=about("Unix sockets for lines of JSON: the path, or a table.")
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for an address that is there twice."""
        on_ports: tuple[HttpListener | WebSocketListener | TcpListener, ...]
        on_ports = (*self.http, *self.websocket, *self.tcp)
        places = [f"{each.host}:{each.port}" for each in on_ports if each.port]
        places += [each.path for each in self.unix]
        for place in dict.fromkeys(places):
            if places.count(place) > 1:
                raise Unfit(f"two listeners have the address {place}; leave one out, or choose another port")

    @property
    def streams(self) -> tuple[WebSocketListener | TcpListener | UnixListener, ...]:
        """Those that carry one client a stream."""
        return (*self.websocket, *self.tcp, *self.unix)


# The admin listener: whether there is one, where, for whom, and how much of the traffic it remembers.

MIN_TOKEN = 16  # characters; random text of this length cannot be guessed
AdminToken: TypeAlias = Annotated[
    Secret,
    SecretText(f"at least {MIN_TOKEN} letters, digits and -._~", rf"[A-Za-z0-9._~-]{{{MIN_TOKEN},}}"),
]


@frozen(kw_only=True)
class Admin:
    """A listener for the people who run mcpmux: what passes, and how the upstreams are. Never for clients."""

    host: Host = field(
        default="127.0.0.1",
        metadata=about(
            "Address to listen on; one that is not loopback needs a `token`, and should have `tls`."
        ),
    )
    port: Annotated[int, Whole(0, 65535)] | None = field(
        default=None, metadata=about("TCP port; 0 lets the system choose one. Without a port it is off.")
    )
    token: AdminToken | None = field(
        default=None,
        metadata=about(
            "What must be shown to get in. Default: a new one at each start, in the URL it prints."
        ),
    )
    allowed_hosts: tuple[HostHeader, ...] = field(
        default=(),
        metadata=about("Host headers to accept besides the address itself and the loopback names."),
    )
    tls: ServerTls | None = field(default=None, metadata=about("Serve https with this certificate."))
    ready: Annotated[str, Choice(("listening", "any", "all"))] = field(
        default="any",
        metadata=about(
            "When `/health/ready` says yes, unless mcpmux stops: `listening` always, `any` when every "
            "upstream was tried and one is ready, `all` when every one is."
        ),
    )
    keep_exchanges: Annotated[int, Whole(1, 10_000_000)] = field(
        default=100_000, metadata=about("Exchanges that are remembered; the oldest go first.")
    )
    keep_bytes: Annotated[int, Size(2**20)] = field(
        default=256 * 2**20, metadata=about("Memory for what is remembered, about.")
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for a door to the network that has no key of the user's."""
        if self.token is None and not is_loopback(self.host):
            raise Unfit(f"`host` {self.host} is reached from the network; set `token` too, or use 127.0.0.1")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# The short ways to write a listener: `HOST:PORT`, or the path of a Unix socket.

ADDRESS_PATTERN = r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})"
PATH_PATTERN = r"[^\x00]+"
MAX_PORT = 65535


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:8484", "localhost:0" or "[::1]:8484". Raises Unfit."""
    match = re.fullmatch(ADDRESS_PATTERN, text)
    if match is None or int(match[3]) > MAX_PORT:
        raise Unfit('expected "HOST:PORT", for example "127.0.0.1:8484" or "[::1]:8484"')
    return match[1] or match[2], int(match[3])


def parse_address(text: str) -> HttpListener:
    """The HTTP listener at an address. Raises Unfit."""
    host, port = split_address(text)
    return HttpListener(host=host, port=port)


def _parse_websocket(text: str) -> WebSocketListener:
    host, port = split_address(text)
    return WebSocketListener(host=host, port=port)


def _parse_tcp(text: str) -> TcpListener:
    host, port = split_address(text)
    return TcpListener(host=host, port=port)


def _parse_unix(text: str) -> UnixListener:
    return UnixListener(path=Text("the path of a socket", PATH_PATTERN).read(text))


SHORT_FORMS: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    HttpListener: (ADDRESS_PATTERN, parse_address),
    WebSocketListener: (ADDRESS_PATTERN, _parse_websocket),
    TcpListener: (ADDRESS_PATTERN, _parse_tcp),
    UnixListener: (PATH_PATTERN, _parse_unix),
}
"""Of each class that may also be text: the pattern of that text, and what reads it."""
