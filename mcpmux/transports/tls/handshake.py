"""From a connected wire to one inside TLS, at either end, bounded in time; and why it did not work."""

from __future__ import annotations

import ssl

import trio

from mcpmux.errors import ConnectFailed, RemoteProtocolError, TransportClosed
from mcpmux.transports.tls.context import explain_client, explain_server
from mcpmux.transports.tls.wire import TlsWire
from mcpmux.transports.wire import Wire

HANDSHAKE_SECONDS = 15.0  # two round trips and some arithmetic: who takes longer does not speak TLS
HANDSHAKE_RECORD = 0x16  # the first byte that a client sends (RFC 8446, section 5.1)


class NotTls(RemoteProtocolError):
    """What a client sent to a TLS port is something else. Nothing was answered."""


async def connect_tls(wire: Wire, context: ssl.SSLContext, peer: str, server_name: str) -> TlsWire:
    """TLS to a server that is to prove that it is `server_name`, a host name or an IP address.

    `peer` names the server in errors. Raises ConnectFailed; `wire` is closed whenever this raises.
    """
    name = server_name.partition("%")[0].rstrip(".")  # no zone of an address, no root of a name
    try:
        tls = TlsWire(wire, context, peer, explain_server, server_name=name)
        with trio.move_on_after(HANDSHAKE_SECONDS):
            await tls.handshake()
            return tls
        reason = f"the handshake did not end within {HANDSHAKE_SECONDS:g} s; does the server speak TLS there?"
    except ssl.SSLError as error:
        reason = explain_server(error)
    except (TransportClosed, ValueError) as error:
        reason = f"the handshake broke off: {error}"
    except BaseException:
        wire.close()
        raise
    wire.close()
    raise ConnectFailed(f"cannot connect to {peer}: TLS: {reason}")


async def accept_tls(wire: Wire, context: ssl.SSLContext, peer: str) -> TlsWire:
    """TLS for a client that has connected. The caller owns the deadline, and the wire if this raises.

    Raises NotTls, and TransportClosed with the reason after the client was told.
    """
    begun = await wire.receive()
    if not begun:
        raise TransportClosed("the client left before the handshake")
    if begun[0] != HANDSHAKE_RECORD:
        raise NotTls("this is a TLS port: use https://")
    tls = TlsWire(wire, context, peer, explain_client, server_side=True)
    try:
        await tls.handshake(begun)
    except ssl.SSLError as error:
        await tls.linger()
        raise TransportClosed(explain_client(error)) from error
    return tls
