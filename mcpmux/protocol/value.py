"""What the values that travel through mcpmux have in common.

They are plain classes, for compiled code has their attributes at hand; those of a msgspec.Struct it asks for
by name.
"""

from __future__ import annotations


class Value:
    """Compares, and shows itself, by its parts. Nobody changes it, unless it says so."""

    __slots__ = ()

    def parts(self) -> tuple[object, ...]:
        """What it is made of, in the order in which it is made."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Value) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash(self.parts())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.parts()!r}"
