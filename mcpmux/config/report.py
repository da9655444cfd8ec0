"""The words for mistakes in a configuration.

A mistake never quotes a value of the file, because the value may be secret. It names the key path, what was
expected, and the sort of value that was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from mcpmux.errors import ConfigError

ELSEWHERE: Final = {"mcpservers": "upstreams", "servers": "upstreams", "timeout": "request_timeout"}
"""Keys in the files of host apps -> our keys."""


class InvalidValue(ConfigError, ValueError):
    """A value is not accepted. The message names what was expected and never quotes the value."""

    def __init__(self, text: str) -> None:
        super().__init__([text])


class NoValue(InvalidValue):
    """A value is not there, or not fit for use, outside of the file: in a variable or in another file."""


_SORTS: Final = {bool: "true or false", str: "text", dict: "a table", list: "a list", type(None): "null"}


def sort_of(value: object) -> str:
    """Return the sort of a value in the words of TOML and JSON: "text", "a number", "a table", …"""
    if type(value) in (int, float):
        return "a number"
    return _SORTS.get(type(value), "a date or time")


def invalid_value(expected: str, value: object) -> InvalidValue:
    return InvalidValue(f"expected {expected}, got {sort_of(value)}")


CANDIDATES_LIMIT: Final = 1000  # known words that one is compared with: takes some 20 ms
CANDIDATE_CHARACTERS: Final = 256  # of a word that is compared: the time grows with their square


def closest(word: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known word that is most like `word`, or None. `alike`: least similarity, from 0 to 1.

    Only the first CANDIDATES_LIMIT words are compared, and no words that are very long.
    """
    # Not at the top: only a mistake needs it.
    from difflib import get_close_matches

    words = [word for word in islice(known, CANDIDATES_LIMIT) if len(word) <= CANDIDATE_CHARACTERS]
    return next(iter(get_close_matches(word[:CANDIDATE_CHARACTERS], words, n=1, cutoff=alike)), None)


def hint_at(word: str | None, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word, with the most similar known one; "" without any."""
    return suggestion(closest(word or "", known))


def suggestion(close: str | None, quote: str = "`") -> str:
    """Return the end of a sentence that names `close` as what was probably meant; "" without any."""
    return f"; did you mean {quote}{close}{quote}?" if close else ""


def suggest(key: str, known: Iterable[str]) -> str:
    """Return the message about an unknown `key`: the most similar known key, or else all known keys."""
    known = sorted(known)
    lowered = {name.lower(): name for name in known}
    elsewhere = ELSEWHERE.get(key.lower())
    close = elsewhere if elsewhere in lowered else closest(key.lower(), lowered)
    if close is not None:
        return f"unknown key; did you mean `{lowered[close]}`?"
    return "unknown key; expected one of " + ", ".join(f"`{name}`" for name in known)
