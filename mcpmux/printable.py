"""Makes untrusted text safe for a terminal or a log: one line, without hidden parts. Pure.

The result has no control character, no end of a line or paragraph, no character that changes the direction of
writing or has no width, and no half of a surrogate pair, so it can always be encoded. Each of those becomes
its escape as Python spells it (`\\x1b`). All other text is unchanged.

Letters that look like others and combining marks stay: they may deceive a reader, but not a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

QUOTED_BYTES: Final = 4096  # of a foreign message or page that are looked at
QUOTED_LENGTH: Final = 200  # characters of it that are worth showing

_UNFIT: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters: line ends, escape sequences
    "\xad\u180e\u200b\u2060-\u2065\ufeff\ufff9-\ufffb"  # have no width
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # change the direction of writing
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # halves of pairs
    "\U000e0000-\U000e0fff"  # tags and selectors, which can hide a whole text
    "]"
)


_FORMULA: Final = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # the last are wide ones


def spreadsheet_cell(text: str) -> str:
    """Return text for a CSV cell, with a `'` in front of what a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def printable(text: str) -> str:
    """Return `text` as one line, with the characters above made visible."""
    if text.isascii() and text.isprintable():
        return text
    return _UNFIT.sub(lambda found: repr(found.group())[1:-1], text)


def printable_lines(text: str) -> str:
    """Make our own text of several lines safe, keeping its line ends."""
    return "\n".join(map(printable, text.split("\n")))


def excerpt(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return the beginning of a peer's bytes as one short line, for an error message or the log.

    `hide` takes secrets out of it, before it is cut.
    """
    text = hide(data[:QUOTED_BYTES].decode(errors="replace"))
    return printable(" ".join(text.split())[:QUOTED_LENGTH])
