"""The parameters of a tool or a prompt, and its arguments on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mcpmux.config.report import hint_at
from mcpmux.errors import ConfigError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_any, value_of
from mcpmux.protocol.raw_json import Fields

_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class Parameters(NamedTuple):
    """The parameters of a tool, a prompt or a form. `fields`: the schema of each, by name.

    `needed`: the required ones. `is_open`: it may take others.
    """

    fields: Mapping[str, Any]
    needed: Sequence[Any]
    is_open: bool

    @classmethod
    def of_schema(cls, schema: object) -> Parameters:
        """Return what a JSON Schema of an object allows."""
        members = schema if isinstance(schema, dict) else {}
        properties, required = members.get("properties"), members.get("required")
        fields = properties if isinstance(properties, dict) else {}
        more = members.get("additionalProperties", not fields)
        is_open = more is not False or "patternProperties" in members
        return cls(fields, required if isinstance(required, list) else [], is_open)

    @classmethod
    def of(cls, item: Fields) -> Parameters:
        """Return what a listed tool or prompt takes."""
        if "inputSchema" in item:
            return cls.of_schema(value_of(item["inputSchema"]))
        entries = [entry for entry in decoded(item, "arguments", list) if isinstance(entry, dict)]
        required = [str(entry.get("name")) for entry in entries if entry.get("required") is True]
        return cls({str(entry.get("name")): {"type": "string"} for entry in entries}, required, False)


def decoded(fields: Fields, key: str, kind: type) -> Any:
    """Return a member as a Python value, an empty one of this type if it is of another."""
    value = value_of(fields.get(key))
    return value if isinstance(value, kind) else kind()


class Arguments(NamedTuple):
    """Arguments as given. `texts`: after `=`, to be read by a schema; `values`: any JSON, after `:=`.

    `is_whole`: given as one JSON object, which is sent unread.
    """

    texts: Mapping[str, str]
    values: Mapping[str, Any]
    is_whole: bool = False

    def read_by(self, parameters: Parameters) -> dict[str, Any]:
        """Return the values for what takes these parameters.

        Raises ConfigError with every argument that is missing, unknown or of another type.
        """
        known = parameters.fields
        problems, values = [], dict(self.values)
        for name, text in self.texts.items():
            types = types_of(known.get(name))
            try:
                values[name] = read_text(text, types)
            except ValueError:
                problems.append(f"argument `{name}`: expected {' or '.join(types)}, got `{text}`")
        if not self.is_whole:
            given = [*self.texts, *self.values]
            for name in () if parameters.is_open else given:
                if name not in known:
                    hint = hint_at(name, known) or f"; there are {', '.join(known) or 'none'}"
                    problems.append(f"argument `{name}`: unknown{hint}")
            problems += [f"argument `{name}`: missing" for name in parameters.needed if name not in given]
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
