"""Move secrets out of the servers of host apps: to environment variables, or to files that only we read.

A secret is recognised by the name beside it or by its form, with the rules of the redaction of traffic and
some more for configurations. A moved secret is never in a repr, a message or the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.traffic import BUILT_IN
from mcpmux.hosts.entry import Table
from mcpmux.hosts.reference import has_reference, split, unescape, variable_name
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.redaction.secret_patterns import make_label

_LAST_WORDS = frozenset({"KEY", "KEYS", "TOKEN", "TOKENS", "PAT", "AUTH", "PWD", "PIN", "DSN", "COOKIE"})
_LONG = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=-]{32,}")  # the form of keys without a prefix
_SCHEME = re.compile(r"((?:Bearer|Basic|Token) +)?(.*)", re.DOTALL | re.IGNORECASE)
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(=)?(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(=)(.+)", re.DOTALL)
_WORD = re.compile("[A-Za-z0-9_+/=.-]{6,}")
_URL_PART = re.compile(
    r"(?<=://)(?P<user>[^/?#@\s]+)(?=@)"
    r"|(?<=[^/]/)(?P<path>[A-Za-z0-9_+=-]{32,})(?=[/?#]|$)"
    r"|(?<=[?&])(?P<name>[^=&#]+)=(?P<value>[^&#]+)"
)

_label = make_label(BUILT_IN, ())
_redactor = cache(Redactor)


@frozen
class Moved:
    """A secret that was taken out of the configuration. `file`: the one that will hold it, if any."""

    variable: str
    upstream: str
    what: str
    value: Secret
    file: Path | None = None


def names_secret(name: str) -> bool:
    """Return whether the value beside a name is a secret: "API_KEY", "X-Auth-Token", "--password"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().replace("-", "_").split("_")
    if words == ["PWD"]:  # a program's working directory
        return False
    return _label(name) is not None or words[-1] in _LAST_WORDS


def looks_secret(text: str) -> bool:
    """Return whether the form of a text shows it to be a secret, without a telling name."""
    return _LONG.fullmatch(text) is not None or _redactor().redact_text(text)[1] > 0


@define
class Vault:
    """Moves secrets out of tables, and puts references there. `directory`: for files, None for variables."""

    directory: Path | None = None
    moved: list[Moved] = field(factory=list)

    def clear(self, upstream: str, table: Table) -> Table:
        """Return the table without secrets."""

        def keep(what: str, key: str) -> Callable[[str], str]:
            return lambda text: self._move(upstream, what, key, text)

        cleared = dict(table)
        for part, what in (("env", "variable"), ("headers", "header")):
            if isinstance(table.get(part), dict):
                cleared[part] = {
                    name: _clear_value(name, value, keep(f"{what} {name}", name))
                    for name, value in table[part].items()
                }
        if "args" in table:
            cleared["args"] = list(_clear_arguments(table["args"], keep))
        if isinstance(table.get("url"), str):
            cleared["url"] = _clear_url(table["url"], keep)
        return cleared

    def _move(self, upstream: str, what: str, key: str, text: str) -> str:
        taken = {secret.variable for secret in self.moved}
        variable = first = variable_name(upstream, key)
        number = 2
        while variable in taken:
            variable, number = f"{first}_{number}", number + 1
        file = None
        if self.directory is not None:
            file = self.directory / variable.lower().replace("_", "-")
        self.moved.append(Moved(variable, upstream, what, Secret(unescape(text)), file))
        return f"${{{variable}}}" if file is None else f"${{file:{file}}}"


Move = Callable[[str], str]
Keep = Callable[[str, str], Move]


def _clear_text(text: str, is_named: bool, move: Move, before: str = "") -> str:
    """Return the text without a secret. `is_named`: its name marks it as one. `before`: text before it."""
    if not has_reference(text):
        return move(text) if text and (is_named or looks_secret(before + text)) else text
    return "".join(
        move(piece)
        if not is_reference and (looks_secret(piece) or (is_named and _WORD.fullmatch(piece)))
        else piece
        for piece, is_reference in split(text)
    )


def _clear_value(name: str, value: Any, move: Move) -> Any:
    match = _SCHEME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    scheme = match[1] or ""
    return scheme + _clear_text(match[2], names_secret(name), move, scheme)


def _clear_arguments(arguments: Any, keep: Keep) -> Iterator[Any]:
    option = ""
    for number, argument in enumerate(arguments if isinstance(arguments, list) else (), start=1):
        text = argument if isinstance(argument, str) else ""
        match = _OPTION.fullmatch(text) or _ASSIGNMENT.fullmatch(text)
        what = f"argument {number}"
        if match and match[2]:
            head = text[: match.start(3)]
            yield head + _clear_text(match[3], names_secret(match[1]), keep(what, match[1]), head)
        elif match or not text:
            yield argument
        else:
            key = option or f"argument-{number}"
            yield _clear_text(text, bool(option) and names_secret(option), keep(what, key))
        option = match[1] if match and not match[2] else ""


def _clear_url(url: str, keep: Keep) -> str:
    def clear_part(match: re.Match[str]) -> str:
        if match["user"] is not None:
            return _clear_text(match["user"], True, keep("URL", "user"))
        if match["path"] is not None:
            return _clear_text(match["path"], False, keep("URL", "path"))
        name, value = match["name"], match["value"]
        return f"{name}={_clear_text(value, names_secret(name), keep('URL', name))}"

    return _URL_PART.sub(clear_part, url)
