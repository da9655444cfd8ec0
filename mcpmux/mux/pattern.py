"""Match texts against patterns: globs of settings, and URI templates of servers. Pure.

A glob is the tuple of the texts between its stars: `("docs",)` is exactly that, `("", ".md")` is `*.md`.
Matching takes time in proportion to the text, for any number of stars.

A template that matches a raw URI shows who may own it. A match is a claim, not an expansion: a
simple expression stands for one or more characters of one path segment, a reserved or exploded one (`{+x}`,
`{x*}`) may cross `/`, query-like ones may be absent. Templates and URIs are both untrusted text, so no
backtracking: the set of places that the template can have reached is carried from piece to piece, which
costs (pieces x length of the URI) at worst; both are limited.

Source: RFC 6570 sections 2.2 and 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from mcpmux.lru import Lru

URI_LIMIT = 8192  # characters; a longer URI or template claims nothing
PIECE_LIMIT = 64  # of a template that claims anything; bounds the time that one match can take

Glob: TypeAlias = tuple[str, ...]

_EXPRESSION = re.compile(r"\{([^{}]*)\}")


def parse_glob(text: str) -> Glob:
    """Return the glob for a text: each `*` in it stands for any text, the empty one included."""
    return tuple(text.split("*"))


def rests_of(glob: str, beginning: str) -> list[str]:
    """Return the rest of a glob after `beginning`, for each way in which a matching text can begin so.

    `glob` is in its written form: `d*x` after `docs` is `*x`; `*s+x` after `docs+` is `*s+x`, and `x`.
    """
    places = {0}
    for char in beginning:
        stars = {place for place in _past_stars(glob, places) if glob[place : place + 1] == "*"}
        places = stars | {place + 1 for place in _past_stars(glob, places) if glob[place : place + 1] == char}
    return [glob[place:] for place in sorted(places)]


def _past_stars(glob: str, places: set[int]) -> set[int]:
    found = set(places)
    for place in places:
        while glob[place : place + 1] == "*":  # it may stand for the empty text
            place += 1
            found.add(place)
    return found


def template_glob(template: str) -> Glob:
    """Return a glob for a URI template: each expression may stand for any text."""
    return tuple(_EXPRESSION.split(template)[::2])


def matches(glob: Glob, text: str) -> bool:
    """Return whether the glob stands for the whole text."""
    first, *middle = glob
    if not middle:
        return first == text
    last = middle.pop()
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    # The first place for each piece is always right: a later one leaves less room for the next.
    return _in_order(middle, text, len(first), end)


def may_meet(one: Glob, other: Glob) -> bool:
    """Return whether there is a text that both globs stand for.

    Between its first and last piece a glob with a star takes any text, so for two such globs only their ends
    can be at odds: a text with the longer of both beginnings, all middle pieces and the longer end is both.
    """
    if len(one) == 1:
        return matches(other, one[0])
    if len(other) == 1:
        return matches(one, other[0])
    short_head, head = sorted((one[0], other[0]), key=len)
    short_tail, tail = sorted((one[-1], other[-1]), key=len)
    return head.startswith(short_head) and tail.endswith(short_tail)


def is_inside(glob: Glob, text: str) -> bool:
    """Return whether the glob stands for some part of the text."""
    return _in_order(glob, text, 0, len(text))


def _in_order(pieces: Sequence[str], text: str, start: int, end: int) -> bool:
    for piece in pieces:
        found = text.find(piece, start, end)
        if found < 0:
            return False
        start = found + len(piece)
    return True


def casefold(glob: Glob) -> Glob:
    """Return the glob for texts in folded case."""
    return tuple(piece.casefold() for piece in glob)


class _Piece(NamedTuple):
    """A literal, then a run of characters outside `stops`. `optional`: both may be absent."""

    literal: str
    stops: str | None = None  # None: no run
    least: int = 0
    optional: bool = False


_BY_OPERATOR = {
    "+": _Piece("", "", 1),
    "#": _Piece("#", "", 0, optional=True),
    ".": _Piece(".", "/?#", 1),
    "/": _Piece("/", "?#", 1),
    ";": _Piece(";", "/?#", 0, optional=True),
    "?": _Piece("?", "#", 0, optional=True),
    "&": _Piece("&", "#", 0, optional=True),
}


_known: Final[Lru[str, tuple[_Piece, ...]]] = Lru(4096, 8 * 2**20)  # templates of a large aggregate
_PIECE_BYTES: Final = 200  # the size of one, approximately


def _pieces(template: str) -> tuple[_Piece, ...]:
    known = _known.get(template)
    if known is not None:
        return known
    pieces = []
    for index, part in enumerate(_EXPRESSION.split(template)):
        if index % 2:
            simple = _Piece("", "" if part.endswith("*") else "/?#", 1)
            pieces.append(_BY_OPERATOR.get(part[:1], simple))
        elif part:
            pieces.append(_Piece(part))
    found = tuple(pieces)
    _known.keep(template, found, _PIECE_BYTES * len(found))
    return found


def _after(piece: _Piece, uri: str, starts: set[int]) -> set[int]:
    """Return every place where `piece` can end when it begins at one of `starts`."""
    begun = {p + len(piece.literal) for p in starts if uri.startswith(piece.literal, p)}
    ends = set(starts) if piece.optional else set()
    if piece.stops is None:
        return ends | begun
    reached = -1
    for start in sorted(begun):
        if start < reached:
            continue  # an earlier start's run came through here and went as far
        reached = start
        while reached < len(uri) and uri[reached] not in piece.stops:
            reached += 1
        ends.update(range(start + piece.least, reached + 1))
    return ends


def matches_template(template: str, uri: str) -> bool:
    """Return whether `uri` can be an expansion of `template`."""
    if max(len(uri), len(template)) > URI_LIMIT:
        return False
    pieces = _pieces(template)
    if len(pieces) > PIECE_LIMIT:
        return False
    places = {0}
    for piece in pieces:
        places = _after(piece, uri, places)
    return len(uri) in places
