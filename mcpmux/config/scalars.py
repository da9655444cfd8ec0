"""Describe the accepted values of single settings.

A scalar is in the type of a field: `Annotated[int, Whole(1, 10)]`. `read` turns a value of the file into a
value of ours, or raises InvalidValue. `schema` describes the same values in JSON Schema. It applies to text
before `${VAR}` is expanded, so it accepts any text with `${`.

Scalars are structs of msgspec and not of attrs, because attrs compiles each class at every start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

import msgspec

from mcpmux.config.expansion import Secret
from mcpmux.config.report import InvalidValue, closest, invalid_value, suggestion

_HAS_REFERENCE = r"\$\{"


def read_only(table: Mapping[str, Any]) -> MappingProxyType[str, Any]:
    """Return a copy of `table` that cannot be changed."""
    return MappingProxyType(dict(table))


def _text_pattern(pattern: str) -> str:
    return f"^(?:{pattern})$|{_HAS_REFERENCE}"


class Flag(msgspec.Struct, frozen=True):
    """`true` or `false`."""

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise invalid_value("true or false", value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Text(msgspec.Struct, frozen=True):
    """Text that matches `pattern` as a whole. `expected` completes "expected …".

    `make` makes our value of it: None if it is not accepted, or InvalidValue that says more.
    """

    expected: str = "text without NUL characters"
    pattern: str = r"[^\x00]*"
    make: Callable[[str], Any] = str

    def read(self, value: object) -> Any:
        if not isinstance(value, str):
            raise invalid_value("text", value)
        made = self.make(value) if re.fullmatch(self.pattern, value) else None
        if made is None:
            raise InvalidValue(f"expected {self.expected}")
        return made

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": _text_pattern(self.pattern)}


KEY_CHARACTERS = 16  # of a key, at least: random text of this length cannot be guessed
KEY_TEXT = Text(f"at least {KEY_CHARACTERS} characters", rf"[^\x00]{{{KEY_CHARACTERS},}}", Secret)
Filled: TypeAlias = Annotated[str, Text("text that is not empty", r"[^\x00]+")]
HEADER_NAME = Text("the name of an HTTP header", r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = Text("text of one line that fits in an HTTP header", r"[\t\x20-\x7e\xa0-\xff]*", Secret)
HeaderTable: TypeAlias = Mapping[Annotated[str, HEADER_NAME], Annotated[Secret, HEADER_VALUE]]


class Anything(Text, frozen=True):
    """Any value that JSON can have."""

    def read(self, value: object) -> Any:
        if (place := find_no_number(value)) is not None:
            raise InvalidValue(f"expected what JSON can hold, but {place}")
        return value

    def schema(self) -> dict[str, Any]:
        return {}


def find_no_number(value: object, path: str = "") -> str | None:
    """Return where NaN or infinity is in a value of plain Python types; None when there is none.

    Encoders of JSON write null in their place, which means something else.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path or 'it'} is {value}"
    members: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        members = enumerate(value)
    for key, member in members:
        place = find_no_number(member, f"{path}.{key}" if path else str(key))
        if place is not None:
            return place
    return None


class EnvironmentValue(Text, frozen=True):
    """An environment variable for a child process. Host apps also write whole numbers here."""

    make: Callable[[str], Any] = Secret

    def read(self, value: object) -> Any:
        return super().read(str(value) if type(value) is int else value)

    def schema(self) -> dict[str, Any]:
        return super().schema() | {"type": ["string", "integer"]}


VARIABLE_NAME = Text("the name of an environment variable", r"[^=\x00]+")


class Inheritance(msgspec.Struct, frozen=True):
    """`true`, `false`, or a list of names of environment variables. `few`: those that `false` stands for."""

    few: tuple[str, ...]

    def read(self, value: object) -> tuple[str, ...] | None:
        if isinstance(value, bool):
            return None if value else self.few
        if not isinstance(value, list):
            raise invalid_value("true, false, or a list of names of environment variables", value)
        return tuple(VARIABLE_NAME.read(name) for name in value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, {"type": "array", "items": VARIABLE_NAME.schema()}]}


def read_url(text: str) -> str | None:
    """Return a URL that has a host, and a port that there is if it has one; None for another."""
    with suppress(ValueError):  # brackets that do not match, a port out of range
        parts = urlsplit(text)
        if parts.hostname and parts.port != 0:
            return text
    return None


HTTP_URL = Text(
    "a URL starting with http:// or https:// and a host",
    r"https?://[^\s\x00-\x1f/?#]+(?:[/?][^\s\x00-\x1f#]*)?",
    read_url,
)
"""An absolute http or https URL without a fragment."""

PROXY_URL = Text(
    'a URL such as "http://proxy.example.com:3128", or "" for no proxy',
    r"(?:https?://[^\s\x00-\x1f/?#]+/?)?",
    lambda text: Secret(text) if not text or read_url(text) else None,
)


class Choice(msgspec.Struct, frozen=True):
    """One of several words."""

    words: tuple[str, ...]

    def read(self, value: object) -> str:
        if value not in self.words:
            words = ", ".join(f'"{word}"' for word in self.words)
            hint = suggestion(closest(value.lower(), self.words), '"') if isinstance(value, str) else ""
            raise InvalidValue(f"expected one of {words}{hint}")
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.words)}, {"type": "string", "pattern": _HAS_REFERENCE}]}


class Number(msgspec.Struct, frozen=True):
    """A number within bounds, or text of one with a unit, so that `"${PORT}"` works."""

    low: float = 0
    high: float = math.inf
    expected: ClassVar[str]  # a format, whose {0} is the scalar
    pattern: ClassVar[str]  # of text: a number, or a group for that and one for its unit
    units: ClassVar[Mapping[str, float]] = {"": 1}
    kind: ClassVar[str] = "integer"

    def read(self, value: object) -> Any:
        number = value
        if isinstance(value, str) and (match := re.fullmatch(self.pattern, value)):
            digits, unit = match.groups() or (value, "")
            number = float(digits) * self.units[unit]
        if not isinstance(number, int | float) or isinstance(number, bool) or not self.fits(number):
            raise InvalidValue("expected " + self.expected.format(self))
        return int(number) if self.kind == "integer" else float(number)

    def fits(self, number: float) -> bool:
        """Return whether the number is within the bounds, and whole if it has to be."""
        return self.low <= number <= self.high and (self.kind == "number" or number % 1 == 0)

    def schema(self) -> dict[str, Any]:
        return {"type": [self.kind, "string"], **self.bounds, "pattern": _text_pattern(self.pattern)}

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds as a JSON Schema has them."""
        return {"minimum": self.low, "maximum": self.high}


class Whole(Number, frozen=True):
    """A whole number from `low` to `high`."""

    expected: ClassVar[str] = "a whole number from {0.low} to {0.high}"
    pattern: ClassVar[str] = "[0-9]{1,15}"


class Size(Number, frozen=True):
    """A number of bytes, or text with a unit: "512KiB", "64MiB"."""

    high: float = 2**40
    expected: ClassVar[str] = '{0.low} to {0.high} bytes, as a number or as text such as "64MiB"'
    pattern: ClassVar[str] = "([0-9]{1,15}) ?(B|KiB|MiB|GiB|)"
    units: ClassVar[Mapping[str, float]] = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "": 1}


class Real(Number, frozen=True):
    """A number from `low` to `high`."""

    expected: ClassVar[str] = "a number from {0.low:g} to {0.high:g}"
    pattern: ClassVar[str] = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
    kind: ClassVar[str] = "number"


class Fraction(Real, frozen=True):
    """A number from 0 to 1."""

    high: float = 1
    pattern: ClassVar[str] = r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?"


class Duration(Number, frozen=True):
    """A number of seconds above 0, or text with a unit: "500ms", "10s", "2m", "1h". `off`: 0 is accepted."""

    off: bool = False
    expected: ClassVar[str] = '{0.least}, as a number or as text such as "500ms", "10s" or "2m"'
    pattern: ClassVar[str] = r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|)"
    units: ClassVar[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}
    kind: ClassVar[str] = "number"

    @property
    def least(self) -> str:
        """The lower bound in words."""
        return "0 or more seconds" if self.off else "seconds above 0"

    @property
    def bounds(self) -> dict[str, float]:
        return {"minimum" if self.off else "exclusiveMinimum": 0}

    def fits(self, number: float) -> bool:
        return 0 < number < math.inf or (self.off and number == 0)


Seconds: TypeAlias = Annotated[float, Duration()]

Scalar: TypeAlias = Flag | Text | Choice | Number | Inheritance


# Names of upstreams. A host app's free-form name of a server is turned into one.

# `+` follows a name in exposed URIs and `__` in exposed tool names, so a name can hold neither. Host apps
# allow 64 characters for a tool name; 32 for the upstream leave half of them to the tool.
NAME_PATTERN = "[a-z][a-z0-9.-]{0,31}"
_MAX_LENGTH = 32
_FALLBACK = "server"

_VALID = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of an upstream."""
    return _VALID.fullmatch(text) is not None


def derive_name(text: str) -> str:
    """Return a valid name like `text`: "My Server" -> "my-server", "@scope/pkg" -> "scope-pkg"."""
    if is_name(text):
        return text
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if not name:
        return _FALLBACK
    if not name[0].isalpha():
        name = f"{_FALLBACK}-{name}"
    return name[:_MAX_LENGTH].rstrip("-.")


def derive_names(texts: Sequence[str]) -> list[str]:
    """Return a different name for each text, with a different prefix. A text that is a name stays the same.

    Of others that would be the same, the later ones get `-2`, `-3` and so on; so does a name with dots whose
    prefix is another's.
    """
    plain = {text for text in texts if is_name(text) and derive_prefix(text) == text}
    taken, names = set(plain), list[str]()
    for text in texts:
        name = base = derive_name(text)
        for number in count(2):
            if derive_prefix(name) not in taken or (name == text and name in plain and name not in names):
                break
            suffix = f"-{number}"
            name = base[: _MAX_LENGTH - len(suffix)] + suffix
        taken.add(derive_prefix(name))
        names.append(name)
    return names


def derive_prefix(name: str) -> str:
    """Return the prefix of an upstream that is given none: its name without dots, which model APIs refuse."""
    return name.replace(".", "-")
