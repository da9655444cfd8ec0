"""An authorization server's metadata: what is believed of it, and what is needed of it. Pure.

Source: RFC 8414, sections 2 and 3.3; RFC 9207, section 3; "Authorization" of 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import msgspec

from mcpmux.errors import RemoteProtocolError


class Authority(msgspec.Struct, frozen=True):
    """An authorization server. What it does not say about itself is None."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False

    def takes(self, method: str) -> bool:
        """Whether clients may authenticate so at its token endpoint; by RFC 8414 the default is Basic."""
        return method in (self.token_endpoint_auth_methods_supported or ("client_secret_basic",))

    def check_login(self) -> str:
        """The authorization endpoint. Raises RemoteProtocolError when nobody can log in there safely."""
        if self.authorization_endpoint is None:
            raise RemoteProtocolError(f"{self.issuer} has no authorization endpoint: nobody can log in there")
        if "S256" not in (self.code_challenge_methods_supported or ()):
            raise RemoteProtocolError(
                f"{self.issuer} does not say that it supports PKCE with S256: codes could be stolen"
            )
        return self.authorization_endpoint


def assume_authority(issuer: str) -> Authority:
    """A server of 2025-03-26 that says nothing about itself: with the paths and PKCE that it demands."""
    return Authority(
        issuer,
        token_endpoint=f"{issuer}/token",
        authorization_endpoint=f"{issuer}/authorize",
        registration_endpoint=f"{issuer}/register",
        code_challenge_methods_supported=("S256",),
        token_endpoint_auth_methods_supported=("none", "client_secret_post", "client_secret_basic"),
    )


def read_authority(data: bytes, issuer: str) -> Authority:
    """The metadata of `issuer`. Raises RemoteProtocolError when it is unusable or that of another issuer."""
    try:
        authority = msgspec.json.decode(data, type=Authority)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError(f"the metadata of {issuer} cannot be used") from None
    if not is_same_issuer(authority.issuer, issuer):
        raise RemoteProtocolError(f"the metadata of {issuer} is that of another issuer")
    return authority


def is_same_issuer(one: str, other: str) -> bool:
    """Whether two identifiers are the same, letter by letter.

    One slash behind a bare host is let pass: libraries that parse URLs add it (RFC 3986, section 6.2.3).
    """
    return one == other or (_is_bare(one) and _is_bare(other) and one.rstrip("/") == other.rstrip("/"))


def _is_bare(issuer: str) -> bool:
    rest = issuer.partition("://")[2]
    return rest.count("/") <= 1 and "/" not in rest.rstrip("/") and not rest.endswith("//")
