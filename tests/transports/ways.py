"""How HTTP is spoken and received in tests, see the fixtures of these names."""

from __future__ import annotations

import ssl
from functools import cache

import trio
import trustme

secured = False


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a server, and that of a client who trusts it."""
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


async def connect(port: int) -> trio.abc.Stream:
    """Return a client's stream to a server of ours."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    if not secured:
        return stream
    return trio.SSLStream(stream, contexts()[1], server_hostname="127.0.0.1", https_compatible=True)


def accepted(stream: trio.SocketStream) -> trio.abc.Stream:
    """Return a server's stream to a client of ours."""
    if not secured:
        return stream
    return trio.SSLStream(stream, contexts()[0], server_side=True, https_compatible=True)
