"""A JSON Schema (draft 2020-12) of the configuration for editors, made from the classes it is read into.

One schema is for both layouts: a document with servers where a host app keeps them is judged as a
host app's file, any other as ours. Text that is not yet expanded passes wherever text may stand.
"""

from __future__ import annotations

import collections.abc
from typing import Any, get_args, get_origin, get_type_hints

import attrs

from mcpmux.config.document import UpstreamTable
from mcpmux.config.host_files import SERVER_PLACES, HostEntry
from mcpmux.config.listener import SHORT_FORMS
from mcpmux.config.model import Settings
from mcpmux.config.reading import MCPMUX, SCHEMA, UPSTREAMS
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
    """Matches documents that have something at the key path."""
    key, *rest = place
    inner = {"properties": {key: _require_at(tuple(rest))}} if rest else {}
    return {"type": "object", "required": [key], **inner}


def _refer(cls: type, definitions: _Schema) -> _Schema:
    """A reference to the definition of `cls`, which is added if it is not there yet."""
    if cls.__name__ not in definitions:
        definition = _class_schema(cls, definitions)
        definitions[cls.__name__] = _with_short_form(cls, definition)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _with_short_form(cls: type, definition: _Schema) -> _Schema:
    """A listener may also be text, of a pattern of its own."""
    if cls not in SHORT_FORMS:
        return definition
    pattern, _ = SHORT_FORMS[cls]
    return Text(pattern=pattern).schema() | definition | {"type": ["object", "string"]}


def _class_schema(cls: type, definitions: _Schema) -> _Schema:
    types = get_type_hints(cls, include_extras=True)
    fields = attrs.fields(cls)
    properties = {field.name: _field_schema(field, types[field.name], definitions) for field in fields}
    properties |= dict.fromkeys(sorted(getattr(cls, "ignored_keys", ())), True)
    schema: _Schema = {
        "description": (cls.__doc__ or "").strip(),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    return schema | ({"required": required} if required else {})


def _field_schema(field: attrs.Attribute[Any], type_: Any, definitions: _Schema) -> _Schema:
    schema = _type_schema(type_, definitions)
    if "description" in field.metadata:
        schema = {**schema, "description": field.metadata["description"]}
    if isinstance(field.default, str | int | float):
        schema = {**schema, "default": field.default}
    return schema


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
