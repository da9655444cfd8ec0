"""Replace what upstreams say about tools and prompts by overrides of views and settings. Pure.

Laws: a shown name leads back to the thing that it is shown for, and to no other; a renamed thing has lost its
own name, which may then be another thing's. A view's override adds to the one in the settings of the
upstream, and wins where both set the same member.

Laws of parameters: a hidden or fixed parameter is in no schema that a client sees, and in no arguments that
it sends, in any case of letters; arguments that the shown schema takes are sent with the fixed ones put in.
Schemas of other shapes than an object with `properties` stay unchanged, except for the parts named here. The
only module that knows the library for JSON Schema.

Applying a schema has a budget of steps. A schema that needs more is left to the server.

Source: "Tools" of 2026-07-28 (`inputSchema`, draft 2020-12 unless it says otherwise).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, TypeAlias

import attrs

from mcpmux.config import Upstream
from mcpmux.config.report import hint_at
from mcpmux.config.views import PROMPTS, TOOLS, Override, Parameter, View
from mcpmux.errors import McpmuxError
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, encode, members_of, raw
from mcpmux.protocol.raw_json import Fields

KIND_OF: Final = {
    m.TOOLS_LIST: TOOLS,
    m.TOOLS_CALL: TOOLS,
    m.PROMPTS_LIST: PROMPTS,
    m.PROMPTS_GET: PROMPTS,
    m.COMPLETE: PROMPTS,
}
"""The kind of thing that a list has, or that a request uses by its name."""


Names: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""What upstreams list: names, URIs and templates by kind (KINDS), by upstream."""


class Overrides:
    """All overrides that hold in one view, by (upstream, kind) and the upstream's own names."""

    def __init__(self, overrides: Iterable[tuple[str, Override]]) -> None:
        """Pairs of an upstream and an override; later ones add to earlier ones about the same thing."""
        self._by_own: dict[tuple[str, str], dict[str, Override]] = {}
        for upstream, override in overrides:
            by_name = self._by_own.setdefault((upstream, override.kind), {})
            former = by_name.get(override.name)
            if former is not None:
                members = {field.name: getattr(override, field.name) for field in attrs.fields(Override)}
                texts = {name: value for name, value in members.items() if value not in (None, {})}
                annotations = {**former.annotations, **override.annotations}
                parameters = {**former.parameters, **override.parameters}
                changes = {**texts, "annotations": annotations, "parameters": parameters}
                override = attrs.evolve(former, **changes)
            by_name[override.name] = override
        self._by_shown = {
            place: {value.rename: own for own, value in by_name.items() if value.rename is not None}
            for place, by_name in self._by_own.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Overrides) and self._by_own == other._by_own

    __hash__ = None  # type: ignore[assignment]  # not needed

    def __bool__(self) -> bool:
        return bool(self._by_own)

    def own_name(self, upstream: str, kind: str, shown: str) -> str | None:
        """Return the upstream's own name for a shown one; None for the original name of a renamed thing."""
        place = upstream, kind
        if place not in self._by_own:
            return shown
        own = self._by_shown[place].get(shown)
        if own is not None:
            return own
        override = self._by_own[place].get(shown)
        return shown if override is None or override.rename in (None, shown) else None

    def is_shown(self, upstream: str, kind: str, own: str) -> bool:
        """Return whether a thing can be shown: not if another thing has been given its name."""
        return self.own_name(upstream, kind, self.shown_name(upstream, kind, own)) == own

    def shown_name(self, upstream: str, kind: str, own: str) -> str:
        """Return the name under which a thing is shown."""
        override = self._by_own.get((upstream, kind), {}).get(own)
        return own if override is None else override.rename or own

    def parameters(self, upstream: str, own: str) -> Parameters:
        """Return the overridden parameters of an upstream's tool."""
        override = self._by_own.get((upstream, TOOLS), {}).get(own)
        return override.parameters if override is not None else {}

    def annotations(self, upstream: str, own: str) -> Mapping[str, bool]:
        """Return the overridden annotations of an upstream's tool."""
        override = self._by_own.get((upstream, TOOLS), {}).get(own)
        return override.annotations if override is not None else {}

    def has_parameters(self, upstream: str) -> bool:
        """Return whether parameters of any tool of an upstream are overridden."""
        return any(override.parameters for override in self._by_own.get((upstream, TOOLS), {}).values())

    def apply(
        self,
        upstream: str,
        kind: str,
        names: Iterable[str | None],
        items: Iterable[Fields],
        expose: Callable[[str], str] = str,
    ) -> list[bool]:
        """Change the items of a list, as clients see them, in place. Return whether each can be shown.

        `names`: the upstream's own; `expose`: adds the upstream's prefix to a name.
        """
        by_name, shown = self._by_own.get((upstream, kind), {}), []
        for own, item in zip(names, items, strict=True):
            shown.append(own is None or self.is_shown(upstream, kind, own))
            override = None if own is None else by_name.get(own)
            if override is None:
                continue
            if override.rename is not None:
                item["name"] = raw(expose(override.rename))
            if override.title is not None:
                item["title"] = raw(override.title)
            if override.description is not None:
                item["description"] = raw(override.description)
            if override.annotations:
                item["annotations"] = raw({**members_of(item.get("annotations")), **override.annotations})
            if override.parameters:
                schema = decode_any(item.get("inputSchema", b"null"))
                own_schema = schema if isinstance(schema, dict) else {}
                item["inputSchema"] = raw(override_schema(own_schema, override.parameters))
            if override.icons is not None:
                item["icons"] = raw([dict(icon) for icon in override.icons])
        return shown

    def find_misplaced(self, names: Names) -> Iterator[str]:
        """Yield a sentence for each override of a thing that is not listed, and for each taken new name."""
        for (upstream, kind), by_name in self._by_own.items():
            if upstream not in names:
                continue
            # In their order, as the closest is looked for among the first; `in` needs no walk over all.
            listed = dict.fromkeys(names[upstream].get(kind, ()))
            about = f"an override of {kind} of {upstream}"
            for own, override in by_name.items():
                if own not in listed:
                    yield f"{about}: none is called {own}{hint_at(own, listed)}"
                elif not self.is_shown(upstream, kind, own):
                    yield f"{about}: {own} is hidden, as another one gets the name {override.rename or own}"
                elif override.rename in listed and override.rename not in by_name:
                    yield f"{about}: {own} gets the name {override.rename}, which hides what is called so"

    def find_bad_parameters(self, schemas: Schemas) -> Iterator[str]:
        """Yield a sentence for each overridden parameter that contradicts its tool's input schema."""
        for (upstream, kind), by_name in self._by_own.items():
            for own, override in by_name.items():
                schema = schemas.get(upstream, {}).get(own) if kind == TOOLS else None
                for text in find_bad_values(schema, override.parameters) if schema is not None else ():
                    yield f"an override of {own} of {upstream}: {text}"


NO_OVERRIDES: Final = Overrides(())

Schemas: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Input schemas by upstream and tool."""


def overrides_of(
    views: Mapping[str, View], upstreams: Iterable[Upstream], namespace: Namespace | None = None
) -> dict[str, Overrides]:
    """Return the overrides of each view, "" for the one with everything; views without any are left out.

    With a `namespace`, an override can also name its tool or prompt as clients see it.
    """

    def own(upstream: str, override: Override) -> tuple[str, Override]:
        resolved = namespace.resolve_name(override.name) if namespace is not None else None
        is_prefixed = resolved is not None and resolved[0] == upstream and resolved[1] != override.name
        return upstream, attrs.evolve(override, name=resolved[1]) if resolved and is_prefixed else override

    common = [own(upstream.name, override) for upstream in upstreams for override in upstream.overrides]
    by_view = {"": common}
    for name, view in views.items():
        by_view[name] = [*common, *(own(override.upstream, override) for override in view.overrides)]
    return {name: Overrides(overrides) for name, overrides in by_view.items() if overrides}


# Parameters of tools

Parameters = Mapping[str, Parameter]

SHOWN_CHARACTERS: Final = 300  # of a sentence about wrong arguments, which quotes them
SIZE_LIMIT: Final = 65_536  # bytes of a schema, and of a value, that is looked into
STEPS_LIMIT: Final = 1_000  # keywords that are applied to one value: some 50 ms
NESTING_LIMIT: Final = 16  # of schemas in schemas from which hidden names are taken out
MEMBERS_A_STEP: Final = 16  # members of an object or array that a keyword looks at for the price of one step
MATCHED_CHARACTERS_A_STEP: Final = 64  # of a text that a pattern is held against
CRAWLED_BYTES_A_STEP: Final = 64  # of a schema in which an anchor or an id is looked for

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_SHARED: Final = ("$schema", "$defs", "definitions")
_SUBSCHEMAS: Final = ("if", "then", "else", "not")
_SUBSCHEMA_LISTS: Final = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas apply to the same object as the schema that they stand in."""


class BadArguments(McpmuxError):
    """The schema that clients see does not take these arguments; the text has the reason."""


class NotJudged(McpmuxError):
    """The schema needs too many steps or cannot be understood; the server has to judge the arguments."""


def override_schema(schema: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Return the input schema that clients see."""
    shown = dict(schema)
    properties, required = schema.get("properties"), schema.get("required")
    properties = dict(properties) if isinstance(properties, dict) else {}
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name, parameter in parameters.items():
        if not parameter.is_shown:
            properties.pop(name, None)
        elif name in properties:
            own = properties[name] if isinstance(properties[name], dict) else {}  # `true`: it takes anything
            texts = {"description": parameter.description, "default": parameter.default}
            properties[name] = {**own, **{key: text for key, text in texts.items() if text is not None}}
        is_optional = parameter.default is not None or parameter.required is False
        if name in needed and (is_optional or not parameter.is_shown):
            needed.remove(name)
        elif parameter.required and name in properties and name not in needed:
            needed.append(name)
    if "properties" in schema:
        shown["properties"] = properties
    if "required" in schema or needed:
        shown["required"] = needed
    # Draft 4 forbids an empty `required`.
    if not needed:
        shown.pop("required", None)
    hidden = {name for name, parameter in parameters.items() if not parameter.is_shown}
    return _with_parts_hidden(shown, hidden, NESTING_LIMIT) if hidden else shown


def _with_parts_hidden(schema: dict[str, Any], hidden: set[str], depth: int) -> dict[str, Any]:
    """Return the schema with the hidden names removed from its subschemas about the same object."""
    changed: dict[str, Any] = {}
    for keyword in _SUBSCHEMAS:
        if keyword in schema:
            changed[keyword] = _hide(schema[keyword], hidden, depth)
    for keyword in _SUBSCHEMA_LISTS:
        if isinstance(schema.get(keyword), list):
            changed[keyword] = [_hide(part, hidden, depth) for part in schema[keyword]]
    return {**schema, **changed}


def _hide(schema: object, hidden: set[str], depth: int) -> object:
    if not isinstance(schema, dict) or depth == 0:
        return schema
    shown = dict(schema)
    if isinstance(shown.get("properties"), dict):
        shown["properties"] = {
            name: value for name, value in shown["properties"].items() if name not in hidden
        }
    if isinstance(shown.get("required"), list):
        shown["required"] = [name for name in shown["required"] if name not in hidden]
    return _with_parts_hidden(shown, hidden, depth - 1)


def check_arguments(arguments: Fields, schema: Mapping[str, Any], parameters: Parameters) -> None:
    """Compare a client's arguments with the schema that it sees. `schema`: the server's own.

    Raises BadArguments; NotJudged when the server has to judge.
    """
    hidden = {name.casefold(): name for name, parameter in parameters.items() if not parameter.is_shown}
    properties = schema.get("properties")
    own = properties if isinstance(properties, dict) else {}
    for name in arguments:
        if name in parameters and not parameters[name].is_shown:
            raise BadArguments(f"there is no argument {name}")
        twin = hidden.get(name.casefold())
        # Many servers do not look at the case of a name. One that has both names does.
        if twin is not None and not (name in own and twin in own):
            raise BadArguments(f"there is no argument {name}, in any case of its letters")
    try:
        values = {name: decode_any(value) for name, value in arguments.items()}
    except ValueError:
        raise NotJudged("an argument is too deep, or a number too large") from None
    mistake = find_mistake(values, override_schema(schema, parameters))
    if mistake is not None:
        raise BadArguments(mistake)


def fill_in(arguments: Fields, parameters: Parameters) -> Fields:
    """Return what the server gets for a client's arguments, each as the client wrote it."""
    filled = dict(arguments)
    for name, parameter in parameters.items():
        if parameter.value is not None:
            filled[name] = raw(parameter.value)
        elif parameter.default is not None:
            filled.setdefault(name, raw(parameter.default))
    return filled


def find_mistake(value: object, schema: Mapping[str, Any]) -> str | None:
    """Return a sentence about what is wrong with a value, and where; None when the schema takes it.

    Raises NotJudged.
    """
    # Not at the top: few need it, and it is large.
    from jsonschema.exceptions import UnknownType, best_match
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        encoded = encode(schema)
        if max(len(encoded), len(encode(value))) > SIZE_LIMIT:
            raise NotJudged(f"its schema or a value has more than {SIZE_LIMIT:,} bytes")
        # Names are matched by the library's own engine, and a schema of another draft has no budget.
        if b'"patternProperties"' in encoded or encoded.count(b'"$schema"') > 1:
            raise NotJudged("its schema has `patternProperties`, or parts of another draft")
        # The library calls keywords without a context of ours, so the budget is in a context variable.
        _budget.set([STEPS_LIMIT, len(encoded)])
        judge = _bounded(validator_for(schema, default=Draft202012Validator))
        # `$schema` would make the library choose its own validator class, without the budget.
        own = {keyword: member for keyword, member in schema.items() if keyword != "$schema"}
        # With an empty registry no reference is fetched: one to another document cannot be understood.
        error = best_match(judge(own, registry=Registry()).iter_errors(value))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as mistake:
        raise NotJudged("its schema is malformed") from mistake
    except (UnknownType, Unresolvable, RecursionError) as mistake:
        raise NotJudged("its schema cannot be understood") from mistake
    if error is None:
        return None
    where = ".".join(map(str, error.absolute_path))
    text = error.message if len(error.message) <= SHOWN_CHARACTERS else f"{error.message[:SHOWN_CHARACTERS]}…"
    return f"{where}: {text}" if where else text


# A schema is untrusted text: it may refer to itself, double at each reference, or have a pattern that takes
# exponential time.
_budget: ContextVar[list[int]] = ContextVar("_budget")
"""[steps left, bytes of the whole schema] for the value that is being judged."""

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


@cache  # there is one for each draft
def _bounded(kind: Any) -> Any:
    from jsonschema.validators import extend

    return extend(kind, {name: _counted(name, keyword) for name, keyword in kind.VALIDATORS.items()})


def _counted(name: str, keyword: Keyword) -> Keyword:
    """Return a keyword that takes its steps from the budget before it applies."""
    apply = _match if name == "pattern" else keyword

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        budget = _budget.get()
        budget[0] -= _cost(name, value, instance, budget[1])
        if budget[0] < 0:
            raise NotJudged(f"its schema takes more than {STEPS_LIMIT:,} steps")
        yield from apply(validator, value, instance, schema) or ()

    return counted


def _cost(name: str, value: Any, instance: Any, schema_bytes: int) -> int:
    members = sum(len(container) for container in (value, instance) if isinstance(container, list | dict))
    cost = 1 + members // MEMBERS_A_STEP
    if name == "uniqueItems":  # each is compared with each
        cost += members * members // MEMBERS_A_STEP
    elif name == "pattern":
        cost += (len(instance) if isinstance(instance, str) else 0) // MATCHED_CHARACTERS_A_STEP
    # "#/" is a path; an anchor or an id is searched for in the whole schema.
    elif name in _REFERENCES and not str(value).startswith("#/"):
        cost += schema_bytes // CRAWLED_BYTES_A_STEP
    return cost


def _match(_validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """Apply `pattern` by RE2."""
    # In time that grows with the text alone, however bad the pattern is.
    import re2
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str):
        try:
            fits = re2.search(pattern, instance)
        except re2.error as mistake:
            raise NotJudged(f"its schema has a pattern that mcpmux does not understand: {mistake}") from None
        if not fits:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def find_bad_values(schema: Mapping[str, Any], parameters: Parameters) -> list[str]:
    """Return sentences about parameters that the server lacks, and about values that it does not take."""
    properties = schema.get("properties")
    own_properties = properties if isinstance(properties, dict) else {}
    mistakes = []
    for name, parameter in parameters.items():
        if name not in own_properties:
            mistakes.append(f"there is no parameter {name}")
            continue
        for key in ("value", "default"):
            value, own = getattr(parameter, key), own_properties[name]
            if value is not None and isinstance(own, dict):
                try:
                    # With the parts of the schema that references inside of it may lead to.
                    shared = {key: schema[key] for key in _SHARED if key in schema}
                    mistake = find_mistake(value, {**shared, **own})
                except NotJudged as reason:
                    mistake = f"not checked, the server will judge: {reason}"
                if mistake is not None:
                    mistakes.append(f"`{key}` of {name}: {mistake}")
        needed = schema.get("required")
        if parameter.hidden and parameter.default is None and isinstance(needed, list) and name in needed:
            mistakes.append(f"{name} is hidden, but the server requires it; give it a `value`")
    return mistakes
