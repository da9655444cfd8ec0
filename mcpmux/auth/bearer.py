"""Read, check and write bearer tokens and challenges in HTTP. Pure.

A token is only read from the Authorization header: in a URL it would end up in logs. Of configured tokens
only hashes are kept. A plain SHA-256 is enough for 256 random bits.

Source: RFC 6750, sections 2.1 and 3; RFC 9110, section 11.6.1; RFC 9728, section 5.1.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from mcpmux.config.auth import SCOPE, StaticToken
from mcpmux.protocol.principal import Admission, Principal

MOST_CHARACTERS: Final = 32 * 1024  # of a token; those of real servers have a few thousand
TOKEN_BYTES: Final = 32  # of randomness
PREFIX: Final = "mcpmux_"  # so that people and scanners recognise a leaked token
LEAST_CHARACTERS: Final = 32  # of a token made elsewhere: shorter ones may be words

CHALLENGE_CHARACTERS: Final = 8192  # of WWW-Authenticate that are read
MOST_SCOPES: Final = 64  # in a challenge

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_UNQUOTABLE: Final = re.compile(r'[^\x20-\x7e]|["\\]')
_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PART: Final = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_NAME}))|({_NAME})')
_SCOPE: Final = re.compile(SCOPE.pattern)


class BadToken(Exception):
    """Not a token, or an invalid one. The text is for the client that sent it."""


def read_bearer(headers: Mapping[str, str]) -> str | None:
    """Return the token in a request's headers (lower-case names), or None. Raises BadToken."""
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


def hash_token(token: str) -> str:
    """Return the hash of a token for the configuration."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def admit_holder(digest: str, tokens: Mapping[str, StaticToken]) -> Admission | None:
    """Return the holder of the token with this hash, or None, in constant time for the list."""
    # No early end: the time must not depend on the place of a match.
    holder = None
    for name, token_config in tokens.items():
        if hmac.compare_digest(token_config.sha256, digest):
            holder = name
    if holder is None:
        return None
    principal = Principal(holder, frozenset(tokens[holder].scopes))
    return Admission(principal, ground=(f"tokens.{holder}", tokens[holder]))


def write_challenge(
    metadata_url: str | None,
    scopes: Collection[str] = (),
    error: str | None = None,
    description: str | None = None,
) -> str:
    """Return a value for WWW-Authenticate. `metadata_url`: of the protected resource, if it has metadata."""
    parts: Iterable[tuple[str, str | None]] = (
        ("realm", "mcpmux" if metadata_url is None else None),
        ("error", error),
        ("error_description", description),
        ("scope", " ".join(sorted(scopes)) or None),
        ("resource_metadata", metadata_url),
    )
    quoted = ", ".join(
        f'{name}="{_UNQUOTABLE.sub("?", value)}"' for name, value in parts if value is not None
    )
    return f"Bearer {quoted}"


class Challenge(NamedTuple):
    """`error`: such as "insufficient_scope"; `scopes`: those needed; `metadata_url`: of the resource.

    `description`: the server's text for its client about the error.
    """

    error: str | None = None
    scopes: tuple[str, ...] = ()
    metadata_url: str | None = None
    description: str | None = None


def read_challenge(value: str) -> Challenge:
    """Return the readable parts of the first Bearer challenge in WWW-Authenticate, which may have others."""
    params: dict[str, str] = {}
    scheme = ""
    for match in _PART.finditer(value[:CHALLENGE_CHARACTERS]):
        name, quoted, token, word = match.groups()
        if word is not None:
            if scheme == "bearer" and params:
                break
            scheme = word.lower()
        elif scheme == "bearer":
            text = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else token
            params.setdefault(name.lower(), text)
    scopes = read_scopes(params.get("scope", ""))
    return Challenge(
        params.get("error"), scopes, params.get("resource_metadata"), params.get("error_description")
    )


def read_scopes(text: str) -> tuple[str, ...]:
    """Return the scopes in a space-separated list, each once, at most MOST_SCOPES."""
    scopes = dict.fromkeys(scope for scope in text.split(" ") if _SCOPE.fullmatch(scope))
    return tuple(scopes)[:MOST_SCOPES]
