"""Where clients connect, as values: one class for each kind of listener."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Flag, Text, Whole, about
from mcpmux.config.tls import FilePath, Host, ServerTls

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
