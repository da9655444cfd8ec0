"""The `.env` files that a host app's `envFile` names: one `NAME=value` a line.

Empty lines, `#` comment lines and a leading `export` are skipped over; a value may be quoted whole.
Nothing in a value is expanded.
"""

from __future__ import annotations

import re
from pathlib import Path

from mcpmux.config.report import Unfit
from mcpmux.config.secret import Secret

_ASSIGNMENT = re.compile(r"""(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:"(.*)"|'(.*)'|(.*))""")


def read_env_file(path: str) -> dict[str, Secret]:
    """The variables in the file. Raises Unfit when it cannot be read or a line is no assignment."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Unfit(f"expected a readable file of `NAME=value` lines: {reason}") from None
    return parse_env_file(text)


def parse_env_file(text: str) -> dict[str, Secret]:
    """The variables in `text`; of two with one name the later counts. Raises Unfit naming the lines."""
    variables: dict[str, Secret] = {}
    bad_lines: list[str] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            bad_lines.append(str(number))
        else:
            name, *values = match.groups()
            variables[name] = Secret(next(value for value in values if value is not None))
    if bad_lines:
        raise Unfit(f"expected `NAME=value` in the file's line {', '.join(bad_lines)}")
    return variables
