"""JSON as host apps keep it: with comments and trailing commas.

Both are blanked out in place, so the positions in a syntax error are those of the file.
"""

from __future__ import annotations

import json
import re
from typing import Any

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|[\[{{]\s*,|,(?=\s*[}}\]])", re.DOTALL)


def parse_jsonc(text: str) -> Any:
    """The JSON value in `text`. Raises json.JSONDecodeError, ValueError for a number too long to read."""
    return json.loads(_TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Spaces of the same length, line breaks kept; a string stays, and so does a comma after nothing."""
    token = match[0]
    return token if token[0] in '"[{' else re.sub(r"[^\n]", " ", token)
