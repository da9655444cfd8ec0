"""What a server says in WWW-Authenticate about the token that it wants. Pure.

Promises: what cannot be read is as if it were not there. Source: RFC 9110, section 11.6.1; RFC 6750,
section 3; RFC 9728, section 5.1.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_CHARACTERS = 8192  # of the field's value that are looked at
MOST_SCOPES = 64

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PART = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_NAME}))|({_NAME})')
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")


class Challenge(NamedTuple):
    """`error`: such as "insufficient_scope"; `scopes`: that are needed; `metadata_url`: of the resource."""

    error: str | None = None
    scopes: tuple[str, ...] = ()
    metadata_url: str | None = None


NO_CHALLENGE = Challenge()


def read_challenge(value: str) -> Challenge:
    """The first Bearer challenge in the field's value, which may hold several of several schemes."""
    found: dict[str, str] = {}
    scheme = ""
    for match in _PART.finditer(value[:MOST_CHARACTERS]):
        name, quoted, token, word = match.groups()
        if word is not None:
            if scheme == "bearer" and found:
                break
            scheme = word.lower()
        elif scheme == "bearer":
            text = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else token
            found.setdefault(name.lower(), text)
    return Challenge(found.get("error"), read_scopes(found.get("scope", "")), found.get("resource_metadata"))


def read_scopes(text: str) -> tuple[str, ...]:
    """The scopes in a list with spaces between them, each once."""
    scopes = dict.fromkeys(each for each in text.split(" ") if _SCOPE.fullmatch(each))
    return tuple(scopes)[:MOST_SCOPES]
