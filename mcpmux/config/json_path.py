"""Paths into a message: `params.arguments.ssn`, `result.content[*].text`, `..name` for a member below.

Names with special characters are written `["a.b"]`; a `$` in front stands for the message and may be there.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Final, TypeAlias

from mcpmux.config.report import Unfit


class Wild(Enum):
    """Steps that stand for more than one member."""

    ONE = "*"
    DEEP = ".."


ONE: Final = Wild.ONE
DEEP: Final = Wild.DEEP

Step: TypeAlias = str | int | Wild

PATH_LIMIT = 32  # steps

_STEP = re.compile(
    r"""(?:(\.\.)|\.)?(?:([^\s.\[\]"'*$][^\s.\[\]"'*]*)|(\*))|(\.\.)?\[(?:(\d{1,9})|(\*)|("(?:[^"\\]|\\.)+"))\]"""
)
_EXPECTED_PATH = "expected a path such as `params.arguments.ssn`, `result.content[*].text` or `..name`"


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises Unfit."""
    steps: list[Step] = []
    at = 1 if text.startswith("$") else 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (at > 0 and text[at] not in ".[" and text[at - 1] != "$"):
            raise Unfit(_EXPECTED_PATH)
        at = match.end()
        if match[1] or match[4]:
            steps.append(DEEP)
        steps.append(_step_of(match))
    if not steps or len(steps) > PATH_LIMIT:
        raise Unfit(_EXPECTED_PATH)
    return tuple(steps)


def _step_of(match: re.Match[str]) -> Step:
    if match[2]:
        return match[2]
    if match[5]:
        return int(match[5])
    if match[7]:
        try:
            return str(json.loads(match[7]))
        except ValueError:
            raise Unfit(_EXPECTED_PATH) from None
    return ONE
