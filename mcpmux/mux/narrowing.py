"""Read the query of a client's URL that narrows its view: `?tools=search*,read&upstreams=docs`. Pure.

`upstreams` names upstreams; `tools`, `prompts`, `resources` and `templates` name items as upstreams have
them. Each is a list of globs, separated by commas; a key that is absent narrows nothing, but with `resources`
alone there are no templates. Other parts of a query are ignored, unless one looks like a misspelt key.
A narrowing becomes Views, one of the upstreams and one of the items: the client gets what is in its own view
and in these. Together they hold as many selectors as the query has globs, and not the products of lists.
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

MOST_BYTES: Final = 4096  # of a query
MOST_GLOBS: Final = 64  # in a query; each is compared with each item of each upstream
REMEMBERED: Final = 1024  # queries: a client repeats its query with each request
REMEMBERED_LENGTH: Final = 512  # characters; so the memory for them stays below 1 MB or so
_ALIKE: Final = 0.8
_PLAIN: Final = "*/:{}.~"  # characters that are not percent-encoded, besides letters and digits


class BadNarrowing(McpmuxError):
    """A part of a query is invalid; the text names it."""


def read_narrowing(query: str) -> str:
    """Return what a query narrows, in canonical form; "" for nothing. Raises BadNarrowing."""
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
        # After the check of the key: a long query for other purposes is no mistake.
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
    """Return the globs in a result of `read_narrowing`, by key."""
    parts = [part.partition("=") for part in narrowing.split("&")]
    return {key: [unquote_plus(item) for item in value.split(",")] for key, _, value in parts}


def views_of(narrowing: str) -> Iterator[View]:
    """Yield the Views for a result of `read_narrowing`; the client gets what is in all of them."""
    globs = {**globs_in(narrowing)}
    upstreams = globs.pop(UPSTREAMS, None)
    if upstreams is not None:
        yield View(include=tuple(Selector(upstream=upstream) for upstream in upstreams))
    if RESOURCES in globs:  # included templates would allow all resources that they stand for
        globs.setdefault(TEMPLATES, [])
    if globs:
        yield View(
            include=tuple(Selector(kind=kind, name=name) for kind in KINDS for name in globs.get(kind, ["*"]))
        )
