"""Where an issuer's metadata is, and what is believed of it. Pure.

Source: "Authorization Server Metadata Discovery", 2025-11-25 and 2026-07-28; RFC 8414, sections 3.1 and 3.3;
OpenID Connect Discovery 1.0, section 4.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from mcpmux.config.auth import TrustedUrl
from mcpmux.errors import RemoteProtocolError

_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """The URLs to try, in this order."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if not path:
        return origin + _OAUTH, origin + _OPENID
    return origin + _OAUTH + path, origin + _OPENID + path, origin + path + _OPENID


def read_keys_url(data: bytes, issuer: str) -> str:
    """The `jwks_uri` in an issuer's metadata. Raises RemoteProtocolError when it is not of this issuer."""
    try:
        document: Any = msgspec.json.decode(data)
        claimed, url = document["issuer"], document["jwks_uri"]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
        raise RemoteProtocolError("its metadata has no `issuer` or no `jwks_uri`") from None
    if claimed != issuer:
        raise RemoteProtocolError("its metadata is that of another issuer")
    try:
        return TrustedUrl().read(url)
    except ValueError as error:
        raise RemoteProtocolError(f"its metadata names a bad `jwks_uri`: {error}") from None
