"""Tokens that a person has got by `mcpmux auth login`, kept fresh with the refresh token.

Promises: a refresh token goes to the issuer that it came from and to nobody else; a rotated one is on disk
before the new access token is used. A login that is done anew, or refreshed by another mcpmux, is noticed.

Source: RFC 6749, section 6; "Authorization Server Binding", 2026-07-28.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import structlog
import trio

from mcpmux.auth.authority import is_same_issuer
from mcpmux.auth.challenge import Challenge
from mcpmux.auth.credential import Credential, NoToken
from mcpmux.auth.finder import Finder, IssuerChanged
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.token_store import StoreTrouble, TokenStore
from mcpmux.auth.tokens import Denied, Login, read_tokens, token_form
from mcpmux.config.auth import OAuth

LOCK_SECONDS = 0.1  # between two looks whether another process has renewed a login

log = structlog.get_logger()


class UserLogin(Credential):
    """Of one upstream at `url`."""

    def __init__(
        self,
        name: str,
        url: str,
        config: OAuth,
        finder: Finder,
        http: OAuthHttp,
        store: TokenStore,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(name, clock)
        self._url = url
        self._config = config
        self._finder = finder
        self._http = http
        self._store = store
        self._login: Login | None = None

    @property
    def _command(self) -> str:
        return f"run `mcpmux auth login {self.name}` with this configuration"

    async def _load(self) -> Login:
        """The login as it is kept now. Raises NoToken, StoreTrouble."""
        login = await trio.to_thread.run_sync(self._store.load, self.name, self._url)
        if login is None:
            raise NoToken(f"nobody is logged in there: {self._command}")
        if self._config.issuer is not None and not is_same_issuer(self._config.issuer, login.issuer):
            raise NoToken(f"the login is one at {login.issuer}, which is not `oauth.issuer`: {self._command}")
        return login

    async def _renew(self, challenge: Challenge | None = None) -> None:
        login = await self._load()
        if self._takes_over(login):
            return
        async with self._alone():
            await self._renew_alone(await self._load(), challenge)

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

    async def _renew_alone(self, login: Login, challenge: Challenge | None) -> None:
        if self._takes_over(login):
            return
        if challenge is not None:
            try:
                await self._finder.find(challenge, login.issuer)
            except IssuerChanged as error:
                raise NoToken(f"{error}; if you trust that one {self._command}") from None
        if login.tokens.refresh is None:
            raise NoToken(f"the login there has expired: {self._command}")
        try:
            await self._refresh(login)
        except Denied as error:
            if not self._takes_over(await self._load()):
                raise NoToken(f"the login there has ended: {error}; {self._command}") from None

    def _takes_over(self, login: Login) -> bool:
        """Use the token that is kept, unless it is the one that we had or has expired."""
        known = self._login is not None and self._login.tokens.access == login.tokens.access
        self._login = login
        if known or login.tokens.until <= self._clock():
            return False
        self._adopt(login.tokens, made_now=False)
        return bool(self.header_now())

    async def _refresh(self, login: Login) -> None:
        """Raises Denied, other RemoteProtocolErrors, TransportError."""
        assert login.tokens.refresh is not None
        authority = await self._finder.find_authority(login.issuer)
        members = {"refresh_token": login.tokens.refresh, "resource": login.resource}
        fields, body = token_form(login.client, "refresh_token", members)
        answer = await self._http.post(authority.token_endpoint, fields, body)
        tokens = read_tokens(answer, login.issuer, login.tokens.scopes, self._clock())
        if tokens.refresh is None:
            tokens = msgspec.structs.replace(tokens, refresh=login.tokens.refresh)
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
        needed = challenge.scopes or (await self._finder.find(challenge, login.issuer)).scopes
        missing = tuple(scope for scope in needed if scope not in login.wanted)
        if missing:
            wanted = msgspec.structs.replace(login, wanted=(*login.wanted, *missing))
            await trio.to_thread.run_sync(partial(self._store.save, wanted))
        scopes = " ".join(needed) or "it does not say what"
        raise NoToken(f"it wants more than the login allows ({scopes}): {self._command}")
