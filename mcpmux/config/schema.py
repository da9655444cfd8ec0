"""The JSON Schema (draft 2020-12) of the configuration, made from the classes of the settings, for editors.

One schema is for both layouts. A document with servers where a host app keeps them is checked as a file of
a host app, any other as ours. Text with `${…}` is accepted wherever text is.
"""

from __future__ import annotations

import ast
import collections.abc
import inspect
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints

import attrs

from mcpmux.config.layout import MCPMUX, SCHEMA, SERVER_PLACES, UPSTREAMS, HostEntry, UpstreamTable
from mcpmux.config.listener import SHORT_FORMS
from mcpmux.config.model import Settings
from mcpmux.config.scalars import NAME_PATTERN, Text
from mcpmux.config.structuring import find_optional, find_scalar

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_Schema = dict[str, Any]


def config_schema() -> _Schema:
    """The schema as a JSON object."""
    definitions: _Schema = {}
    own = _own_layout(definitions)
    host = _host_layout(definitions)
    is_host_file = {"anyOf": [_require_at(place) for place in SERVER_PLACES]}
    return {
        "$schema": DIALECT,
        "title": "mcpmux configuration",
        "if": is_host_file,
        "then": host,
        "else": own,
        "$defs": definitions,
    }


def _own_layout(definitions: _Schema) -> _Schema:
    settings = _class_schema(Settings, definitions)
    upstreams = {
        "description": "The servers, by name.",
        "type": "object",
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": _refer(UpstreamTable, definitions),
        "minProperties": 1,
    }
    properties = {SCHEMA: {"type": "string"}, UPSTREAMS: upstreams, **settings["properties"]}
    return {
        **settings,
        "description": "The layout of mcpmux.",
        "properties": properties,
        "required": [UPSTREAMS],
    }


def _host_layout(definitions: _Schema) -> _Schema:
    servers = {
        "description": "The servers, by name.",
        "type": "object",
        "additionalProperties": _refer(HostEntry, definitions),
        "minProperties": 1,
    }
    layout: _Schema = {"description": "The layout of a host app.", "type": "object", "properties": {}}
    for place in SERVER_PLACES:
        inner = servers
        for key in reversed(place[1:]):
            inner = {"type": "object", "properties": {key: inner}}
        layout["properties"][place[0]] = inner
    layout["properties"][MCPMUX] = _refer(Settings, definitions)
    return layout


def _require_at(place: tuple[str, ...]) -> _Schema:
    """A schema for documents that have something at the key path."""
    key, *rest = place
    inner = {"properties": {key: _require_at(tuple(rest))}} if rest else {}
    return {"type": "object", "required": [key], **inner}


def _refer(cls: type, definitions: _Schema) -> _Schema:
    """A reference to the definition of `cls`, which is added if it is missing."""
    if cls.__name__ not in definitions:
        definition = _class_schema(cls, definitions)
        definitions[cls.__name__] = _with_short_form(cls, definition)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _with_short_form(cls: type, definition: _Schema) -> _Schema:
    """The definition of a class. A listener may also be text with its own pattern."""
    if cls not in SHORT_FORMS:
        return definition
    pattern, _ = SHORT_FORMS[cls]
    return Text(pattern=pattern).schema() | definition | {"type": ["object", "string"]}


def _class_schema(cls: type, definitions: _Schema) -> _Schema:
    types = get_type_hints(cls, include_extras=True)
    fields = attrs.fields(cls)
    docstrings = _field_docstrings(cls)
    properties = {
        field.name: _type_schema(types[field.name], definitions)
        | ({"description": docstrings[field.name]} if field.name in docstrings else {})
        | ({"default": field.default} if isinstance(field.default, str | int | float) else {})
        for field in fields
    }
    properties |= dict.fromkeys(sorted(getattr(cls, "ignored_keys", ())), True)
    schema: _Schema = {
        "description": " ".join((cls.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    return schema | ({"required": required} if required else {})


def _field_docstrings(cls: type) -> dict[str, str]:
    """The docstring below each field of `cls`, on one line. See "attribute docstrings" in PEP 257.

    They are read from the source, so no other command needs memory for them.
    """
    return {
        name: text
        for base in reversed(cls.__mro__)
        if attrs.has(base)
        for name, text in _docstrings_in(base.__module__).get(base.__name__, {}).items()
    }


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> docstring, for the classes of a module."""
    tree = ast.parse(inspect.getsource(import_module(module)))
    return {
        node.name: {
            field.target.id: " ".join(below.value.value.split())
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _type_schema(type_: Any, definitions: _Schema) -> _Schema:
    """The schema of a field's type: a scalar, `X | None`, a tuple, a mapping, or a class of ours."""
    scalar = find_scalar(type_)
    if scalar is not None:
        return scalar.schema()
    if (inner := find_optional(type_)) is not None:
        return _type_schema(inner, definitions)
    if get_origin(type_) is tuple:
        return {"type": "array", "items": _type_schema(get_args(type_)[0], definitions)}
    if get_origin(type_) is collections.abc.Mapping:
        keys, values = get_args(type_)
        return {
            "type": "object",
            "propertyNames": _type_schema(keys, definitions),
            "additionalProperties": _type_schema(values, definitions),
        }
    return _refer(type_, definitions)
