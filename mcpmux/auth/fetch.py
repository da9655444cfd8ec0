"""One document of an authorization server, by mcpmux's own HTTP client: bounded in time and size.

Refuses to follow redirects.
"""

from __future__ import annotations

import trio

from mcpmux.config import ClientTls
from mcpmux.errors import ConfigError, RemoteProtocolError, TransportError
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, PoolLimits, Route
from mcpmux.transports.http.sse_server import target_of
from mcpmux.transports.tls.context import client_context

FETCH_SECONDS = 10.0  # for one document; clients wait for it
DOCUMENT_BYTES = 512 * 1024  # far more than the keys of any provider
LIMITS = PoolLimits(head_bytes=16 * 1024, body_bytes=DOCUMENT_BYTES, connections=1, idle=0)
HEADERS = (("Accept", "application/json"),)


async def fetch_json(url: str, ca: str | None) -> bytes:
    """The body of a 200 answer to a GET. `ca`: a file of authorities in place of the system's.

    Raises TransportError or RemoteProtocolError, in words that name neither query nor user of the URL.
    """
    origin = HttpOrigin.from_url(url)
    try:
        context = await trio.to_thread.run_sync(client_context, ClientTls(ca=ca)) if origin.secure else None
    except ConfigError as error:
        raise TransportError(str(error)) from None
    with (
        trio.move_on_after(FETCH_SECONDS),
        HttpPool(origin, limits=LIMITS, route=Route(origin, context)) as pool,
    ):
        async with pool.request("GET", target_of(url), HEADERS, b"", idempotent=True) as response:
            if response.status != 200:
                raise RemoteProtocolError(f"{origin.authority} answered with status {response.status}")
            return await response.read()
    raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")
