"""Requests to authorization servers: bounded in time and size, and only to those that may be asked.

An upstream's metadata names URLs, and it is not trusted:

  * Hosts that the configuration names may be asked, wherever they are.
  * Others may be asked at public addresses; at private ones, or on this machine, only if a host of the
    configuration is at such an address, too.
  * Link-local addresses and the well-known ones of cloud metadata are never asked.
  * https only; http on this machine, or to a host that the configuration itself names with http.

A name is resolved once: `WebClient` connects to the address that was judged. Behind a proxy, which resolves
names itself, only addresses in URLs are judged. Redirects are not followed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import trio

from mcpmux.config import ClientTls, Secret
from mcpmux.errors import ConfigError, ConnectFailed, RemoteProtocolError, TransportError
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.route import HttpOrigin, choose_proxy, is_loopback

if TYPE_CHECKING:
    from mcpmux.transports.web_client import Find, WebAnswer, WebClient

FETCH_SECONDS = 10.0  # for one answer; clients wait for it
HEAD_BYTES = 16 * 1024
BODY_BYTES = 512 * 1024  # far more than the keys of any provider

ACCEPT: Fields = (("Accept", "application/json"),)
NO_PROXY = Secret("")

Address = IPv4Address | IPv6Address

PUBLIC, PRIVATE, LOOPBACK, METADATA = "public", "private", "loopback", "link-local or cloud metadata"
"""Where an address leads."""

_NEVER_ASKED = tuple(map(ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32")))
_NAT64 = ip_network("64:ff9b::/96")


def kind_of(address: Address) -> str:
    """Where an address leads; one that carries another address inside leads where that does."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return kind_of(inner)
    if any(address in network for network in _NEVER_ASKED):
        return METADATA
    if address.is_loopback or address.is_unspecified:
        return LOOPBACK
    return PUBLIC if address.is_global and not address.is_multicast else PRIVATE


class AddressPolicy:
    """What may be asked for one upstream. `trusted`: the URLs that the configuration names."""

    def __init__(self, trusted: Iterable[str]) -> None:
        origins = [HttpOrigin.from_url(url) for url in trusted]
        self._hosts = frozenset(origin.host for origin in origins)
        self._plain = frozenset(origin.host for origin in origins if not origin.secure)

    def origin_of(self, url: str) -> HttpOrigin:
        """The origin of a URL that an upstream names. Raises RemoteProtocolError when it may not be asked."""
        try:
            origin = HttpOrigin.from_url(url)
            parts = urlsplit(url)
        except ValueError:
            raise RemoteProtocolError("what should be a URL of its authorization is none") from None
        if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
            raise RemoteProtocolError(f"a URL of its authorization at {origin.authority} is malformed")
        if not origin.secure and not is_loopback(origin.host) and origin.host not in self._plain:
            raise RemoteProtocolError(f"{origin.authority} is to be asked without TLS: tokens need https://")
        return origin

    async def find(self, host: str, port: int) -> list[str]:
        """The addresses to connect to for `host`. Raises ConnectFailed, RemoteProtocolError."""
        if host in self._hosts:
            return [host]
        found = await _resolve(host, port)
        kinds = set(map(kind_of, found)) - {PUBLIC}
        for trusted in self._hosts if kinds else ():
            with suppress(ConnectFailed):
                kinds -= {kind_of(address) for address in await _resolve(trusted, 0)} - {METADATA}
        if kinds:
            words = " and ".join(sorted(kinds))
            raise RemoteProtocolError(
                f"{host}, which it names for authorization, is at a {words} address: "
                "if that is right, set it as `issuer` in the upstream's `oauth`"
            )
        return [str(address) for address in found]


async def _resolve(host: str, port: int) -> list[Address]:
    try:
        return [ip_address(host.partition("%")[0])]
    except ValueError:
        pass
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}: {reason_of(error)}") from error
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return [ip_address(text) for text in texts]


class OAuthHttp(msgspec.Struct, frozen=True):
    """For the upstream at `own`, which is spoken to by `own_tls`; all others with the authorities in `ca`.

    `ca`: a file in place of the system's; `proxy` as of an upstream.
    """

    policy: AddressPolicy
    own: HttpOrigin
    own_tls: ClientTls
    ca: str | None
    proxy: Secret | None

    async def ask(self, url: str, fields: Fields = ACCEPT, body: bytes | None = None) -> WebAnswer:
        """GET, or POST when there is a body. Raises TransportError, RemoteProtocolError."""
        origin = self.policy.origin_of(url)
        tls = self.own_tls if origin == self.own else ClientTls(ca=self.ca)
        return await _ask(origin, url, tls, self.proxy, self.policy.find, fields, body)


async def fetch_json(url: str, ca: str | None) -> bytes:
    """The body of a 200 answer of a trusted server, without a proxy; `ca` as above. Raises McpmuxError."""
    origin = HttpOrigin.from_url(url)
    answer = await _ask(origin, url, ClientTls(ca=ca), NO_PROXY, None, ACCEPT, None)
    if answer.status != 200:
        raise RemoteProtocolError(f"{origin.authority} answered with status {answer.status}")
    return answer.body


async def _ask(
    origin: HttpOrigin,
    url: str,
    tls: ClientTls,
    proxy: Secret | None,
    find: Find | None,
    fields: Fields,
    body: bytes | None,
) -> WebAnswer:
    def make() -> WebClient:
        from mcpmux.transports.web_client import WebClient

        return WebClient(tls, choose_proxy(origin, proxy), find, HEAD_BYTES, BODY_BYTES)

    try:
        client = await trio.to_thread.run_sync(make)  # importing httpx takes a while the first time
        with trio.move_on_after(FETCH_SECONDS):
            return await client.ask("GET" if body is None else "POST", url, fields, body or b"")
    except ConfigError as error:
        raise TransportError(str(error)) from None
    raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")
