"""Translate variables in the texts of host apps to references of our configuration.

| text of the host app | with the rules | becomes |
| --- | --- | --- |
| `${` | literal | `$${`, as that host app expands no references |
| `${VAR}`, `${VAR:-default}` | shell | unchanged |
| `$VAR`, `${VAR}`, `${VAR:-default}` | dollar | `${VAR}`, `${VAR:-default}` |
| `${env:VAR}`, `${VAR}` | editor | `${VAR}` |
| `${workspaceFolder}`, `${userHome}` and the like | editor | their values |
| `${input:ID}` | editor | `${ID}` in capitals, with the default of the input if it has one |
| `${file:PATH}` | editor, in Windsurf | unchanged |
| all of ours, and `${workspaceFolder}`, `${userHome}` and the like | own | unchanged; their values |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from mcpmux.config.expansion import REFERENCE
from mcpmux.errors import McpmuxError
from mcpmux.hosts.host import DOLLAR, LITERAL, OWN, SHELL, Host


class NotTakenOver(McpmuxError):
    """Our configuration cannot express a server. The text is the reason, without any value of it."""


_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_SHELL = re.compile(rf"\$\{{(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{")
_DOLLAR = re.compile(rf"\$\{{(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\$(?P<bare>{_NAME})|\$\{{")
_EDITOR = re.compile(r"\$\{(?P<inner>[^}]*)\}|\$\{")
_OWN = re.compile(r"\$?\$\{(?P<inner>[^}]*)\}")
_KIND = re.compile(r"[A-Za-z]{1,32}")
_LITERAL = re.compile(r"\$\{[^}]*\}?")


@frozen
class Surroundings:
    """The values for references in one file. `inputs`: the questions of a VS Code file, by id."""

    host: Host
    home: Path
    separator: str = "/"
    project: Path | None = None
    inputs: Mapping[str, Mapping[str, Any]] = field(factory=dict)


def translate(value: Any, around: Surroundings, rules: str | None = None) -> Any:
    """Return `value` with all its texts in our form. Raises NotTakenOver."""
    rules = rules or around.host.references
    if isinstance(value, dict):
        return {key: translate(member, around, rules) for key, member in value.items()}
    if isinstance(value, list):
        return [translate(item, around, rules) for item in value]
    if not isinstance(value, str):
        return value
    if rules == LITERAL:
        return escape(value)
    if rules in (SHELL, DOLLAR):
        return (_SHELL if rules == SHELL else _DOLLAR).sub(_translate_shell, value)
    if rules == OWN:
        return _OWN.sub(lambda match: _translate_own(match, around), value)
    return _EDITOR.sub(lambda match: _translate_editor(match["inner"], around), value)


def _translate_shell(match: re.Match[str]) -> str:
    groups = match.groupdict()
    name, default = groups["name"] or groups.get("bare"), groups["default"]
    if name is None:
        return "$${"
    return reference(name, default)


def _translate_editor(inner: str | None, around: Surroundings) -> str:
    if inner is None:
        return "$${"
    kind, colon, rest = inner.partition(":")
    if colon and kind == "env" and re.fullmatch(_NAME, rest):
        return reference(rest)
    if colon and kind == "input":
        input_ = around.inputs.get(rest)
        if input_ is None:
            raise NotTakenOver("it refers to an input that the file does not have")
        if input_.get("type") == "command":
            raise NotTakenOver(f"one of its inputs is the result of a command of {around.host.title}")
        default = input_.get("default")
        # The default of a password would be a secret in our configuration.
        is_open = isinstance(default, str) and not input_.get("password")
        return reference(variable_name(rest), default if is_open else None)
    if colon and kind == "file" and around.host.name == "windsurf":
        return f"${{file:{rest}}}"
    if (place := _find_place(inner, around)) is not None:
        return place
    if re.fullmatch(_NAME, inner) and inner.isupper():  # names of an editor's own variables have lower case
        return reference(inner)
    what = f"${{{kind}…}}" if _KIND.fullmatch(kind) else "a reference"
    raise NotTakenOver(f"{what} is only known inside of {around.host.title}")


def _find_place(inner: str, around: Surroundings) -> str | None:
    """Return the value of an editor's word for a place; None for another word. Raises NotTakenOver."""
    values = {
        "userHome": str(around.home),
        "pathSeparator": around.separator,
        "/": around.separator,
        "workspaceFolder": None if around.project is None else str(around.project),
        "workspaceFolderBasename": None if around.project is None else around.project.name,
    }
    if inner not in values:
        return None
    if (value := values[inner]) is None:
        raise NotTakenOver(f"${{{inner}}} is only known in a project")
    return escape(value)


def _translate_own(match: re.Match[str], around: Surroundings) -> str:
    place = None if match[0].startswith("$$") else _find_place(match["inner"], around)
    return match[0] if place is None else place


def reference(name: str, default: str | None = None) -> str:
    """Return our reference to a variable. Raises NotTakenOver for a default that it cannot contain."""
    if default is None:
        return f"${{{name}}}"
    if "${" in default or "}" in default:
        raise NotTakenOver(f"the default of ${{{name}}} has another reference in it")
    return f"${{{name}:-{default}}}"


def variable_name(*parts: str) -> str:
    """Return a name for an environment variable: "docs", "x-api-key" -> DOCS_X_API_KEY."""
    name = re.sub("[^A-Z0-9]+", "_", "_".join(parts).upper()).strip("_")
    return name if name[:1].isalpha() else f"MCP_{name}".rstrip("_")


def escape(text: str) -> str:
    """Return a text that our configuration reads as `text`."""
    return _LITERAL.sub(r"$\g<0>", text)


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""
    return REFERENCE.sub(lambda match: match[0].removeprefix("$") if _is_literal(match) else match[0], text)


def variables_in(value: Any) -> Iterator[str]:
    """Yield the variables without a default that our texts refer to."""
    if isinstance(value, str):
        for match in REFERENCE.finditer(value):
            if not _is_literal(match) and re.fullmatch(_NAME, match[1]):
                yield match[1]
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from variables_in(member)


def split(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the text piece by piece, and whether our configuration would expand the piece."""
    at = 0
    for match in REFERENCE.finditer(text):
        if not _is_literal(match):
            yield text[at : match.start()], False
            yield match[0], True
            at = match.end()
    yield text[at:], False


def has_reference(text: str) -> bool:
    """Return whether our configuration would expand a part of the text."""
    return not all(map(_is_literal, REFERENCE.finditer(text)))


def _is_literal(match: re.Match[str]) -> bool:
    return match[0].startswith("$$")
