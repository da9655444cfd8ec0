"""What a client says in the query of its URL to see less: `?tools=search*,read&upstreams=docs`. Pure.

`upstreams` names upstreams; `tools`, `prompts`, `resources` and `templates` name items as upstreams have
them. Each is a list of globs, separated by commas; what is not named is not narrowed, but with `resources`
alone there are no templates. Other parts of a query mean nothing here, unless one looks like a misspelt name.
A narrowing is Views of its own, one of the upstreams and one of the items: what the client gets is in its
view and in these. Together they hold as many selectors as the query has globs, and not the products of lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_plus

from mcpmux.config.report import InvalidValue, closest
from mcpmux.config.views import ITEM, KINDS, RESOURCES, TEMPLATES, Selector, View
from mcpmux.errors import McpmuxError

UPSTREAMS: Final = "upstreams"
KEYS: Final = (UPSTREAMS, *KINDS)
NARROWED: Final = "?"
"""Stands between the name of a view and what a client narrows it to."""

MOST_BYTES: Final = 4096  # of a query that is looked at
MOST_GLOBS: Final = 64  # in a query; each is held against each item of each upstream
REMEMBERED: Final = 1024  # queries, which come again with each request of a client
REMEMBERED_LENGTH: Final = 512
_ALIKE: Final = 0.8
_PLAIN: Final = "*/:{}.~"  # characters besides letters and digits that are readable as they are


class BadNarrowing(McpmuxError):
    """Part of a query makes no sense; the text says which."""


def read_narrowing(query: str) -> str:
    """What a query narrows, in one spelling; "" for nothing. Raises BadNarrowing."""
    return _read_again(query) if len(query) <= REMEMBERED_LENGTH else _read(query)


def _read(query: str) -> str:
    named: dict[str, set[str]] = {}
    for part in query.split("&"):
        key, _, value = part.partition("=")
        key = unquote_plus(key)
        if key not in KEYS:
            if (close := closest(key, KEYS, _ALIKE)) is not None:
                raise BadNarrowing(f"the query has a part {key}; did you mean {close}?")
            continue
        if len(query) > MOST_BYTES:
            raise BadNarrowing(f"the query has more than {MOST_BYTES} characters")
        items = value.split(",", MOST_GLOBS)
        if len(items) + sum(map(len, named.values())) > MOST_GLOBS:
            raise BadNarrowing(
                f"the query names more than {MOST_GLOBS} things; a * stands for any characters"
            )
        for item in map(unquote_plus, items):
            try:
                named.setdefault(key, set()).add(str(ITEM.read(item)))
            except InvalidValue as mistake:
                raise BadNarrowing(f"the query's {key}: {mistake}; commas stand between several") from None
    return "&".join(f"{key}={_encoded(named[key])}" for key in KEYS if key in named)


_read_again = lru_cache(REMEMBERED)(_read)


def _encoded(items: set[str]) -> str:
    return ",".join(quote(item, safe=_PLAIN) for item in sorted(items))


def globs_in(narrowing: str) -> Mapping[str, list[str]]:
    """The globs in what `read_narrowing` gave, by key."""
    parts = [part.partition("=") for part in narrowing.split("&")]
    return {key: [unquote_plus(item) for item in value.split(",")] for key, _, value in parts}


def views_of(narrowing: str) -> Iterator[View]:
    """Yield what `read_narrowing` gave as Views: of what is in all of them."""
    globs = {**globs_in(narrowing)}
    upstreams = globs.pop(UPSTREAMS, None)
    if upstreams is not None:
        yield View(include=tuple(Selector(upstream=upstream) for upstream in upstreams))
    if RESOURCES in globs:  # else whatever a template can stand for would still be there
        globs.setdefault(TEMPLATES, [])
    if globs:
        yield View(
            include=tuple(Selector(kind=kind, name=name) for kind in KINDS for name in globs.get(kind, ["*"]))
        )
