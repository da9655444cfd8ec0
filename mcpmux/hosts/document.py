"""Change one entry of a file in any of the formats, and check the result by reading it again.

A text is only returned when it means exactly the old one with the change. So a mistake of an editor of text
is an error, and never a broken file.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from mcpmux.config.reading import TOO_DEEP, SourceDocument, is_bounded
from mcpmux.errors import ConfigError, Problem
from mcpmux.hosts import jsonc_text, toml_text
from mcpmux.protocol.envelope import value_at

Path = tuple[str, ...]

_MARK = "\ufeff"  # the byte order mark, which some editors on Windows write


def _editor(format_: str) -> ModuleType:
    if format_ == "yaml":
        from mcpmux.hosts import yaml_text  # not at the top: only Goose has YAML

        return yaml_text
    return {"json": jsonc_text, "toml": toml_text}[format_]


def parse(text: str, format_: str) -> Mapping[str, Any]:
    """Return the document in a text of format "json", "toml" or "yaml". Raises ConfigError without quotes."""
    try:
        document = _editor(format_).parse(text.removeprefix(_MARK))
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if hasattr(error, "lineno") else str(error).partition("(at ")[2]
        where = str(error) if format_ == "yaml" else f"at {place.rstrip(')')}" if place else "somewhere"
        raise ConfigError([f"not valid {format_.upper()}: {where}"]) from None
    if not isinstance(document, Mapping):
        raise ConfigError([f"not valid {format_.upper()}: expected a table"])
    if not is_bounded(document):
        raise ConfigError([TOO_DEEP])
    return document


def with_lines(error: ConfigError, source: SourceDocument) -> ConfigError:
    """Return the mistakes in a document in the order of their lines, as far as these are known."""
    starts = _editor("json" if source.is_json else "toml").find_starts(source.text)
    ends = [match.start() for match in re.finditer("\n", source.text)]
    problems = list[Problem]()
    for problem in error.found:
        path = problem.path
        while path and path not in starts:  # a key that is missing, or one inside of a value
            path = path[:-1]
        problems.append(problem._replace(line=bisect_left(ends, starts[path]) + 1) if path else problem)
    problems.sort(key=lambda problem: problem.line)
    return ConfigError(problems, error.origin)


def put(text: str, format_: str, path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text with `entry` at `path`, unchanged otherwise. Raises ConfigError."""
    result = copy.deepcopy(dict(parse(text, format_)))
    node: Any = result
    for key in path[:-1]:
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if not isinstance(node, dict):
            raise ConfigError([f"`{key}` is no table"])
    node[path[-1]] = dict(entry)
    return _edit(text, format_, result, lambda editor, bare: editor.put(bare, path, entry))


def remove(text: str, format_: str, path: Path) -> str:
    """Return the text without the value at `path`, unchanged otherwise. Raises ConfigError."""
    result = copy.deepcopy(dict(parse(text, format_)))
    parent = value_at(result, path[:-1])
    if not isinstance(parent, dict) or path[-1] not in parent:
        return text
    del parent[path[-1]]
    return _edit(text, format_, result, lambda editor, bare: editor.remove(bare, path))


def _edit(text: str, format_: str, wanted: Mapping[str, Any], change: Any) -> str:
    bare = text.removeprefix(_MARK)
    mark = text[: len(text) - len(bare)]
    try:
        changed: str = change(_editor(format_), bare)
        if _filled(_editor(format_).parse(changed)) == _filled(wanted):
            return mark + changed
    except (ValueError, RecursionError):
        pass
    raise ConfigError(["it is written in a way that mcpmux cannot change; please change it by hand"])


def _filled(value: Any) -> Any:
    """Return the value without null members and empty tables, which some formats cannot express."""
    if isinstance(value, Mapping):
        inside = {key: _filled(member) for key, member in value.items()}
        return {key: value for key, value in inside.items() if value is not None and value != {}}
    return [_filled(item) for item in value] if isinstance(value, list) else value
