"""Tokens that mcpmux gets for itself, with a client id and a secret of the configuration.

Promises: the secret is shown to the configured issuer alone. Nothing is kept on disk. Source: RFC 6749,
section 4.4; "Step-Up Authorization Flow", 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Callable

from mcpmux.auth.authority import Authority
from mcpmux.auth.challenge import NO_CHALLENGE, Challenge
from mcpmux.auth.credential import Credential
from mcpmux.auth.finder import Finder, Found
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.tokens import Denied, OAuthClient, read_tokens, token_form
from mcpmux.config.auth import OAuth
from mcpmux.errors import TransportError


class ClientCredentials(Credential):
    """Of one upstream."""

    def __init__(
        self, name: str, config: OAuth, finder: Finder, http: OAuthHttp, clock: Callable[[], float]
    ) -> None:
        super().__init__(name, clock)
        self._config = config
        self._finder = finder
        self._http = http
        self._found: Found | None = None
        self._asked: tuple[str, ...] = ()

    async def _renew(self, challenge: Challenge | None = None) -> None:
        if self._found is None or challenge is not None:
            self._found = await self._finder.find(challenge or NO_CHALLENGE)
        scopes = self._config.scopes or self._found.scopes
        await self._fetch(self._found, _union(scopes, self._asked))

    async def _step_up(self, challenge: Challenge) -> bool:
        if not challenge.scopes:  # some servers do not say which: then it is what they need at all
            challenge = challenge._replace(scopes=(await self._finder.find(challenge)).scopes)
        wanted = _union(self._asked, challenge.scopes)
        if wanted == self._asked or self._found is None:
            scopes = " ".join(challenge.scopes) or "unknown"
            raise TransportError(
                f"it wants a scope that the token does not get ({scopes}): set `oauth.scopes`"
            )
        await self._fetch(self._found, wanted)
        return True

    async def _fetch(self, found: Found, scopes: tuple[str, ...]) -> None:
        client = configured_client(self._config, found.authority)
        members = {"resource": found.resource}
        if scopes:
            members["scope"] = " ".join(scopes)
        fields, body = token_form(client, "client_credentials", members)
        answer = await self._http.post(found.authority.token_endpoint, fields, body)
        try:
            tokens = read_tokens(answer, found.authority.issuer, scopes, self._clock())
        except Denied as error:
            raise TransportError(f"{error}: check the upstream's `oauth` settings") from None
        self._asked = scopes
        self._adopt(tokens, made_now=True)


def configured_client(config: OAuth, authority: Authority) -> OAuthClient:
    """mcpmux as the configuration says it is registered."""
    assert config.client_id is not None
    if config.client_secret is None:
        return OAuthClient(config.client_id)
    method = "client_secret_post"
    if authority.takes("client_secret_basic") or not authority.takes(method):
        method = "client_secret_basic"
    return OAuthClient(config.client_id, config.client_secret.reveal(), method)


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
