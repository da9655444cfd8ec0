"""Asking authorization servers, by mcpmux's own HTTP client: bounded in time and size.

Promises: nobody is asked that `Reach` forbids; redirects are not followed; errors name no query, and nothing
of what was sent. Refuses to know what is asked.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

import trio

from mcpmux.auth.fetch import FETCH_SECONDS, LIMITS
from mcpmux.auth.reach import Reach
from mcpmux.config import ClientTls, Secret
from mcpmux.errors import ConfigError, ConnectFailed, TransportError
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, Route, choose_proxy
from mcpmux.transports.http.sse_server import target_of
from mcpmux.transports.tls.context import client_context

Fields = tuple[tuple[str, str], ...]

ACCEPT: Fields = (("Accept", "application/json"),)
MOST_ADDRESSES = 4  # of one name that are tried


class Answer(NamedTuple):
    """What came back. Header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Web:
    """For the upstream at `own`, which is spoken to by `own_tls`; all others with the authorities in `ca`."""

    def __init__(
        self, reach: Reach, own: HttpOrigin, own_tls: ClientTls, ca: str | None, proxy: Secret | None
    ) -> None:
        """`ca`: a file in place of the system's; `proxy` as of an upstream."""
        self._reach = reach
        self._own = own
        self._own_tls = own_tls
        self._other_tls = ClientTls(ca=ca)
        self._proxy = proxy

    def __repr__(self) -> str:
        return f"<Web {self._reach!r}>"

    def check(self, url: str) -> None:
        """Raises RemoteProtocolError when `url` is none that anybody may be sent to."""
        self._reach.origin_of(url)

    async def get(self, url: str) -> Answer:
        """Raises TransportError, RemoteProtocolError."""
        return await self._ask("GET", url, ACCEPT, b"")

    async def post(self, url: str, fields: Fields, body: bytes) -> Answer:
        """Raises TransportError, RemoteProtocolError."""
        accept = () if any(name == "Accept" for name, _ in fields) else ACCEPT
        return await self._ask("POST", url, (*accept, *fields), body)

    async def _ask(self, method: str, url: str, fields: Fields, body: bytes) -> Answer:
        origin = self._reach.origin_of(url)
        with trio.move_on_after(FETCH_SECONDS):
            failure = ConnectFailed(f"cannot connect to {origin.authority}")
            for place in await self._places(origin):
                try:
                    return await self._ask_at(place, origin, method, target_of(url), fields, body)
                except ConnectFailed as error:
                    failure = error
            raise failure
        raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")

    async def _ask_at(
        self, route: Route, origin: HttpOrigin, method: str, target: str, fields: Fields, body: bytes
    ) -> Answer:
        with HttpPool(origin, limits=LIMITS, route=route) as pool:
            async with pool.request(method, target, fields, body, idempotent=False) as response:
                return Answer(response.status, response.headers, await response.read())

    async def _places(self, origin: HttpOrigin) -> list[Route]:
        """The ways to `origin`, to addresses that were judged. Raises TransportError, RemoteProtocolError."""
        try:
            settings = self._own_tls if origin == self._own else self._other_tls
            tls = await _context(settings) if origin.secure else None
            proxy = choose_proxy(origin, self._proxy)
            if proxy is not None:
                if not is_name(origin.host):
                    await self._reach.addresses(origin)
                proxy_tls = await _context(ClientTls()) if proxy.origin.secure else None
                return [Route(origin, tls, settings.server_name, proxy, proxy_tls)]
        except ConfigError as error:
            raise TransportError(str(error)) from None
        addresses = await self._reach.addresses(origin)
        return [
            Route(HttpOrigin(origin.secure, address, origin.port), tls, settings.server_name or origin.host)
            for address in addresses[:MOST_ADDRESSES]
        ]


def is_name(host: str) -> bool:
    """Whether a host is none of the two kinds of addresses."""
    return ":" not in host and not host.replace(".", "").isdigit()


async def _context(tls: ClientTls) -> ssl.SSLContext:
    return await trio.to_thread.run_sync(client_context, tls)
