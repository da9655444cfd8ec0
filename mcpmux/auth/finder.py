"""Finds out whom to ask for an upstream's tokens: resource metadata, then the authorization server's own.

Promises: an authorization server that the configuration names is the only one that is asked; one that the
upstream names must be reachable by the rules of `reach`, and its metadata must be its own.

Source: "Authorization Server Discovery", 2025-11-25 and 2026-07-28; "Server Metadata Discovery" and
"Fallbacks for Servers without Metadata Discovery", 2025-03-26: a server is its own authorization server.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from mcpmux.auth.authority import Authority, assume_authority, is_same_issuer, read_authority
from mcpmux.auth.challenge import Challenge
from mcpmux.auth.discovery import metadata_urls
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.resource import Resource, canonical_url, read_resource
from mcpmux.auth.resource import metadata_urls as resource_urls
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

    authority: Authority
    resource: str
    scopes: tuple[str, ...]


class Finder:
    """Of one upstream at `url`, with its settings."""

    def __init__(self, url: str, config: OAuth, http: OAuthHttp) -> None:
        self._url = url
        self._config = config
        self._http = http

    def __repr__(self) -> str:
        return f"<Finder {canonical_url(self._url)}>"

    async def find(self, challenge: Challenge, known: str | None = None) -> Found:
        """All that is needed to ask for tokens. `known`: the issuer of an earlier login, which must hold.

        Raises IssuerChanged and other TransportErrors, RemoteProtocolError.
        """
        resource = await self._find_resource(challenge)
        issuer = self._issuer_of(resource, known or self._config.issuer)
        if resource is None:
            authority = await self._find_own_authority(issuer)
            return Found(authority, canonical_url(self._url), challenge.scopes)
        authority = await self.find_authority(issuer)
        return Found(authority, resource.identifier, challenge.scopes or resource.scopes)

    def _issuer_of(self, resource: Resource | None, wanted: str | None) -> str:
        if resource is None:
            return wanted or HttpOrigin.from_url(canonical_url(self._url)).url
        if wanted is None:
            return resource.issuers[0]
        if not any(is_same_issuer(wanted, issuer) for issuer in resource.issuers):
            shown = repr(resource.issuers[0][:200])
            raise IssuerChanged(f"its authorization server is {shown} now, and not {wanted} any more")
        return wanted

    async def _find_own_authority(self, issuer: str) -> Authority:
        """A server without resource metadata is of 2025-03-26, and may have none at all but fixed paths."""
        try:
            return await self.find_authority(issuer)
        except NoMetadata:
            if issuer != HttpOrigin.from_url(canonical_url(self._url)).url:
                raise
            return assume_authority(issuer)

    async def find_authority(self, issuer: str) -> Authority:
        """The metadata of an issuer. Raises TransportError, NoMetadata and other RemoteProtocolErrors."""
        try:
            places = metadata_urls(issuer)
        except ValueError:
            raise RemoteProtocolError("its authorization server has no usable URL") from None
        missing = True
        for url in places:
            answer = await self._http.get(url)
            if answer.status == 200:
                return read_authority(answer.body, issuer)
            missing = missing and answer.status == NOT_FOUND
        why = f"{issuer} has no metadata of an authorization server"
        raise NoMetadata(why) if missing else RemoteProtocolError(why)

    async def _find_resource(self, challenge: Challenge) -> Resource | None:
        """The upstream's metadata; None when it has none. Raises RemoteProtocolError, TransportError."""
        places = resource_urls(self._url)
        if challenge.metadata_url is not None:
            places = (challenge.metadata_url,)
        for url in places:
            answer = await self._http.get(url)
            if answer.status == 200 and _is_json(answer.headers):
                return read_resource(answer.body, self._url)
        log.debug("the upstream has no resource metadata", places=len(places))
        return None


def _is_json(headers: dict[str, str]) -> bool:
    """Whether it says so: many servers answer every path with the page of an application."""
    return "json" in headers.get("content-type", "").partition(";")[0].lower()
