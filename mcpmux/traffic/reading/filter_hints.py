"""What somebody may have meant by a word that is no term of a filter. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpmux.traffic.reading.filter_keys import NAMES
from mcpmux.traffic.reading.status import WORDS

OTHER_NAMES: Mapping[str, str] = {
    "tool": "name",
    "prompt": "name",
    "resource": "uri",
    "url": "uri",
    "http": "status",
    "outcome": "status",
    "result": "status",
    "principal": "client",
    "user": "client",
    "after": "since",
    "before": "until",
    "length": "size",
    "took": "duration",
}
"""Keys that there might be, and the ones that there are."""

_CONNECTIVES = {
    **dict.fromkeys(("and", "&&", "&"), "all terms must hold anyway: leave `{}` out"),
    **dict.fromkeys(("or", "||", "|"), "one of several values is key=a|b"),
    "not": "the opposite of a term is !key=value, without a blank",
}
_NUMBER = re.compile(r"#(\d{1,15})", re.ASCII)


def hint_for(word: str) -> str | None:
    """What to write in place of a word without an operator; None when nobody knows."""
    lowered = word.lower()
    if lowered in _CONNECTIVES:
        return _CONNECTIVES[lowered].format(word)
    if lowered in WORDS:
        return f"did you mean `status={lowered}`?"
    if (number := _NUMBER.fullmatch(word)) is not None:
        return f"did you mean `exchange={number[1]}`?"
    key, colon, value = word.partition(":")
    if colon and key.lower() in NAMES:
        return f"did you mean `{key}={value}`?"
    return None
