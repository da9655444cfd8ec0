"""A tool's arguments on the command line: `key=text`, `key:=JSON`, or one JSON object for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpmux.errors import ConfigError
from mcpmux.protocol.envelope import decode_any

Json = dict[str, Any]


def parse_arguments(pairs: Sequence[str], whole: str | None) -> Json:
    """The arguments as an object. Raises ConfigError with every mistake at once."""
    if whole is None:
        return _parse_pairs(pairs)
    if pairs:
        raise ConfigError(["--args: expected either --args or key=value pairs, not both"])
    return _parse_object(whole)


def _parse_object(text: str) -> Json:
    try:
        value = decode_any(text.encode(errors="replace"))
    except ValueError as error:
        problem = f"--args: expected a JSON object: {error}"
    else:
        if isinstance(value, dict):
            return value
        problem = "--args: expected a JSON object"
    raise ConfigError([problem])


def _parse_pairs(pairs: Sequence[str]) -> Json:
    arguments: Json = {}
    problems: list[str] = []
    for pair in pairs:
        try:
            key, value = _parse_pair(pair)
            if key in arguments:
                raise ValueError("it is given twice")
            arguments[key] = value
        except ValueError as mistake:
            problems.append(f"argument `{pair}`: {mistake}")
    if problems:
        raise ConfigError(problems)
    return arguments


def _parse_pair(pair: str) -> tuple[str, Any]:
    """The key and its value: text after `=`, any JSON value after `:=`. Raises ValueError."""
    key, equals, text = pair.partition("=")
    is_json = key.endswith(":")
    key = key.removesuffix(":")
    if not equals or not key:
        raise ValueError("expected key=text or key:=JSON")
    if not is_json:
        return key, text
    try:
        return key, decode_any(text.encode(errors="replace"))
    except ValueError:
        raise ValueError(f"expected JSON after `:=`; for text write `{key}={text}`") from None
