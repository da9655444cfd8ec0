"""Bearer tokens in HTTP: those that clients show, those of the configuration, and asking for one. Pure.

A token is taken from the Authorization header alone: in a URL it would end up in logs. Of tokens that are
given out by hand only hashes are kept. A plain SHA-256 is enough for 256 random bits.

Source: RFC 6750, sections 2.1 and 3; RFC 9110, section 11.6.1; RFC 9728, section 5.1.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from mcpmux.config.auth import SCOPE, StaticToken
from mcpmux.protocol.principal import Admission, Principal

MOST_CHARACTERS = 32 * 1024  # of a token; those of real servers have a few thousand
TOKEN_BYTES = 32  # of randomness
PREFIX = "mcpmux_"  # so that people and scanners recognise one that has leaked
LEAST_CHARACTERS = 32  # of a token made elsewhere: shorter ones may be words

CHALLENGE_CHARACTERS = 8192  # of WWW-Authenticate that are looked at
MOST_SCOPES = 64  # in a challenge

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_UNQUOTABLE = re.compile(r'[^\x20-\x7e]|["\\]')
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PART = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_NAME}))|({_NAME})')
_SCOPE = re.compile(SCOPE.pattern)


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


def hash_token(token: str) -> str:
    """What stands in the configuration for a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def admit_holder(digest: str, tokens: Mapping[str, StaticToken]) -> Admission | None:
    """Who has the token of that hash. Takes the same time wherever in the list it is, or if it is not."""
    found = None
    for name, known in tokens.items():
        if hmac.compare_digest(known.sha256, digest):
            found = name
    if found is None:
        return None
    principal = Principal(found, frozenset(tokens[found].scopes))
    return Admission(principal, ground=(f"tokens.{found}", tokens[found]))


def write_challenge(
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


class Challenge(NamedTuple):
    """`error`: such as "insufficient_scope"; `scopes`: that are needed; `metadata_url`: of the resource.

    `description`: what the server says to its client about the error.
    """

    error: str | None = None
    scopes: tuple[str, ...] = ()
    metadata_url: str | None = None
    description: str | None = None


def read_challenge(value: str) -> Challenge:
    """The first Bearer challenge in WWW-Authenticate, as far as it can be read; there may be others."""
    found: dict[str, str] = {}
    scheme = ""
    for match in _PART.finditer(value[:CHALLENGE_CHARACTERS]):
        name, quoted, token, word = match.groups()
        if word is not None:
            if scheme == "bearer" and found:
                break
            scheme = word.lower()
        elif scheme == "bearer":
            text = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else token
            found.setdefault(name.lower(), text)
    scopes = read_scopes(found.get("scope", ""))
    return Challenge(
        found.get("error"), scopes, found.get("resource_metadata"), found.get("error_description")
    )


def read_scopes(text: str) -> tuple[str, ...]:
    """The scopes in a list with spaces between them, each once."""
    scopes = dict.fromkeys(each for each in text.split(" ") if _SCOPE.fullmatch(each))
    return tuple(scopes)[:MOST_SCOPES]
