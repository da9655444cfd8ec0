"""The arguments of a tool or a prompt on a command line, read by what the server takes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from mcpmux.errors import ConfigError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_any

NEAR = 0.6  # similarity from which a name is suggested
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class Arguments(NamedTuple):
    """Arguments as given. `texts`: after `=`, to be read by a schema; `values`: any JSON, after `:=`.

    `is_whole`: given as one JSON object, which is sent unread.
    """

    texts: Mapping[str, str]
    values: Mapping[str, Any]
    is_whole: bool = False

    def read_by(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for a tool with this input schema.

        Raises ConfigError with every argument that is missing, or that the tool does not have or cannot take.
        """
        properties = schema.get("properties")
        known: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        problems, values = [], dict(self.values)
        for name, text in self.texts.items():
            types = types_of(known.get(name))
            try:
                values[name] = read_text(text, types)
            except ValueError:
                problems.append(f"argument `{name}`: expected {' or '.join(types)}, got `{text}`")
        if not self.is_whole:
            given = [*self.texts, *self.values]
            problems += find_unknown(given, known, is_open=_takes_more(schema, known))
            required = schema.get("required")
            problems += find_missing(given, required if isinstance(required, list) else ())
        if problems:
            raise ConfigError([printable(problem) for problem in problems])
        return values

    @property
    def unread(self) -> dict[str, Any]:
        """The values where no schema is known: a text stays a text."""
        return {**self.texts, **self.values}


def parse_arguments(pairs: Sequence[str], whole: str | None) -> Arguments:
    """Return the arguments in `KEY=TEXT` and `KEY:=JSON`, or in one JSON object.

    Raises ConfigError with all mistakes.
    """
    if whole is not None:
        if pairs:
            raise ConfigError(["use either --args or key=value pairs, not both"])
        try:
            value = decode_any(whole.encode(errors="replace"))
        except ValueError as error:
            raise ConfigError([f"--args: expected a JSON object: {error}"]) from None
        if not isinstance(value, dict):
            raise ConfigError(["--args: expected a JSON object"])
        return Arguments({}, value, is_whole=True)
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        is_json, key = key.endswith(":"), key.removesuffix(":")
        problem = "" if equals and key else "expected key=text or key:=JSON"
        if key in texts or key in values:
            problem = problem or "it is given twice"
        if not is_json:
            texts[key] = text
        else:
            try:
                values[key] = decode_any(text.encode(errors="replace"))
            except ValueError:
                problem = problem or f"expected JSON after `:=`; for text write `{key}={text}`"
        if problem:
            problems.append(f"argument `{pair}`: {problem}")
    if problems:
        raise ConfigError(problems)
    return Arguments(texts, values)


def types_of(schema: object) -> list[str]:
    """Return the types that a property may have, by `type`, or by `anyOf` or `oneOf`; [] for any."""
    if not isinstance(schema, dict):
        return []
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [name for name in kind if isinstance(name, str)]
    options = schema.get("anyOf") or schema.get("oneOf")
    types = [types_of(option) for option in options] if isinstance(options, list) else []
    return [name for option in types for name in option] if all(types) else []


def read_text(text: str, types: Sequence[str]) -> Any:
    """Return a text as a value of one of these types; unchanged where a string may stand.

    Raises ValueError when it fits none.
    """
    if not types or "string" in types:
        return text
    value = decode_any(text.encode(errors="replace"))
    kinds = {"null"} if value is None else {_NAMES[type(value)]}
    if kinds <= {"integer", "number"} and value == int(value):  # 2.0 is an integer, and 2 a number
        kinds = {"integer", "number"}
    if kinds.isdisjoint(types):
        raise ValueError(text)
    return value


def find_unknown(given: Collection[str], known: Collection[str], *, is_open: bool) -> list[str]:
    """Return a sentence for each name that is not known. `is_open`: any name may be given."""
    problems = []
    for name in () if is_open else given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known) or 'none'}"
        problems.append(f"argument `{name}`: unknown; {hint}")
    return problems


def find_missing(given: Collection[str], required: Collection[Any]) -> list[str]:
    """Return a sentence for each required name that was not given."""
    return [f"argument `{name}`: missing" for name in required if name not in given]


def _takes_more(schema: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return whether a tool may take arguments that its schema does not name."""
    more = schema.get("additionalProperties", not known)
    return more is not False or "patternProperties" in schema
