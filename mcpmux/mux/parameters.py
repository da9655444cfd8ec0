"""Overridden parameters of a tool: what its input schema becomes, and what the server gets for a call. Pure.

Laws: what is hidden or fixed is in no schema that a client sees, and in no arguments that it sends; arguments
that the shown schema takes are sent with what is fixed put in. Schemas of other shapes than an object with
`properties` stay as they are, but for what is put in. The only module that knows the library for JSON Schema.

Source: "Tools" of 2026-07-28 (`inputSchema`, draft 2020-12 unless it says otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mcpmux.config.views import Parameter
from mcpmux.errors import McpmuxError

Parameters = Mapping[str, Parameter]

SHOWN_CHARACTERS = 300  # of what is wrong with arguments


class BadArguments(McpmuxError):
    """Arguments that the tool as it is shown does not take; the text says why."""


def override_schema(schema: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """The input schema that clients see."""
    shown = dict(schema)
    properties, required = schema.get("properties"), schema.get("required")
    properties = dict(properties) if isinstance(properties, dict) else {}
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name, parameter in parameters.items():
        if not parameter.is_shown:
            properties.pop(name, None)
        elif name in properties:
            properties[name] = _override(properties[name], parameter)
        is_optional = parameter.default is not None or parameter.required is False
        if name in needed and (is_optional or not parameter.is_shown):
            needed.remove(name)
        elif parameter.required and name in properties and name not in needed:
            needed.append(name)
    if "properties" in schema:
        shown["properties"] = properties
    if "required" in schema or needed:
        shown["required"] = needed
    if not needed:
        shown.pop("required", None)
    return shown


def _override(schema: object, parameter: Parameter) -> Any:
    if not isinstance(schema, dict):  # `true`: anything
        schema = {}
    said = {"description": parameter.description, "default": parameter.default}
    return {**schema, **{key: value for key, value in said.items() if value is not None}}


def fill_in(
    arguments: Mapping[str, Any], schema: Mapping[str, Any], parameters: Parameters
) -> dict[str, Any]:
    """What the server gets for a client's arguments. `schema`: the server's own. Raises BadArguments."""
    for name in arguments:
        if name in parameters and not parameters[name].is_shown:
            raise BadArguments(f"there is no argument {name}")
    mistake = find_mistake(arguments, override_schema(schema, parameters))
    if mistake is not None:
        raise BadArguments(mistake)
    filled = dict(arguments)
    for name, parameter in parameters.items():
        if parameter.value is not None:
            filled[name] = parameter.value
        elif parameter.default is not None:
            filled.setdefault(name, parameter.default)
    return filled


def find_mistake(value: object, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with a value, and where; None when the schema takes it, or cannot be understood.

    Nothing is fetched: a reference to somewhere else cannot be understood.
    """
    # Not at the top: few need it, and it is large.
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        error = best_match(kind(schema, registry=Registry()).iter_errors(value))
    except (SchemaError, Unresolvable, RecursionError, re.error):
        return None  # the server will judge
    if error is None:
        return None
    where = ".".join(map(str, error.absolute_path))
    text = error.message if len(error.message) <= SHOWN_CHARACTERS else f"{error.message[:SHOWN_CHARACTERS]}…"
    return f"{where}: {text}" if where else text


def find_bad_values(schema: Mapping[str, Any], parameters: Parameters) -> list[str]:
    """Sentences about parameters that the server does not have, and about values that it does not take."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    told = []
    for name, parameter in parameters.items():
        if name not in known:
            told.append(f"there is no parameter {name}")
            continue
        for key in ("value", "default"):
            value, own = getattr(parameter, key), known[name]
            if value is not None and isinstance(own, dict):
                mistake = find_mistake(value, {**_definitions(schema), **own})
                if mistake is not None:
                    told.append(f"`{key}` of {name}: {mistake}")
        needed = schema.get("required")
        if parameter.hidden and parameter.default is None and isinstance(needed, list) and name in needed:
            told.append(f"{name} is hidden, but the server requires it; give it a `value`")
    return told


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What references inside of a schema may lead to."""
    return {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema}
