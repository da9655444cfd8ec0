"""Tokens for one upstream: mcpmux's own, or those of a person's login; and mcpmux as an OAuth client.

A client secret is shown to the configured issuer alone, a refresh token to the issuer that it came from. A
rotated one is on disk before the new access token is used. A login that is done anew, or refreshed by another
mcpmux, is noticed. Tokens of client credentials are kept nowhere. oauthlib is imported with this module.

Source: RFC 6749, sections 2.3.1, 4, 5 and 6; RFC 7591, sections 2 and 3; RFC 8707, section 2; "Client
Registration" and "Step-Up Authorization Flow", 2025-11-25 and 2026-07-28; "Authorization Server Binding",
2026-07-28.
"""

from __future__ import annotations

import os
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import msgspec
import structlog
import trio
from oauthlib.oauth2 import OAuth2Error
from oauthlib.oauth2.rfc6749.parameters import parse_token_response, prepare_token_request

from mcpmux.auth.bearer import Challenge, read_scopes
from mcpmux.auth.credential import Clock, Credential
from mcpmux.auth.discovery import (
    AuthorizationServer,
    Discovery,
    Found,
    IssuerChanged,
    as_http,
    is_same_issuer,
)
from mcpmux.auth.http import ACCEPT, AddressPolicy, OAuthHttp
from mcpmux.auth.token_store import Login, LoginFile, OAuthClient, StoreTrouble, Tokens, default_folder
from mcpmux.config import Http, WebSocket
from mcpmux.config.auth import CLIENT_CREDENTIALS, OAuth
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.route import HttpOrigin

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebAnswer

LOCK_SECONDS = 0.1  # between two looks whether another process has renewed a login

LONGEST_LIFE = 10 * 365 * 24 * 3600.0  # seconds; whatever says more means "for ever"
SHOWN_CHARACTERS = 200  # of a server's words

_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")

log = structlog.get_logger()


def make_credential(
    name: str, target: Http | WebSocket, folder: Path | None = None, clock: Clock = time.time
) -> Credential | None:
    """What gets the tokens of an upstream; None when it is not configured for any. `folder`: of logins."""
    if target.oauth is None:
        return None
    discovery = discovery_of(target, target.oauth)
    if target.oauth.grant == CLIENT_CREDENTIALS:
        return ClientCredentials(name, discovery, clock)
    return UserLogin(discovery, LoginFile(folder or default_folder(), name, target.url), clock)


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
        form = {"grant_type": "client_credentials", "resource": found.resource, "scope": " ".join(scopes)}
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

    def __init__(self, discovery: Discovery, file: LoginFile, clock: Clock) -> None:
        super().__init__(file.upstream, clock)
        self._discovery = discovery
        self._file = file
        self._login: Login | None = None

    @property
    def _command(self) -> str:
        return f"run `mcpmux auth login {self.name}` with this configuration"

    async def _load(self) -> Login:
        login = await trio.to_thread.run_sync(self._file.load)
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
        lock = None
        try:
            lock = await trio.to_thread.run_sync(self._file.try_lock)
            while lock is None:
                await trio.sleep(LOCK_SECONDS)
                lock = await trio.to_thread.run_sync(self._file.try_lock)
        except StoreTrouble as error:
            log.warning("a login is renewed without a lock", upstream=self.name, reason=str(error))
        try:
            yield
        finally:
            if lock is not None:
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
            await trio.to_thread.run_sync(self._file.save, self._login)
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
            await trio.to_thread.run_sync(self._file.save, wanted)
        scopes = " ".join(needed) or "it does not say what"
        raise TransportError(f"it wants more than the login allows ({scopes}): {self._command}")


# mcpmux as a client of an authorization server: known by hand, by its own URL, or registered now, in the
# order of "Client Registration"; and the tokens that it gets there. No error repeats what was sent.


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


class Denied(RemoteProtocolError):
    """The authorization server says no, with a word for that such as "invalid_grant"."""

    def __init__(self, issuer: str, error: str, description: str = "") -> None:
        more = f" ({printable(description[:SHOWN_CHARACTERS])})" if description else ""
        super().__init__(f"{issuer} answered {printable(error[:SHOWN_CHARACTERS])!r}{more}")


def configured_client(config: OAuth, server: AuthorizationServer) -> OAuthClient:
    """mcpmux as the configuration says it is registered."""
    assert config.client_id is not None
    if config.client_secret is None:
        return OAuthClient(config.client_id)
    method = server.choose_method("client_secret_basic", "client_secret_post")
    return OAuthClient(config.client_id, config.client_secret.reveal(), method)


def known_client(
    config: OAuth, server: AuthorizationServer, redirect_uri: str, kept: Login | None
) -> OAuthClient | None:
    """The client that mcpmux is there already; None when it has to register."""
    if config.client_id is not None:
        return configured_client(config, server)
    if config.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return OAuthClient(config.client_metadata_url)
    if kept is None or kept.issuer != server.issuer:
        return None
    return kept.client if kept.client.registered and kept.client.redirect_uri == redirect_uri else None


async def register(
    http: OAuthHttp, server: AuthorizationServer, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient:
    """Register with the authorization server. Raises RemoteProtocolError that says what else there is."""
    if server.registration_endpoint is None:
        raise RemoteProtocolError(
            f"{server.issuer} registers no clients by itself: register mcpmux there, "
            "and set `oauth.client_id` of the upstream"
        )
    method = server.choose_method("none", "client_secret_basic", "client_secret_post")
    wish: dict[str, Any] = {
        "client_name": "mcpmux",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    if scopes:
        wish["scope"] = " ".join(scopes)
    fields = (*ACCEPT, ("Content-Type", "application/json"))
    answer = await http.ask(server.registration_endpoint, fields, msgspec.json.encode(wish))
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
        if answer.status not in (200, 201):
            error = f"{members.get('error', '')} {members.get('error_description', '')}"
            raise RemoteProtocolError(
                f"{server.issuer} does not register mcpmux (status {answer.status}): "
                f"{printable(error.strip()[:SHOWN_CHARACTERS])}"
            )
        made = msgspec.convert(members, _Registered)
    except UNREADABLE:
        raise RemoteProtocolError(
            f"{server.issuer} answered the registration with status {answer.status} and no client"
        ) from None
    method = made.token_endpoint_auth_method or method
    if made.client_secret is None:
        method = "none"
    elif method == "none":
        method = "client_secret_post"
    return OAuthClient(made.client_id, made.client_secret, method, redirect_uri, registered=True)


async def request_tokens(
    http: OAuthHttp,
    server: AuthorizationServer,
    client: OAuthClient,
    form: dict[str, str],
    scopes: tuple[str, ...],
    now: float,
) -> Tokens:
    """Tokens for a grant, which `form` has; `scopes`: what the answer means when it does not say.

    Raises Denied, other RemoteProtocolErrors, and TransportError, after which asking again may help.
    """
    fields: Fields = (*ACCEPT, ("Content-Type", "application/x-www-form-urlencoded"))
    if client.method == "client_secret_basic" and client.secret is not None:
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        fields = (*fields, ("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        form = {**form, "client_id": client.id}
        if client.secret is not None:
            form["client_secret"] = client.secret
    answer = await http.ask(server.token_endpoint, fields, prepare_token_request(**form).encode())
    return _read_tokens(answer, server.issuer, scopes, now)


def _read_tokens(answer: WebAnswer, issuer: str, asked: tuple[str, ...], now: float) -> Tokens:
    where = f"the token endpoint of {issuer}"
    if answer.status >= 500 or answer.status == 429:
        raise TransportError(f"{where} answered with status {answer.status}")
    try:
        members = msgspec.json.decode(answer.body, type=dict[str, Any])
    except UNREADABLE:
        raise RemoteProtocolError(f"{where} answered {answer.status}, and no JSON object") from None
    error, description = members.get("error"), members.get("error_description")
    if isinstance(error, str):
        raise Denied(issuer, error, description if isinstance(description, str) else "")
    if answer.status != 200:
        raise RemoteProtocolError(f"{where} answered with status {answer.status}")
    try:
        found: dict[str, Any] = parse_token_response(answer.body.decode())
    except (OAuth2Error, ValueError, TypeError, AttributeError, OverflowError):  # whatever the members hold
        raise RemoteProtocolError(f"{where} gave no token") from None
    access, refresh = found.get("access_token"), found.get("refresh_token")
    kind, seconds = found.get("token_type", "bearer"), found.get("expires_in")
    if not isinstance(access, str) or _TOKEN.fullmatch(access) is None:
        raise RemoteProtocolError(f"{where} gave no token that can be sent")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise RemoteProtocolError(f"{where} gave no bearer token")
    expires = None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        expires = now + min(max(float(seconds), 0.0), LONGEST_LIFE)
    scope = members.get("scope")
    return Tokens(
        access,
        refresh if isinstance(refresh, str) and refresh else None,
        expires,
        read_scopes(scope) if isinstance(scope, str) else asked,
    )
