"""Examples of what MCP's official schemas define, each with one place in it that is as large as one likes.

for place in places(schema, "CallToolRequest"):
    message = example(schema, "CallToolRequest", place, size=1000)

An example has what its definition requires, and what lies on the way to the place. Places are the texts, the
arrays, the objects with any members, and the names of those members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from tests.official_schema import OfficialSchema

Json = dict[str, Any]
Schema = dict[str, Any]
Step = str | int  # the name of a member, or the number of an alternative
Kind = Literal["text", "items", "members", "name"]

ITEM: Final = "[]"
MEMBER: Final = "{}"
NESTING: Final = 1  # how often a definition is entered on one way


class Place(NamedTuple):
    """`steps`: the way to it. `kind`: what grows there. `within`: the definitions on the way."""

    steps: tuple[Step, ...]
    kind: Kind
    within: tuple[str, ...]

    @property
    def sort(self) -> tuple[object, ...]:
        """Return a key that is equal for the same place of the same definition elsewhere."""
        here = [step for step in self.steps if isinstance(step, str)]
        return self.within[-2:], tuple(here[-1:]), self.kind

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.steps))} ({self.kind})"


def places(schema: OfficialSchema, definition: str) -> Iterator[Place]:
    """Yield every place of a definition."""
    yield from _places(schema, {"$ref": f"#/{definition}"}, (), ())


def example(schema: OfficialSchema, definition: str, place: Place | None, size: int, **details: Any) -> Json:
    """Return an example in which the place has `size` characters, items or members, if one is given.

    `details`: see Builder.
    """
    return Builder(schema, place, size, **details).build({"$ref": f"#/{definition}"}, ())


def _places(
    schema: OfficialSchema, part: Schema, steps: tuple[Step, ...], within: tuple[str, ...]
) -> Iterator[Place]:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if within.count(name) < NESTING:
            yield from _places(schema, schema.definitions[name], steps, (*within, name))
    elif "anyOf" in part:
        for number, option in enumerate(part["anyOf"]):
            yield from _places(schema, option, (*steps, number), within)
    elif "allOf" in part:
        for option in part["allOf"]:
            yield from _places(schema, option, steps, within)
        yield from _members(schema, part, steps, within)
    elif "const" in part or "enum" in part:
        return
    elif _type(part) == "array":
        yield Place(steps, "items", within)
        yield from _places(schema, part["items"], (*steps, ITEM), within)
    elif _type(part) == "object":
        yield from _members(schema, part, steps, within)
    elif _type(part) == "string":
        yield Place(steps, "text", within)


def _members(
    schema: OfficialSchema, part: Schema, steps: tuple[Step, ...], within: tuple[str, ...]
) -> Iterator[Place]:
    for name, member in part.get("properties", {}).items():
        yield from _places(schema, member, (*steps, name), within)
    if isinstance(part.get("additionalProperties"), dict):
        yield Place(steps, "members", within)
        yield Place(steps, "name", within)
        yield from _places(schema, part["additionalProperties"], (*steps, MEMBER), within)


def _type(part: Schema) -> str:
    """Return the type of a value; any value is a text."""
    kind = part.get("type", "object" if "properties" in part else "string")
    return kind if isinstance(kind, str) else kind[0]


class Builder:
    """Builds an example. `known`: what members are, or begin with where they grow, by name.

    `extra`: members that are there although they are not required. `filler`: repeated where a text grows;
    `salt`: tells one example from another.
    """

    def __init__(
        self,
        schema: OfficialSchema,
        place: Place | None,
        size: int,
        known: Mapping[str, Any],
        extra: Collection[str] = (),
        filler: str = "a",
        salt: str = "",
    ) -> None:
        self._schema, self._place, self._size = schema, place, size
        self._known, self._extra, self._filler, self._salt = known, extra, filler, salt
        self._count = 0
        self._is_one_of_many = False  # then known texts are only beginnings, too: names differ

    def build(self, part: Schema, steps: tuple[Step, ...], name: str = "") -> Any:
        """Return the value of a part; `name`: of the member that it is."""
        place = self._place
        grows = place is not None and place.steps == steps
        if "$ref" in part:
            return self.build(self._schema.definitions[part["$ref"].rpartition("/")[2]], steps, name)
        if "anyOf" in part:
            chosen = self._chosen(steps)
            return self.build(part["anyOf"][chosen], (*steps, chosen), name)
        if "const" in part:
            return part["const"]
        if "enum" in part:
            return self._known.get(name, part["enum"][0])
        kind = _type(part)
        if kind == "array":
            self._is_one_of_many = self._is_one_of_many or grows
            items = [
                self.build(part["items"], (*steps, ITEM), name) for _ in range(self._size if grows else 1)
            ]
            self._is_one_of_many = self._is_one_of_many and not grows
            return items
        if kind == "object" or "allOf" in part:
            return self._object(part, steps, grows)
        if kind == "string":
            return self._text(name, self._size if grows else 0)
        return {"boolean": True, "null": None}.get(kind, 1)

    def _chosen(self, steps: tuple[Step, ...]) -> int:
        """Return which alternative leads to the place; else the first."""
        if self._place is not None and self._place.steps[: len(steps)] == steps:
            following = self._place.steps[len(steps) :]
            if following and isinstance(following[0], int):
                return following[0]
        return 0

    def _object(self, part: Schema, steps: tuple[Step, ...], grows: bool) -> Json:
        built: Json = {}
        place, following = self._place, None
        if place is not None and place.steps[: len(steps)] == steps and not grows:
            following = place.steps[len(steps)]
        grown = place.kind if place is not None and grows else None
        for parent in part.get("allOf", ()):
            built |= self.build(parent, steps)
        for name, own in part.get("properties", {}).items():
            if name == following:
                built[name] = self.build(own, (*steps, name), name)
            elif name in part.get("required", ()) or name in self._extra:
                built[name] = self._member(own, (*steps, name), name)
        others = part.get("additionalProperties")
        if isinstance(others, dict) and (grows or following == MEMBER):
            many = self._size if grown == "members" else 1
            for number in range(many):
                long = grown == "name"
                key = self._text("", self._size) if long else f"k{number}"
                built[key] = self.build(others, (*steps, MEMBER))
        return built

    def _member(self, part: Schema, steps: tuple[Step, ...], name: str) -> Any:
        value = self._known.get(name)
        if value is None or isinstance(value, str):
            return self.build(part, steps, name)
        return value

    def _text(self, name: str, size: int) -> Any:
        start = self._known.get(name)
        if not size and start is not None and not self._is_one_of_many:
            return start
        self._count += 1
        begins = f"{start if isinstance(start, str) else ''}{self._salt}{self._count}"
        missing = max(0, size - len(begins))
        return begins + (self._filler * (missing // len(self._filler) + 1))[:missing]
