"""References in text, secrets, and `.env` files.

A reference is `${VAR}`, `${VAR:-default}`, `${env:VAR}` as in VS Code and Cursor, or `${file:PATH}`. `$${`
stands for a literal `${`. Every other `$` is unchanged, as in `$HOME` and `pa$$word`. As in a shell, the
default also replaces an empty variable. A default ends at the first `}` and cannot hold another reference.
Values are not expanded again. Line ends at the end of a file are left out, as editors and secret stores add
one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote, quote_plus, urlsplit

from mcpmux.config.report import InvalidValue, NoValue
from mcpmux.files import read_file

MASK = "***"


class Secret:
    """Text that only `reveal` returns, and no log, error or repr. `attrs.asdict` does not take it apart."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK


HIDDEN_LENGTH: Final = 6  # characters; shorter values, such as "warn", stand in any text
Hide: TypeAlias = Callable[[str], str]
"""Takes known secrets out of text from outside."""


def make_hide(values: Iterable[str]) -> Hide:
    """Return a function that masks these values in a text, also as JSON, HTML and URLs spell them.

    Servers echo what they were sent, such as an error page that lists the headers of the request.
    """
    import html  # not at the top: its table of entities is large

    spelled = set[str]()
    for value in values:
        if len(value) >= HIDDEN_LENGTH:
            spelled |= {value, json.dumps(value)[1:-1], html.escape(value), quote(value), quote_plus(value)}
            # Some servers write escapes in lower case.
            spelled.add(re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quote(value, safe="")))
            spelled.add(base64.b64encode(value.encode()).decode().rstrip("="))
    if not spelled:
        return str
    longest_first = sorted(spelled, key=len, reverse=True)
    secrets = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: secrets.sub(MASK, text)


def display_url(url: str) -> str:
    """Return the URL with user, password and query masked, as they may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL, so any of it may be secret
        return MASK
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host}" if user else host
    query = f"?{MASK}" if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"


# The files that `env_file` names: one `NAME=value` on each line. Empty lines, comments (`#`) and a leading
# `export` are ignored. A value may be quoted as a whole. References in it are not expanded.

_LINE = re.compile(r"""(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:"(.*)"|'(.*)'|(.*))|#.*|""")


def read_env_file(path: str) -> dict[str, Secret]:
    """Return the variables in the file; the last of a name counts. Raises NoValue with all wrong lines."""
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NoValue(f"expected a readable file of `NAME=value` lines: {reason}") from None
    variables: dict[str, Secret] = {}
    bad_lines: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            bad_lines.append(str(number))
        elif match[1] is not None:
            name, *values = match.groups()
            variables[name] = Secret(next(value for value in values if value is not None))
    if bad_lines:
        raise NoValue(f"expected `NAME=value` in the file's line {', '.join(bad_lines)}")
    return variables


FILE_BYTES = 64 * 1024  # of a file with a secret; a longer one is the wrong file

REFERENCE = re.compile(r"\$?\$\{([^}]*)(\}?)")
"""What `expand` looks at: a reference, or text of one if it begins with two `$`."""

_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace every reference in `text`. Raises NoValue with all that have none now, or else InvalidValue."""
    mistakes: list[InvalidValue] = []

    def replace(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        try:
            return _resolve(match[1], bool(match[2]), environ)
        except InvalidValue as mistake:
            mistakes.append(mistake)
            return ""

    expanded = REFERENCE.sub(replace, text)
    if mistakes:
        kind = NoValue if all(isinstance(mistake, NoValue) for mistake in mistakes) else InvalidValue
        raise kind("; ".join(map(str, mistakes)))
    return expanded


def _resolve(inner: str, closed: bool, environ: Mapping[str, str]) -> str:
    """Return the value of one reference; `inner` is the text between its braces."""
    match = _VARIABLE.fullmatch(inner)
    name, default = match.groups() if match is not None else ("", None)
    if not closed:
        problem = "`${` has no closing `}`; a literal `${` is written `$${`"
    elif inner.startswith("input:"):
        problem = "`${input:…}` is asked for by the host app, which mcpmux cannot do; use `${VARIABLE}`"
    elif inner.startswith("file:"):
        return _read(inner.removeprefix("file:"))
    elif match is None:
        problem = "expected `${VARIABLE}`, `${VARIABLE:-default}` or `${file:PATH}`; "
        problem += "a literal `${` is written `$${`"
    elif default is not None and "${" in default:
        problem = f"the default of `{name}` cannot hold another `${{…}}`"
    elif default is not None:
        return environ.get(name) or default
    elif name in environ:
        return environ[name]
    else:
        advice = f"set it, put it into an `env_file`, or give a default (`${{{name}:-default}}`)"
        raise NoValue(f"the environment variable `{name}` is not set; {advice}")
    raise InvalidValue(problem)


def _read(path: str) -> str:
    """Return the text of a file without line ends at its end. No mistake quotes the file."""
    if "${" in path:
        raise InvalidValue("the path in `${file:PATH}` cannot hold another `${…}`")
    try:
        return read_file(path, FILE_BYTES).decode("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        problem = f"cannot be read: {(error.strerror or 'error').lower()}"
    except ValueError:  # no UTF-8; a NUL in the path
        problem = "is no UTF-8 text"
    raise NoValue(f"the file `{path}` {problem}")
