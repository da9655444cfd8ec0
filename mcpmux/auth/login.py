"""A person's login at the authorization server of one upstream: code with PKCE.

Promises: an answer counts only with our `state` and, where the server sends one, its own `iss`; the code goes
to the server that the person was sent to. Refuses to know how a person is shown a URL.

Source: "Authorization Flow Steps" and "Authorization Response Validation", 2026-07-28; RFC 9207, section 2.4.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence

import trio

from mcpmux.auth.authority import Authority
from mcpmux.auth.challenge import Challenge, read_challenge
from mcpmux.auth.finder import Finder, Found
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.loopback import Loopback, open_loopback
from mcpmux.auth.registration import known_client, register
from mcpmux.auth.token_store import StoreTrouble, TokenStore
from mcpmux.auth.tokens import (
    Denied,
    Login,
    OAuthClient,
    authorization_url,
    new_verifier,
    read_tokens,
    token_form,
)
from mcpmux.config.auth import OAuth
from mcpmux.errors import RemoteProtocolError, TransportError

STATE_BYTES = 32
OFFLINE = "offline_access"
PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'  # whatever it asks, it is asked without a token
PROBE_FIELDS = (("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"))

Show = Callable[[str], Awaitable[None]]
"""Has a person open a URL."""


class LoginFlow:
    """One login. `clock`: seconds since 1970."""

    def __init__(
        self,
        name: str,
        url: str,
        config: OAuth,
        http: OAuthHttp,
        store: TokenStore,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._url = url
        self._config = config
        self._http = http
        self._store = store
        self._clock = clock
        self._finder = Finder(url, config, http)

    def __repr__(self) -> str:
        return f"<LoginFlow {self._name}>"

    async def run(self, show: Show, more: Sequence[str] = (), seconds: float = 300.0) -> Login:
        """Log in and keep the login. `more`: scopes to ask for besides; `seconds`: for the person.

        Raises TransportError, RemoteProtocolError.
        """
        found = await self._finder.find(await self._probe())
        endpoint = found.authority.check_login()
        kept = await self._load()
        state = secrets.token_urlsafe(STATE_BYTES)
        ports = [self._config.redirect_port] if self._config.redirect_port else [_port_of(kept), 0]
        async with open_loopback(ports, state) as loopback:
            scopes = self._scopes(found, kept, more)
            client = known_client(self._config, found.authority, loopback.uri, kept)
            if client is None:
                client = await register(self._http, found.authority, loopback.uri, scopes)
            verifier, challenge = new_verifier()
            asked = {
                "response_type": "code",
                "client_id": client.id,
                "redirect_uri": loopback.uri,
                "state": state,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
                "resource": found.resource,
            }
            if scopes:
                asked["scope"] = " ".join(scopes)
            self._http.check(endpoint)
            await show(authorization_url(endpoint, asked))
            code = read_code(await _wait_for(loopback, seconds), found.authority)
            login = await self._redeem(found, client, code, verifier, loopback.uri, scopes)
        await trio.to_thread.run_sync(self._store.save, login)
        return login

    async def _probe(self) -> Challenge:
        """What the upstream says to whom it does not know."""
        url = f"http{self._url[2:]}" if self._url.startswith("ws") else self._url
        answer = await self._http.post(url, PROBE_FIELDS, PROBE)
        return read_challenge(answer.headers.get("www-authenticate", "") if answer.status == 401 else "")

    async def _load(self) -> Login | None:
        try:
            return await trio.to_thread.run_sync(self._store.load, self._name, self._url)
        except StoreTrouble:
            return None  # a new one takes its place

    def _scopes(self, found: Found, kept: Login | None, more: Sequence[str]) -> tuple[str, ...]:
        wanted = [*(self._config.scopes or found.scopes), *more]
        if kept is not None and kept.issuer == found.authority.issuer:
            wanted += kept.wanted  # what was refused for want of a scope, "Step-Up Authorization Flow"
        if OFFLINE in (found.authority.scopes_supported or ()):
            wanted.append(OFFLINE)
        return tuple(dict.fromkeys(wanted))

    async def _redeem(
        self, found: Found, client: OAuthClient, code: str, verifier: str, uri: str, scopes: tuple[str, ...]
    ) -> Login:
        members = {"code": code, "redirect_uri": uri, "code_verifier": verifier, "resource": found.resource}
        fields, body = token_form(client, "authorization_code", members)
        answer = await self._http.post(found.authority.token_endpoint, fields, body)
        issuer = found.authority.issuer
        tokens = read_tokens(answer, issuer, scopes, self._clock())
        return Login(self._name, self._url, issuer, found.resource, client, tokens, scopes)


def read_code(said: dict[str, str], authority: Authority) -> str:
    """The code in an answer whose `state` was right. Raises Denied, RemoteProtocolError.

    An answer of another issuer is not looked at any further.
    """
    issuer = said.get("iss")
    if issuer is None and authority.authorization_response_iss_parameter_supported:
        raise RemoteProtocolError(f"the answer does not say that it is of {authority.issuer}: it is not used")
    if issuer is not None and issuer != authority.issuer:
        raise RemoteProtocolError(f"the answer is not of {authority.issuer}: it is not used")
    if "error" in said:
        raise Denied(authority.issuer, said["error"], said.get("error_description", ""))
    if not said.get("code"):
        raise RemoteProtocolError(f"{authority.issuer} sent no code")
    return said["code"]


async def _wait_for(loopback: Loopback, seconds: float) -> dict[str, str]:
    with trio.move_on_after(seconds):
        return await loopback.answers.receive()
    raise TransportError(f"nobody came back from the browser within {seconds:g} s")


def _port_of(kept: Login | None) -> int:
    """The port of the registration that is kept: the server may know no other."""
    uri = kept.client.redirect_uri if kept is not None and kept.client.registered else None
    return int(uri.rpartition(":")[2].partition("/")[0]) if uri is not None else 0
