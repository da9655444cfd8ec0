"""Finds out whom to ask for an upstream's tokens: resource metadata, then the authorization server's own.

Promises: an authorization server that the configuration names is the only one that is asked; one that the
upstream names must be one that may be asked (`AddressPolicy`), and its metadata must be its own.

Source: "Authorization Server Discovery", 2025-11-25 and 2026-07-28; "Server Metadata Discovery" and
"Fallbacks for Servers without Metadata Discovery", 2025-03-26: a server is its own authorization server.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from mcpmux.auth import metadata
from mcpmux.auth.bearer import Challenge
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.metadata import AuthorizationServer, ProtectedResource
from mcpmux.config.auth import OAuth
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.transports.http.route import HttpOrigin

log = structlog.get_logger()

NOT_FOUND = 404


class NoMetadata(RemoteProtocolError):
    """An issuer says nothing about itself: all places of its metadata answer 404."""


class IssuerChanged(TransportError):
    """The upstream names another authorization server than the one that is known."""


class Found(NamedTuple):
    """Who gives tokens for which resource, and the scopes that are needed at least, if it is known."""

    server: AuthorizationServer
    resource: str
    scopes: tuple[str, ...]


class Discovery:
    """Of the authorization server of the upstream at `url`. `http`: how both are asked."""

    def __init__(self, url: str, config: OAuth, http: OAuthHttp) -> None:
        self.url = url
        self.config = config
        self.http = http
        self._identifier = metadata.canonical_url(url)

    def __repr__(self) -> str:
        return f"<Discovery {self._identifier}>"

    async def find(self, challenge: Challenge, known: str | None = None) -> Found:
        """All that is needed to ask for tokens. `known`: the issuer of an earlier login, which must hold.

        Raises IssuerChanged and other TransportErrors, RemoteProtocolError.
        """
        resource = await self._find_resource(challenge)
        wanted = known or self.config.issuer
        if resource is None:
            return Found(await self._find_own_server(wanted), self._identifier, challenge.scopes)
        server = await self.find_server(_issuer_of(resource, wanted))
        return Found(server, resource.identifier, challenge.scopes or resource.scopes)

    async def _find_own_server(self, wanted: str | None) -> AuthorizationServer:
        """A server without resource metadata is of 2025-03-26, and may have none at all but fixed paths."""
        own = HttpOrigin.from_url(self._identifier).url
        try:
            return await self.find_server(wanted or own)
        except NoMetadata:
            if wanted not in (None, own):
                raise
            return metadata.assume_server(own)

    async def find_server(self, issuer: str) -> AuthorizationServer:
        """The metadata of an issuer. Raises TransportError, NoMetadata and other RemoteProtocolErrors."""
        try:
            places = metadata.server_urls(issuer)
        except ValueError:
            raise RemoteProtocolError("its authorization server has no usable URL") from None
        missing = True
        for url in places:
            answer = await self.http.get(url)
            if answer.status == 200:
                return metadata.read_server(answer.body, issuer)
            missing = missing and answer.status == NOT_FOUND
        why = f"{issuer} has no metadata of an authorization server"
        raise NoMetadata(why) if missing else RemoteProtocolError(why)

    async def _find_resource(self, challenge: Challenge) -> ProtectedResource | None:
        """The upstream's metadata; None when it has none. Raises RemoteProtocolError, TransportError."""
        places = metadata.resource_urls(self.url)
        if challenge.metadata_url is not None:
            places = (challenge.metadata_url,)
        for url in places:
            answer = await self.http.get(url)
            if answer.status == 200 and _is_json(answer.headers):
                return metadata.read_resource(answer.body, self.url)
        log.debug("the upstream has no resource metadata", places=len(places))
        return None


def _issuer_of(resource: ProtectedResource, wanted: str | None) -> str:
    """Raises IssuerChanged."""
    if wanted is None:
        return resource.issuers[0]
    if not any(metadata.is_same_issuer(wanted, issuer) for issuer in resource.issuers):
        shown = repr(resource.issuers[0][:200])
        raise IssuerChanged(f"its authorization server is {shown} now, and not {wanted} any more")
    return wanted


def _is_json(headers: dict[str, str]) -> bool:
    """Whether it says so: many servers answer every path with the page of an application."""
    return "json" in headers.get("content-type", "").partition(";")[0].lower()
