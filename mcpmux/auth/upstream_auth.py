"""Tokens for one upstream: mcpmux's own, or those of a person's login.

A client secret is shown to the configured issuer alone, a refresh token to the issuer that it came from. A
rotated one is on disk before the new access token is used. A login that is done anew, or refreshed by another
mcpmux, is noticed. Tokens of client credentials are kept nowhere.

Source: RFC 6749, sections 4.4 and 6; "Step-Up Authorization Flow", 2025-11-25 and 2026-07-28; "Authorization
Server Binding", 2026-07-28.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import structlog
import trio

from mcpmux.auth.bearer import Challenge
from mcpmux.auth.credential import Clock, Credential
from mcpmux.auth.discovery import Discovery, Found, IssuerChanged, as_http, is_same_issuer
from mcpmux.auth.http import AddressPolicy, OAuthHttp
from mcpmux.auth.oauth_client import Denied, configured_client, request_tokens
from mcpmux.auth.token_store import Login, StoreTrouble, TokenStore, default_store
from mcpmux.config import Http, WebSocket
from mcpmux.config.auth import CLIENT_CREDENTIALS, OAuth
from mcpmux.errors import TransportError
from mcpmux.transports.http.route import HttpOrigin

LOCK_SECONDS = 0.1  # between two looks whether another process has renewed a login

log = structlog.get_logger()


def make_credential(
    name: str, target: Http | WebSocket, store: TokenStore | None = None, clock: Clock = time.time
) -> Credential | None:
    """What gets the tokens of an upstream; None when it is not configured for any."""
    if target.oauth is None:
        return None
    discovery = discovery_of(target, target.oauth)
    if target.oauth.grant == CLIENT_CREDENTIALS:
        return ClientCredentials(name, discovery, clock)
    return UserLogin(name, discovery, store or default_store(), clock)


def discovery_of(target: Http | WebSocket, config: OAuth) -> Discovery:
    """Finds the authorization server of an upstream, with the upstream's own TLS and proxy."""
    own = as_http(target.url)
    trusted = [own] if config.issuer is None else [own, config.issuer]
    proxy = target.proxy if isinstance(target, Http) else None
    http = OAuthHttp(AddressPolicy(trusted), HttpOrigin.from_url(own), target.tls, config.ca, proxy)
    return Discovery(target.url, config, http)


class ClientCredentials(Credential):
    """Tokens that mcpmux gets for itself, with a client id and a secret of the configuration."""

    def __init__(self, name: str, discovery: Discovery, clock: Clock) -> None:
        super().__init__(name, clock)
        self._discovery = discovery
        self._found: Found | None = None
        self._asked: tuple[str, ...] = ()

    async def _renew(self, challenge: Challenge | None = None) -> None:
        if self._found is None or challenge is not None:
            self._found = await self._discovery.find(challenge or Challenge())
        scopes = self._discovery.config.scopes or self._found.scopes
        await self._request(self._found, _union(scopes, self._asked))

    async def _step_up(self, challenge: Challenge) -> bool:
        # Some servers do not say which: then it is what they need at all.
        needed = challenge.scopes or (await self._discovery.find(challenge)).scopes
        wanted = _union(self._asked, needed)
        if wanted == self._asked or self._found is None:
            scopes = " ".join(needed) or "unknown"
            raise TransportError(
                f"it wants a scope that the token does not get ({scopes}): set `oauth.scopes`"
            )
        await self._request(self._found, wanted)
        return True

    async def _request(self, found: Found, scopes: tuple[str, ...]) -> None:
        client = configured_client(self._discovery.config, found.server)
        form = {"grant_type": "client_credentials", "resource": found.resource}
        if scopes:
            form["scope"] = " ".join(scopes)
        try:
            http = self._discovery.http
            tokens = await request_tokens(http, found.server, client, form, scopes, self._clock())
        except Denied as error:
            raise TransportError(f"{error}: check the upstream's `oauth` settings") from None
        self._asked = scopes
        self._adopt(tokens, made_now=True)


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))


class UserLogin(Credential):
    """Tokens that a person has got by `mcpmux auth login`, kept fresh with the refresh token."""

    def __init__(self, name: str, discovery: Discovery, store: TokenStore, clock: Clock) -> None:
        super().__init__(name, clock)
        self._discovery = discovery
        self._url = discovery.url
        self._store = store
        self._login: Login | None = None

    @property
    def _command(self) -> str:
        return f"run `mcpmux auth login {self.name}` with this configuration"

    async def _load(self) -> Login:
        login = await trio.to_thread.run_sync(self._store.load, self.name, self._url)
        if login is None:
            raise TransportError(f"nobody is logged in there: {self._command}")
        issuer = self._discovery.config.issuer
        if issuer is not None and not is_same_issuer(issuer, login.issuer):
            raise TransportError(
                f"the login is one at {login.issuer}, which is not `oauth.issuer`: {self._command}"
            )
        return login

    async def _renew(self, challenge: Challenge | None = None) -> None:
        if self._takes_over(await self._load()):
            return
        async with self._alone():
            login = await self._load()
            if self._takes_over(login):
                return
            if challenge is not None:
                try:
                    await self._discovery.find(challenge, login.issuer)
                except IssuerChanged as error:
                    raise TransportError(f"{error}; if you trust that one {self._command}") from None
            if login.tokens.refresh is None:
                raise TransportError(f"the login there has expired: {self._command}")
            try:
                await self._refresh(login, login.tokens.refresh)
            except Denied as error:
                if not self._takes_over(await self._load()):
                    raise TransportError(f"the login there has ended: {error}; {self._command}") from None

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """No other process renews this login meanwhile: a refresh token may be good for one use only."""
        try:
            lock = await trio.to_thread.run_sync(self._store.try_lock, self.name, self._url)
            while lock is None:
                await trio.sleep(LOCK_SECONDS)
                lock = await trio.to_thread.run_sync(self._store.try_lock, self.name, self._url)
        except StoreTrouble as error:
            log.warning("a login is renewed without a lock", upstream=self.name, reason=str(error))
            yield
            return
        try:
            yield
        finally:
            os.close(lock)

    def _takes_over(self, login: Login) -> bool:
        """Use the token that is kept, unless it is the one that we had or has expired."""
        known = self._login is not None and self._login.tokens.access == login.tokens.access
        self._login = login
        if known or login.tokens.until <= self._clock():
            return False
        self._adopt(login.tokens, made_now=False)
        return bool(self.header_now())

    async def _refresh(self, login: Login, refresh: str) -> None:
        """Raises Denied, other RemoteProtocolErrors, TransportError."""
        server = await self._discovery.find_server(login.issuer)
        form = {"grant_type": "refresh_token", "refresh_token": refresh, "resource": login.resource}
        http, scopes = self._discovery.http, login.tokens.scopes
        tokens = await request_tokens(http, server, login.client, form, scopes, self._clock())
        if tokens.refresh is None:
            tokens = msgspec.structs.replace(tokens, refresh=refresh)
        self._login = msgspec.structs.replace(login, tokens=tokens)
        try:
            await trio.to_thread.run_sync(self._store.save, self._login)
        except StoreTrouble as error:
            log.error("a renewed login cannot be kept", upstream=self.name, reason=str(error))
        self._adopt(tokens, made_now=True)

    async def _step_up(self, challenge: Challenge) -> bool:
        login = await self._load()
        if self._login is not None and login.tokens.access != self._login.tokens.access:
            return self._takes_over(login)
        # Some servers do not say which: then it is what they say that they need at all.
        needed = challenge.scopes or (await self._discovery.find(challenge, login.issuer)).scopes
        missing = tuple(scope for scope in needed if scope not in login.wanted)
        if missing:
            wanted = msgspec.structs.replace(login, wanted=(*login.wanted, *missing))
            await trio.to_thread.run_sync(self._store.save, wanted)
        scopes = " ".join(needed) or "it does not say what"
        raise TransportError(f"it wants more than the login allows ({scopes}): {self._command}")
