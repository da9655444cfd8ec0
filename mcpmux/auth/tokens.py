"""Tokens as values, and what is kept of a login. No repr shows a secret."""

from __future__ import annotations

import math

import msgspec


class Tokens(msgspec.Struct, frozen=True):
    """What a token endpoint gave. `expires`: seconds since 1970; None when it did not say."""

    access: str
    refresh: str | None = None
    expires: float | None = None
    scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Tokens until {self.expires}, {'with' if self.refresh else 'without'} refresh>"

    @property
    def until(self) -> float:
        """Seconds since 1970."""
        return math.inf if self.expires is None else self.expires


class OAuthClient(msgspec.Struct, frozen=True):
    """mcpmux as an authorization server knows it. `method`: of authenticating at its token endpoint."""

    id: str
    secret: str | None = None
    method: str = "none"
    redirect_uri: str | None = None
    registered: bool = False
    """Whether mcpmux registered it itself, so that it may do so again."""

    def __repr__(self) -> str:
        return f"<OAuthClient {self.method}>"


class Login(msgspec.Struct, frozen=True):
    """A login at one issuer for one upstream. `wanted`: scopes that the upstream asked for since."""

    upstream: str
    url: str
    issuer: str
    resource: str
    client: OAuthClient
    tokens: Tokens
    asked: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Login {self.upstream} at {self.issuer}>"
