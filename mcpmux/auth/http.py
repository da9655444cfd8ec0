"""Requests to authorization servers: bounded in time and size, and made of none that must not be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from mcpmux.auth.address_policy import AddressPolicy
from mcpmux.config import ClientTls, Secret
from mcpmux.errors import ConfigError, RemoteProtocolError, TransportError
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.route import HttpOrigin, choose_proxy

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebAnswer, WebClient

FETCH_SECONDS = 10.0  # for one answer; clients wait for it
HEAD_BYTES = 16 * 1024
BODY_BYTES = 512 * 1024  # far more than the keys of any provider

ACCEPT: Fields = (("Accept", "application/json"),)


class OAuthHttp:
    """For the upstream at `own`, which is spoken to by `own_tls`; all others with the authorities in `ca`."""

    def __init__(
        self, policy: AddressPolicy, own: HttpOrigin, own_tls: ClientTls, ca: str | None, proxy: Secret | None
    ) -> None:
        """`ca`: a file in place of the system's; `proxy` as of an upstream."""
        self._policy = policy
        self._own = own
        self._own_tls = own_tls
        self._other_tls = ClientTls(ca=ca)
        self._proxy = proxy

    def __repr__(self) -> str:
        return f"<OAuthHttp {self._policy!r}>"

    def check(self, url: str) -> None:
        """Raises RemoteProtocolError when `url` is none that anybody may be sent to."""
        self._policy.origin_of(url)

    async def get(self, url: str) -> WebAnswer:
        """Raises TransportError, RemoteProtocolError."""
        return await self._ask("GET", url, ACCEPT, b"")

    async def post(self, url: str, fields: Fields, body: bytes) -> WebAnswer:
        """Raises TransportError, RemoteProtocolError."""
        return await self._ask("POST", url, fields, body)

    async def _ask(self, method: str, url: str, fields: Fields, body: bytes) -> WebAnswer:
        origin = self._policy.origin_of(url)
        try:
            proxy = choose_proxy(origin, self._proxy)
        except ConfigError as error:
            raise TransportError(str(error)) from None
        client = (await _client())._replace(
            tls=self._own_tls if origin == self._own else self._other_tls,
            proxy=proxy,
            find=self._policy.find,
        )
        return await _ask(client, origin, method, url, fields, body)


async def fetch_json(url: str, ca: str | None) -> bytes:
    """The body of a 200 answer to a GET, of a server that is trusted, without a proxy. `ca`: as above.

    Raises TransportError, RemoteProtocolError.
    """
    origin = HttpOrigin.from_url(url)
    client = (await _client())._replace(tls=ClientTls(ca=ca))
    answer = await _ask(client, origin, "GET", url, ACCEPT, b"")
    if answer.status != 200:
        raise RemoteProtocolError(f"{origin.authority} answered with status {answer.status}")
    return answer.body


async def _ask(
    client: WebClient, origin: HttpOrigin, method: str, url: str, fields: Fields, body: bytes
) -> WebAnswer:
    try:
        with trio.move_on_after(FETCH_SECONDS):
            return await client.ask(method, url, fields, body)
    except ConfigError as error:
        raise TransportError(str(error)) from None
    raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")


async def _client() -> WebClient:
    """With our limits. The first time httpx is imported, which takes a while: others go on meanwhile."""
    return await trio.to_thread.run_sync(_make_client)


def _make_client() -> WebClient:
    from mcpmux.transports.web_client import WebClient

    return WebClient(head_bytes=HEAD_BYTES, body_bytes=BODY_BYTES)
