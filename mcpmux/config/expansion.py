"""Environment variables in text: `${VAR}`, `${VAR:-default}`, and `${env:VAR}` as VS Code and Cursor have it.

`$${` stands for a literal `${`. Every other `$` is left alone, so `$HOME` and `pa$$word` stay what they
are. As in a shell the default also replaces an empty variable. A default ends at the first `}` and
cannot hold another reference. What is put in is not expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpmux.config.report import Unfit

_REFERENCE = re.compile(r"\$?\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with every reference replaced.

    Raises Unfit that names every variable which is not set and every reference that cannot be read.
    """
    mistakes: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        try:
            return _resolve(match[1], bool(match[2]), environ)
        except Unfit as mistake:
            mistakes.append(str(mistake))
            return ""

    expanded = _REFERENCE.sub(replace, text)
    if mistakes:
        raise Unfit("; ".join(mistakes))
    return expanded


def _resolve(inner: str, closed: bool, environ: Mapping[str, str]) -> str:
    """The value of one reference, given what stands between its braces."""
    if not closed:
        raise Unfit("`${` has no closing `}`; a literal `${` is written `$${`")
    if inner.startswith("input:"):
        raise Unfit("`${input:…}` is asked for by the host app, which mcpmux cannot do; use `${VARIABLE}`")
    match = _VARIABLE.fullmatch(inner)
    if match is None:
        raise Unfit("expected `${VARIABLE}` or `${VARIABLE:-default}`; a literal `${` is written `$${`")
    name, default = match.groups()
    if default is not None and "${" in default:
        raise Unfit(f"the default of `{name}` cannot hold another `${{…}}`")
    if default is not None:
        return environ.get(name) or default
    if name not in environ:
        raise Unfit(
            f"the environment variable `{name}` is not set and has no default (`${{{name}:-default}}`)"
        )
    return environ[name]
