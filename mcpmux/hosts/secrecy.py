"""Secrets in what host apps say, moved out of it: to environment variables, or to files that only we read.

A secret is known by the name beside it or by its looks, with the rules of the redaction of traffic and some
more for configurations. What was moved is never in a repr, a message or the configuration.
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
from mcpmux.hosts.reference import has_reference, unescape, variable_name
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.redaction.secret_patterns import make_label

_LAST_WORDS = frozenset({"KEY", "KEYS", "TOKEN", "TOKENS", "PAT", "AUTH", "PWD", "PIN", "DSN", "COOKIE"})
_LONG = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=-]{32,}")  # as keys without a prefix are
_SCHEME = re.compile(r"((?:Bearer|Basic|Token) +)?(.*)", re.DOTALL | re.IGNORECASE)
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(=)?(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(=)(.+)", re.DOTALL)
_USER = re.compile(r"(?<=://)[^/?#@\s]+(?=@)")
_QUERY = re.compile(r"(?<=[?&])([^=&#]+)=([^&#]+)")

_label = make_label(BUILT_IN, ())
_redactor = cache(Redactor)


@frozen
class Moved:
    """A secret that is not in the configuration any more. `file`: where it is kept, if it is."""

    variable: str
    upstream: str
    what: str
    value: Secret
    file: Path | None = None


def names_secret(name: str) -> bool:
    """Whether what stands beside the name is a secret: "API_KEY", "X-Auth-Token", "--password"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().replace("-", "_").split("_")
    if words == ["PWD"]:  # where a program works
        return False
    return _label(name) is not None or words[-1] in _LAST_WORDS


def looks_secret(text: str) -> bool:
    """Whether text without a telling name shows itself to be a secret."""
    return _LONG.fullmatch(text) is not None or _redactor().redact_text(text)[1] > 0


@define
class Vault:
    """Takes secrets out of tables and gives references to them. `directory`: of files, None for variables."""

    directory: Path | None = None
    moved: list[Moved] = field(factory=list)

    def clear(self, upstream: str, table: Table) -> Table:
        """The same table without secrets."""

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
        taken = {each.variable for each in self.moved}
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


def _clear_value(name: str, value: Any, move: Move) -> Any:
    if not isinstance(value, str):
        return value
    match = _SCHEME.fullmatch(value)
    assert match is not None
    scheme, text = match[1] or "", match[2]
    if not text or has_reference(text) or not (names_secret(name) or looks_secret(value)):
        return value
    return scheme + move(text)


def _clear_arguments(arguments: Any, keep: Keep) -> Iterator[Any]:
    option = ""
    for number, argument in enumerate(arguments if isinstance(arguments, list) else (), start=1):
        text = argument if isinstance(argument, str) else ""
        match = _OPTION.fullmatch(text) or _ASSIGNMENT.fullmatch(text)
        what = f"argument {number}"
        if has_reference(text) or not text:
            yield argument
        elif match and match[2] and match[3] and (names_secret(match[1]) or looks_secret(match[3])):
            yield text[: match.start(3)] + keep(what, match[1])(match[3])
        elif option and not match and names_secret(option):
            yield keep(what, option)(text)
        elif looks_secret(text):
            yield keep(what, option or f"argument-{number}")(text)
        else:
            yield argument
        option = match[1] if match and not match[2] else ""


def _clear_url(url: str, keep: Keep) -> str:
    def clear_pair(match: re.Match[str]) -> str:
        name, value = match.groups()
        if has_reference(value) or not (names_secret(name) or looks_secret(value)):
            return match[0]
        return f"{name}={keep('URL', name)(value)}"

    url = _USER.sub(lambda match: match[0] if has_reference(match[0]) else keep("URL", "user")(match[0]), url)
    return _QUERY.sub(clear_pair, url)
