"""Text of strangers made fit for a terminal or a log: one line, nothing hidden, nothing that steers.

Promises: what comes out has no control character, no line or paragraph end, nothing that turns the direction
of writing or takes no room, and no half of a surrogate pair, so that it can always be encoded. Each of them
is shown as its escape in Python's spelling (`\\x1b`). All other text stays as it is. Pure.

Not covered: letters that look like others, and combining marks. They deceive a reader, not a terminal.
"""

from __future__ import annotations

import re

_UNFIT = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters: line ends, escape sequences
    "\xad\u180e\u200b\u2060-\u2065\ufeff\ufff9-\ufffb"  # take no room
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # turn the direction of writing
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # halves of pairs
    "\U000e0000-\U000e0fff"  # tags and selectors, which can hide a whole text
    "]"
)


def printable(text: str) -> str:
    """`text` as one line with everything unfit made visible."""
    if text.isascii() and text.isprintable():
        return text
    return _UNFIT.sub(lambda found: repr(found.group())[1:-1], text)


def printable_lines(text: str) -> str:
    """The same for text of our own that has lines: its line ends stay."""
    return "\n".join(map(printable, text.split("\n")))
