"""Names that say that the value beside them is a secret, and which of the built-in rules says so.

Case, `-`, `_`, `.`, `\\` and spaces do not matter: `X-Api-Key`, `x_api_key` and `xApiKey` are one name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

CACHE_SIZE = 4096  # names; a hostile peer may send new ones all day
CACHED_LENGTH = 128  # characters of a name that is worth remembering

_IGNORED = "-_. \\"
IGNORED_BYTES = _IGNORED.encode()
_FOLD_TEXT = str.maketrans("", "", _IGNORED)
_LOWER = bytes(range(256)).lower()

# What a name ends with, and what it has anywhere; both folded.
_ENDINGS: dict[str, tuple[str, ...]] = {
    "authorization": ("authorization",),
    "cookie": ("cookie", "cookies"),
    "secret": ("secret", "secrets", "credential", "credentials", "signingkey", "encryptionkey", "masterkey"),
    "token": ("token", "accesstokens", "refreshtokens", "apitokens", "sessionid"),
    "api-key": ("subscriptionkey", "authkey", "accountkey", "sharedkey", "accesskeyid"),
    "private-key": ("sshkey",),
}
_WHOLE: dict[str, tuple[str, ...]] = {
    "authorization": ("auth",),
    "password": ("pass", "pwd"),
    "token": ("otp", "totp"),
}
_ANYWHERE: dict[str, tuple[str, ...]] = {
    "password": ("password", "passwd", "passphrase", "passcode"),
    "secret": ("clientsecret", "secretkey"),
    "api-key": ("apikey", "accesskey"),
    "private-key": ("privatekey",),
}
# Names of MCP and of paging that only look like secrets. PWD is where a program works.
_HARMLESS = ("progresstoken", "pagetoken", "nexttoken", "continuationtoken", "synctoken")

HEADER_NAMES = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "xapikey"})
"""Folded names that stand before their value in lists of headers."""

HINTS: dict[str, tuple[str, ...]] = {
    "authorization": ("auth",),
    "cookie": ("cookie",),
    "password": ("pass", "pwd"),
    "secret": ("secret", "credential", "key"),
    "token": ("token", "session", 'otp"'),
    "api-key": ("key",),
    "private-key": ("key",),
}
"""Of each rule, what a folded message with one of its names has in it."""

Label = Callable[[str], str | None]


def fold(name: str) -> str:
    """The name without what does not matter in it."""
    return name.translate(_FOLD_TEXT).lower()


def fold_message(data: bytes) -> bytes:
    """The same of a whole message: what is not in it is no name in the message, unless that has `\\u`.

    Characters that are not ASCII stay as they are.
    """
    return data.translate(_LOWER, IGNORED_BYTES).replace(b"progresstoken", b"")


def hint_of(name: str) -> str:
    """What a folded message with the name in it has; nothing is sure of a name that is not ASCII."""
    return fold(name) if name.isascii() else ""


def make_label(labels: Iterable[str], own: Iterable[str]) -> Label:
    """What tells the rule (or the user's own name) that makes a name's value a secret; None for no secret."""
    wanted = frozenset(labels)
    mine = {fold(name): name for name in own}

    def label(name: str) -> str | None:
        folded = fold(name)
        return mine.get(folded) or _built_in(folded, wanted)

    cached = lru_cache(CACHE_SIZE)(label)
    return lambda name: cached(name) if len(name) <= CACHED_LENGTH else label(name)


def _built_in(folded: str, wanted: frozenset[str]) -> str | None:
    if folded.endswith(_HARMLESS):
        return None
    for table, fits in ((_WHOLE, _is_one), (_ENDINGS, str.endswith), (_ANYWHERE, _has_one)):
        for label, words in table.items():
            if label in wanted and fits(folded, words):
                return label
    return None


def _is_one(folded: str, words: tuple[str, ...]) -> bool:
    return folded in words


def _has_one(folded: str, words: tuple[str, ...]) -> bool:
    return any(word in folded for word in words)
