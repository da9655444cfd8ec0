"""Get tokens for one upstream: mcpmux's own, or those of a person's login.

A client secret is sent to the configured issuer only, a refresh token to the issuer that it came from. A
rotated one is on disk before the new access token is used. A login that is repeated, or refreshed by another
mcpmux, is noticed. Tokens of client credentials are not stored. Importing this module imports oauthlib.

Source: RFC 6749, sections 2.3.1, 4, 5 and 6; RFC 8707, section 2; "Step-Up Authorization Flow", 2025-11-25
and 2026-07-28; "Authorization Server Binding", 2026-07-28; the extensions OAuth Client Credentials and
Enterprise-Managed Authorization (RFC 8693, section 2; RFC 7523, section 2.1).
"""

from __future__ import annotations

import os
import re
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import msgspec
import structlog
import trio
from oauthlib.oauth2.rfc6749.parameters import prepare_token_request

from mcpmux.auth.bearer import Challenge, read_scopes
from mcpmux.auth.credential import Clock, Credential
from mcpmux.auth.discovery import (
    ACCEPT,
    AuthorizationServer,
    DiscoveredServer,
    IssuerChanged,
    OAuthHttp,
    discover,
    find_server,
    is_same_issuer,
)
from mcpmux.auth.token_store import Login, LoginFile, OAuthClient, StoreTrouble, Tokens, login_file
from mcpmux.config import ClientTls, Http, WebSocket
from mcpmux.config.auth import CLIENT_CREDENTIALS, OAuth
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.http.message import HeaderFields

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebAnswer

PRIVATE_KEY_JWT = "private_key_jwt"

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"

ACCESS_TOKEN, ASSERTION = "bearer", "n_a"
"""Values of `token_type`, in lower case: of a token for an upstream, and of what is exchanged for one."""

LOCK_SECONDS = 0.1  # between two attempts to get the lock of a login

LONGEST_LIFE = 10 * 365 * 24 * 3600.0  # seconds; a longer life means "for ever"
SHOWN_CHARACTERS = 200  # of a server's words

_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")

log = structlog.get_logger()


def make_credential(
    name: str, target: Http | WebSocket, folder: Path | None = None, clock: Clock = time.time
) -> Credential:
    """Return the credential of an upstream that has `oauth`. `folder`: of logins.

    Raises TransportError for logins of a user without a home folder.
    """
    http = OAuthHttp(target)
    if http.config.grant == CLIENT_CREDENTIALS:
        return ClientCredentials(name, clock, http)
    login_http = http_of_login(target)
    login = UserLogin(name, clock, login_http, login_file(name, target, folder))
    if not login_http.is_provider:
        return login
    return IdentityAssertion(name, clock, http, _provider=login_http, _login=login)


def http_of_login(target: Http | WebSocket) -> OAuthHttp:
    """Return the HTTP client for an upstream's login: at its own authorization server, or its provider."""
    assert target.oauth is not None
    oauth, provider = target.oauth, target.oauth.identity_provider
    if provider is None:
        return OAuthHttp(target)
    own = OAuth(
        issuer=provider.issuer,
        client_id=provider.client_id,
        client_secret=provider.client_secret,
        scopes=("openid",),
        redirect_port=oauth.redirect_port,
        ca=oauth.ca,
    )
    proxy = target.proxy if isinstance(target, Http) else None
    place = Http(provider.issuer, tls=ClientTls(ca=oauth.ca), proxy=proxy, oauth=own)
    return OAuthHttp(place, is_provider=True)


@dataclass(eq=False, repr=False)
class ClientCredentials(Credential):
    """Tokens for mcpmux itself, with a client id and a secret or key of the configuration."""

    _http: OAuthHttp
    _found: DiscoveredServer | None = None
    _asked: tuple[str, ...] = ()

    async def _renew(self, challenge: Challenge | None = None) -> None:
        if self._found is None or challenge is not None:
            self._found = await discover(self._http, challenge or Challenge())
        scopes = self._http.config.scopes or self._found.scopes
        await self._request(self._found, (*scopes, *self._asked))

    async def _step_up(self, challenge: Challenge) -> bool:
        # Some servers name no scopes in the challenge: then those in their metadata are needed.
        needed = challenge.scopes or (await discover(self._http, challenge)).scopes
        if self._found is None or set(self._asked).issuperset(needed):
            scopes = " ".join(needed) or "unknown"
            raise TransportError(
                f"it wants a scope that the token does not get ({scopes}): set `oauth.scopes`"
            )
        await self._request(self._found, (*self._asked, *needed))
        return True

    async def _request(self, found: DiscoveredServer, scopes: tuple[str, ...]) -> None:
        scopes = tuple(dict.fromkeys(scopes))
        client = configured_client(self._http.config, found.server)
        try:
            form = {**await self._grant(found, scopes), "scope": " ".join(scopes)}
            tokens = await request_tokens(self._http, found.server, client, form, scopes, self._clock())
        except Denied as error:
            raise TransportError(f"{error}: check the upstream's `oauth` settings") from None
        self._asked = scopes
        self._adopt(tokens, made_now=True)

    async def _grant(self, found: DiscoveredServer, scopes: tuple[str, ...]) -> dict[str, str]:
        """Return the grant of a token request, as parameters. Raises McpmuxError."""
        return {"grant_type": CLIENT_CREDENTIALS, "resource": found.resource}


@dataclass(eq=False, repr=False, kw_only=True)
class IdentityAssertion(ClientCredentials):
    """Tokens that an organization's identity provider grants to a person.

    The person's ID token, which only the provider gets, is exchanged there for an assertion about one
    upstream, and this at the upstream's authorization server for a token. `_login`: at the provider.
    """

    _provider: OAuthHttp
    _login: UserLogin

    async def _grant(self, found: DiscoveredServer, scopes: tuple[str, ...]) -> dict[str, str]:
        config = self._provider.config
        assert config.issuer is not None
        server = await find_server(self._provider, config.issuer)
        provider = self._http.config.identity_provider
        if provider is None or provider.token_file is None:
            ((_, shown),) = await self._login.header()
            id_token = shown.removeprefix("Bearer ")
        else:
            path = provider.token_file
            try:
                id_token = (await trio.Path(path).read_text()).strip()
            except (OSError, ValueError) as error:
                reason = reason_of(error) if isinstance(error, OSError) else "it is no text"
                raise TransportError(f"the ID token in {path} cannot be read: {reason}") from None
        form = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": found.server.issuer,
            "resource": found.resource,
            "scope": " ".join(scopes),
            "subject_token": id_token,
            "subject_token_type": ID_TOKEN,
        }
        client = configured_client(config, server)
        made = await request_tokens(self._provider, server, client, form, scopes, self._clock(), ASSERTION)
        return {"grant_type": JWT_BEARER, "assertion": made.access, "resource": found.resource}


@dataclass(eq=False, repr=False)
class UserLogin(Credential):
    """Tokens that a person got by `mcpmux auth login`, kept fresh with the refresh token."""

    _http: OAuthHttp
    _file: LoginFile
    _login: Login | None = None

    def _trouble_with(self, what: str) -> TransportError:
        return TransportError(f"{what}: run `mcpmux auth login {self.name}` with this configuration")

    async def _load(self) -> Login:
        login = await trio.to_thread.run_sync(self._file.load)
        if login is None:
            raise self._trouble_with("nobody is logged in there")
        issuer = self._http.config.issuer
        if issuer is not None and not is_same_issuer(issuer, login.issuer):
            raise self._trouble_with(f"the login is one at {login.issuer}, which is not `oauth.issuer`")
        return login

    async def _renew(self, challenge: Challenge | None = None) -> None:
        if self._takes_over(await self._load()):
            return
        async with self._alone():
            # Again, under the lock: another process may have renewed it while this one waited.
            login = await self._load()
            if self._takes_over(login):
                return
            if challenge is not None:
                try:
                    await discover(self._http, challenge, login.issuer)
                except IssuerChanged as error:
                    raise self._trouble_with(f"{error}; if you trust that one") from None
            if login.tokens.refresh is None:
                raise self._trouble_with("the login there has expired")
            try:
                await self._refresh(login, login.tokens.refresh)
            except Denied as error:
                # A process without the lock may have used the refresh token and saved a new login.
                if not self._takes_over(await self._load()):
                    raise self._trouble_with(f"the login there has ended: {error}") from None

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other processes from renewing this login: a refresh token may be valid only once."""
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
        """Use the stored token, unless it is the previous one or has expired. Return whether it is valid."""
        is_ours = self._login is not None and self._login.tokens.access == login.tokens.access
        self._login = login
        if is_ours or login.tokens.until <= self._clock():
            return False
        self._adopt(login.tokens, made_now=False)
        return bool(self.header_now())

    async def _refresh(self, login: Login, refresh: str) -> None:
        """Get new tokens for a refresh token. Raises Denied, other RemoteProtocolErrors, TransportError."""
        server = await find_server(self._http, login.issuer)
        form = {"grant_type": "refresh_token", "refresh_token": refresh, "resource": login.resource}
        scopes = login.tokens.scopes
        tokens = await request_tokens(self._http, server, login.client, form, scopes, self._clock())
        if tokens.refresh is None:
            tokens = msgspec.structs.replace(tokens, refresh=refresh)
        self._login = msgspec.structs.replace(login, tokens=tokens)
        # Before the access token is used: a rotated refresh token that is lost ends the login.
        try:
            await trio.to_thread.run_sync(self._file.save, self._login)
        except StoreTrouble as error:
            log.error("a renewed login cannot be kept", upstream=self.name, reason=str(error))
        self._adopt(tokens, made_now=True)

    async def _step_up(self, challenge: Challenge) -> bool:
        login = await self._load()
        if self._login is not None and login.tokens.access != self._login.tokens.access:
            return self._takes_over(login)
        # Some servers name no scopes in the challenge: then those in their metadata are needed.
        needed = challenge.scopes or (await discover(self._http, challenge, login.issuer)).scopes
        names = tuple(dict.fromkeys((*login.wanted, *needed)))
        # For the next login, which asks for these scopes as well.
        await trio.to_thread.run_sync(self._file.save, msgspec.structs.replace(login, wanted=names))
        scopes = " ".join(needed) or "it does not say what"
        raise self._trouble_with(f"it wants more than the login allows ({scopes})")


# The requests for tokens. No error repeats what was sent.


class Denied(RemoteProtocolError):
    """The authorization server refuses, with a code such as "invalid_grant"."""

    def __init__(self, issuer: str, error: str, description: str = "") -> None:
        more = f" ({printable(description[:SHOWN_CHARACTERS])})" if description else ""
        super().__init__(f"{issuer} answered {printable(error[:SHOWN_CHARACTERS])!r}{more}")


def configured_client(config: OAuth, server: AuthorizationServer) -> OAuthClient:
    """Return mcpmux as the client that the configuration describes."""
    assert config.client_id is not None
    if config.private_key is not None:
        return OAuthClient(config.client_id, method=PRIVATE_KEY_JWT)
    secret = None if config.client_secret is None else config.client_secret.reveal()
    method = server.choose_method("client_secret_basic", "client_secret_post")
    return OAuthClient(config.client_id, secret, method)


async def request_tokens(
    http: OAuthHttp,
    server: AuthorizationServer,
    client: OAuthClient,
    form: dict[str, str],
    scopes: tuple[str, ...],
    now: float,
    kind: str = ACCESS_TOKEN,
) -> Tokens:
    """Return tokens for the grant in `form`; `scopes`: those of the tokens if the answer names none.

    `kind`: the expected `token_type`. From an identity provider, the access token is an ID token then.

    Raises Denied, other RemoteProtocolErrors, and TransportError, after which another attempt may help.
    """
    fields: HeaderFields = (*ACCEPT, ("Content-Type", "application/x-www-form-urlencoded"))
    shown = {"client_id": client.id, "client_secret": client.secret}
    if client.method == PRIVATE_KEY_JWT and http.config.private_key is not None:
        from mcpmux.auth.client_assertion import sign_assertion  # joserfc is an extra, for such keys only

        shown = {**sign_assertion(http.config.private_key, client.id, server, now)}
    elif client.method == "client_secret_basic" and client.secret is not None:
        # RFC 6749 section 2.3.1: both are form-encoded before the base64.
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        fields = (*fields, ("Authorization", "Basic " + b64encode(pair.encode()).decode()))
        shown = {}
    answer = await http.ask(server.token_endpoint, fields, prepare_token_request(**form, **shown).encode())
    tokens = _read_tokens(answer, server.issuer, scopes, now, kind)
    if not http.is_provider or kind != ACCESS_TOKEN:
        return tokens
    # The ID token comes from the provider itself, and only the provider gets it back: no other claim of it is
    # read.
    token = msgspec.json.decode(answer.body).get("id_token")
    try:
        payload = token.split(".")[1]
        claims = msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except (AttributeError, IndexError, *UNREADABLE):
        raise RemoteProtocolError(f"the token endpoint of {server.issuer} gave no ID token") from None
    return msgspec.structs.replace(tokens, access=token, expires=claims.exp)


class _Claims(msgspec.Struct):
    exp: float


def _read_tokens(answer: WebAnswer, issuer: str, asked: tuple[str, ...], now: float, wanted: str) -> Tokens:
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
    access, kind = members.get("access_token"), members.get("token_type", "bearer")
    refresh, scope = members.get("refresh_token"), members.get("scope")
    if not isinstance(access, str) or _TOKEN.fullmatch(access) is None:
        raise RemoteProtocolError(f"{where} gave no token that can be sent")
    if not isinstance(kind, str) or kind.lower() != wanted:
        raise RemoteProtocolError(f"{where} gave no {wanted} token")
    try:
        seconds = float(members.get("expires_in") or 0)  # some write it as text
    except (TypeError, ValueError):
        raise RemoteProtocolError(f"{where} gave a token that lasts for no number of seconds") from None
    return Tokens(
        access,
        refresh if isinstance(refresh, str) and refresh else None,
        now + min(max(0.0, seconds), LONGEST_LIFE) if seconds else None,
        read_scopes(scope) if isinstance(scope, str) else asked,
    )
