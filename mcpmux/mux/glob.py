"""Text with `*` for any text, as people write it in filters and access rules. Pure.

A glob is the tuple of the texts between the stars: `("docs",)` is exactly that, `("", ".md")` is `*.md`.
Matching takes time in proportion to the text, however many stars there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Glob: TypeAlias = tuple[str, ...]


def parse_glob(text: str) -> Glob:
    """The glob that a text means: each `*` in it stands for any text, the empty one included."""
    return tuple(text.split("*"))


def matches(glob: Glob, text: str) -> bool:
    """Whether the glob stands for the whole text."""
    first, *middle = glob
    if not middle:
        return first == text
    last = middle.pop()
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    return _in_order(middle, text, len(first), end)


def may_meet(one: Glob, other: Glob) -> bool:
    """Whether there is a text that both globs stand for.

    Between its first and last piece a glob with a star takes any text, so for two such globs only their ends
    can be at odds: a text with the longer of both beginnings, all middle pieces and the longer end is both.
    """
    if len(one) == 1:
        return matches(other, one[0])
    if len(other) == 1:
        return matches(one, other[0])
    heads, tails = (one[0], other[0]), (one[-1], other[-1])
    return max(heads, key=len).startswith(min(heads, key=len)) and max(tails, key=len).endswith(
        min(tails, key=len)
    )


def is_inside(glob: Glob, text: str) -> bool:
    """Whether some part of the text is what the glob stands for."""
    return _in_order(glob, text, 0, len(text))


def _in_order(pieces: Sequence[str], text: str, start: int, end: int) -> bool:
    for piece in pieces:
        found = text.find(piece, start, end)
        if found < 0:
            return False
        start = found + len(piece)
    return True


def casefold(glob: Glob) -> Glob:
    """The same for text whose case does not matter."""
    return tuple(piece.casefold() for piece in glob)
