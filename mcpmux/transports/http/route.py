"""The way to an origin: direct or through a proxy, plain or inside TLS.

    http:   TCP to it                               or TCP to the proxy, which takes the whole URL
    https:  TCP to it, TLS with it                  or TCP to the proxy, CONNECT, TLS with the origin
A proxy at an https URL adds TLS with the proxy itself, verified with the system's authorities.
"""

from __future__ import annotations

import ssl

import msgspec
import trio

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed, TransportClosed
from mcpmux.transports.http.origin import HttpOrigin
from mcpmux.transports.http.proxy import Proxy, open_tunnel
from mcpmux.transports.tls.context import CurrentContext, client_context
from mcpmux.transports.tls.handshake import connect_tls
from mcpmux.transports.wire import Wire, connect

TUNNEL_SECONDS = 30.0  # for a proxy to connect us; it may have to try several addresses


class Route(msgspec.Struct, frozen=True):
    """How an origin is reached. `tls` is for a secure origin, `proxy_tls` for a secure proxy.

    Either may be what tells the context of now, as it is read again. `server_name`: what the origin's
    certificate must be for, when that is not its host.
    """

    origin: HttpOrigin
    tls: ssl.SSLContext | CurrentContext | None = None
    server_name: str | None = None
    proxy: Proxy | None = None
    proxy_tls: ssl.SSLContext | CurrentContext | None = None

    @property
    def sends_whole_urls(self) -> bool:
        """Whether requests are made of the proxy, in absolute form (RFC 9112, section 3.2.2)."""
        return self.proxy is not None and not self.origin.secure

    async def open(self) -> Wire:
        """A wire on which requests can be made. Raises ConnectFailed; cancelling it leaves no socket."""
        if self.proxy is not None:
            wire = await _open_proxy(self.proxy, _current(self.proxy_tls))
            if self.origin.secure:
                await _tunnel(wire, self.proxy, self.origin)
        else:
            wire = await connect(self.origin.host, self.origin.port)
        context = _current(self.tls)
        if context is None:
            return wire
        peer = f"{self.origin.host}:{self.origin.port}"
        return await connect_tls(wire, context, peer, self.server_name or self.origin.host)


def _current(tls: ssl.SSLContext | CurrentContext | None) -> ssl.SSLContext | None:
    return tls if tls is None or isinstance(tls, ssl.SSLContext) else tls()


def direct_route(origin: HttpOrigin) -> Route:
    """The route without a proxy, verified with the system's authorities. Reads files if it is secure."""
    return Route(origin, client_context(ClientTls()) if origin.secure else None)


async def _open_proxy(proxy: Proxy, context: ssl.SSLContext | None) -> Wire:
    try:
        wire = await connect(proxy.origin.host, proxy.origin.port)
        if context is None:
            return wire
        return await connect_tls(wire, context, proxy.origin.authority, proxy.origin.host)
    except ConnectFailed as error:
        raise ConnectFailed(f"the proxy {proxy} cannot be used: {error}") from error


async def _tunnel(wire: Wire, proxy: Proxy, origin: HttpOrigin) -> None:
    try:
        with trio.fail_after(TUNNEL_SECONDS):
            await open_tunnel(wire, proxy, origin)
    except trio.TooSlowError:
        wire.close()
        raise ConnectFailed(
            f"the proxy {proxy} did not connect to {origin.host}:{origin.port} within {TUNNEL_SECONDS:g} s"
        ) from None
    except TransportClosed as error:
        wire.close()
        raise ConnectFailed(f"the proxy {proxy} cannot be used: {error}") from error
    except BaseException:
        wire.close()
        raise
