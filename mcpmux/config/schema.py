"""The JSON Schema (draft 2020-12) of the configuration, made from the classes of the settings, for editors.

One schema is for both layouts. A document with servers where a host app keeps them is checked as a file of
a host app, any other as ours. Text with `${…}` is accepted wherever text is.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, get_args, get_origin

import attrs

from mcpmux.config.layout import (
    MCPMUX,
    SCHEMA,
    SERVER_PLACES,
    UPSTREAMS,
    UpstreamSettings,
    UpstreamTable,
)
from mcpmux.config.listener import ADDRESS_PATTERN, LISTENER_KEYS, PATH_PATTERN, UnixListener
from mcpmux.config.model import Settings
from mcpmux.config.reading import find_scalar
from mcpmux.config.scalars import NAME_PATTERN, Text

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_Schema = dict[str, Any]


def config_schema() -> _Schema:
    definitions: _Schema = {}
    settings = _class_schema(Settings, definitions)
    servers: _Schema = {"description": "The servers, by name.", "type": "object", "minProperties": 1}
    upstreams = servers | {
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": _refer(UpstreamTable, definitions),
    }
    own = settings | {
        "description": "The layout of mcpmux.",
        "properties": {SCHEMA: {"type": "string"}, UPSTREAMS: upstreams, **settings["properties"]},
        "required": [UPSTREAMS],
    }
    entry = {"type": "object", "properties": {MCPMUX: _refer(UpstreamSettings, definitions)}}
    host_servers = servers | {"additionalProperties": entry}
    host_properties = {first: _at(inner, host_servers) for first, *inner in SERVER_PLACES}
    host = {
        "description": "The layout of a host app.",
        "type": "object",
        "properties": {**host_properties, MCPMUX: _refer(Settings, definitions)},
    }
    return {
        "$schema": DIALECT,
        "title": "mcpmux configuration",
        "if": {"anyOf": [_at(place, True, required=True) for place in SERVER_PLACES]},
        "then": host,
        "else": own,
        "$defs": definitions,
    }


def _at(place: Sequence[str], schema: Any, *, required: bool = False) -> Any:
    """Return the schema of a document that has `schema` at the key path `place`."""
    for key in reversed(place):
        schema = {"type": "object", "properties": {key: schema}} | ({"required": [key]} if required else {})
    return schema


def _refer(cls: type, definitions: _Schema) -> _Schema:
    if cls.__name__ not in definitions:
        definition = _class_schema(cls, definitions)
        if cls in LISTENER_KEYS:  # a listener may also be text with its own pattern
            pattern = PATH_PATTERN if cls is UnixListener else ADDRESS_PATTERN
            definition = Text(pattern=pattern).schema() | definition | {"type": ["object", "string"]}
        definitions[cls.__name__] = definition
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _class_schema(cls: type, definitions: _Schema) -> _Schema:
    fields = attrs.fields(attrs.resolve_types(cls))
    docstrings = _field_docstrings(cls)
    properties = {
        field.name: _type_schema(field.type, definitions)
        | ({"description": docstrings[field.name]} if field.name in docstrings else {})
        | ({"default": field.default} if isinstance(field.default, str | int | float) else {})
        for field in fields
    }
    schema: _Schema = {
        "description": " ".join((cls.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    return schema | ({"required": required} if required else {})


def _field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring below each field, out of the source: no other command needs memory for them."""
    docstrings: dict[str, str] = {}
    for base in filter(attrs.has, reversed(cls.__mro__)):
        (body,) = (node.body for node in _classes_in(base.__module__) if node.name == base.__name__)
        for field, below in pairwise(body):
            match field, below:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                    docstrings[name] = " ".join(text.split())
    return docstrings


@cache
def _classes_in(module: str) -> list[ast.ClassDef]:
    tree = ast.parse(inspect.getsource(import_module(module)))
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _type_schema(type_: Any, definitions: _Schema) -> _Schema:
    type_, scalar = find_scalar(type_)
    if scalar is not None:
        return scalar.schema()
    if get_origin(type_) is tuple:
        return {"type": "array", "items": _type_schema(get_args(type_)[0], definitions)}
    if get_origin(type_) is Mapping:
        keys, values = get_args(type_)
        return {
            "type": "object",
            "propertyNames": _type_schema(keys, definitions),
            "additionalProperties": _type_schema(values, definitions),
        }
    return _refer(type_, definitions)
