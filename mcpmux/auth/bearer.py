"""Bearer tokens in HTTP: reading one out of the request's headers, and asking for one. Pure.

A token is taken from the Authorization header and from nowhere else: in a URL it would end up in logs.
Source: RFC 6750, sections 2.1 and 3; RFC 9728, section 5.1; "Authorization" of 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

MOST_CHARACTERS = 32 * 1024  # of a token; those of real servers have a few thousand

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_UNQUOTABLE = re.compile(r'[^\x20-\x7e]|["\\]')


class BadToken(Exception):
    """What was shown is no token, or none that counts. The text is for whoever showed it."""


def read_bearer(headers: Mapping[str, str]) -> str | None:
    """The token in a request's headers (lower-case names); None when none is shown. Raises BadToken."""
    value = headers.get("authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer":
        raise BadToken("the Authorization header must be Bearer and a token")
    if len(token) > MOST_CHARACTERS:
        raise BadToken(f"the token is longer than {MOST_CHARACTERS} characters")
    if _TOKEN.fullmatch(token) is None:
        raise BadToken("this is no bearer token")
    return token


def challenge(
    metadata_url: str | None,
    scopes: Collection[str] = (),
    error: str | None = None,
    description: str | None = None,
) -> str:
    """The value of WWW-Authenticate. `metadata_url`: of the protected resource, if it has metadata."""
    parts: Iterable[tuple[str, str | None]] = (
        ("realm", "mcpmux" if metadata_url is None else None),
        ("error", error),
        ("error_description", description),
        ("scope", " ".join(sorted(scopes)) or None),
        ("resource_metadata", metadata_url),
    )
    said = ", ".join(f'{name}="{_UNQUOTABLE.sub("?", value)}"' for name, value in parts if value is not None)
    return f"Bearer {said}"
