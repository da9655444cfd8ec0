"""Does a URI come out of a URI template? Used to find who owns a raw URI.

A match is a claim, not an expansion: a simple expression stands for one or more characters of one path
segment, a reserved or exploded one (`{+x}`, `{x*}`) may cross `/`, query-like ones may be absent.

Templates and URIs are both a stranger's text, so no backtracking: the set of places that the template can
have reached is carried from piece to piece, which costs (pieces x length of the URI) at worst; both are
limited.
Source: RFC 6570 sections 2.2 and 3.2.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

URI_LIMIT = 8192  # characters; a longer URI or template claims nothing
PIECE_LIMIT = 64  # of a template that claims anything; bounds the time that one match can take

_EXPRESSION = re.compile(r"\{([^{}]*)\}")


class _Piece(NamedTuple):
    """A literal, then a run of characters none of which is in `stops`; `optional`: both may be absent."""

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


@functools.lru_cache(maxsize=4096)  # as many templates as a large aggregate lists
def _pieces(template: str) -> tuple[_Piece, ...]:
    pieces, position = [], 0
    for expression in _EXPRESSION.finditer(template):
        pieces.append(_Piece(template[position : expression.start()]))
        pieces.append(_piece_of(expression.group(1)))
        position = expression.end()
    pieces.append(_Piece(template[position:]))
    return tuple(piece for piece in pieces if piece.literal or piece.stops is not None)


def _piece_of(expression: str) -> _Piece:
    known = _BY_OPERATOR.get(expression[:1])
    if known is not None:
        return known
    return _Piece("", "" if expression.endswith("*") else "/?#", 1)


def _after(piece: _Piece, uri: str, starts: set[int]) -> set[int]:
    """Every place where `piece` can end when it begins at one of `starts`."""
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


def matches(template: str, uri: str) -> bool:
    """Whether `uri` can be an expansion of `template`."""
    if max(len(uri), len(template)) > URI_LIMIT:
        return False
    pieces = _pieces(template)
    if len(pieces) > PIECE_LIMIT:
        return False
    places = {0}
    for piece in pieces:
        places = _after(piece, uri, places)
        if not places:
            return False
    return len(uri) in places
