"""What must never be written down, besides what mcpmux knows by itself: as the user says it, checked.

A pattern is tried once, on text made to be hard for it, so that one that takes forever on hostile text is a
mistake in the configuration and not a surprise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from attrs import field, frozen

from mcpmux.config.json_path import parse_path
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Choice, Text, about

if TYPE_CHECKING:
    import regex

BUILT_IN = (
    "authorization",
    "cookie",
    "password",
    "secret",
    "token",
    "api-key",
    "private-key",
    "jwt",
    "vendor-key",
    "url-userinfo",
    "url-token",
)
"""The rules that mcpmux has by itself, as its replacements name them."""

PROBE_SECONDS = 0.2  # for a text of PROBE_LENGTH; a pattern without trouble needs well under a millisecond
PROBE_LENGTH = 3000


class JsonPath(Text, frozen=True):
    """A path into a message; it stays text."""

    expected: str = "a path"
    pattern: str = r"[^\x00]+"

    def read(self, value: object) -> str:
        text: str = super().read(value)
        parse_path(text)
        return text


class Pattern(Text, frozen=True):
    """A regular expression; it stays text."""

    expected: str = "a regular expression"
    pattern: str = r"[^\x00]+"

    def read(self, value: object) -> str:
        text: str = super().read(value)
        check_pattern(text)
        return text


def compile_pattern(text: str) -> regex.Pattern[str]:
    """A regular expression of the user. Raises Unfit for what is none."""
    import regex  # not at the top: it is large, and few configurations have a pattern

    try:
        return regex.compile(text)
    except regex.error as error:
        raise Unfit(
            f"expected a regular expression: {error.msg} at character {(error.pos or 0) + 1}"
        ) from None


def check_pattern(text: str) -> None:
    """Raises Unfit for what is no regular expression, matches nothing at all, or takes forever."""
    compiled = compile_pattern(text)
    try:
        if compiled.search("", timeout=PROBE_SECONDS) is not None:
            raise Unfit("expected a regular expression that does not match empty text")
        for probe in _probes_of(text):
            compiled.search(probe, timeout=PROBE_SECONDS)
    except TimeoutError:
        raise Unfit(
            "this regular expression takes too long on long text; repeat nothing inside a repetition, "
            "and bound repetitions: {1,64} in place of +"
        ) from None


def _probes_of(pattern: str) -> list[str]:
    """Texts of few characters over and over, with an end that fits nothing."""
    letters = dict.fromkeys([*(char for char in pattern if char.isalnum()), *"aA0 -_./=@"])
    singles = [letter * PROBE_LENGTH + "\x01" for letter in list(letters)[:40]]
    return [*singles, "aA0-" * (PROBE_LENGTH // 4) + "\x01", "0 " * (PROBE_LENGTH // 2) + "\x01"]


class KeyName(Text, frozen=True):
    """The name of a member; it must be more than separators."""

    expected: str = "the name of a member"
    pattern: str = r"[^\x00]*[^\x00\s._-][^\x00]*"


class RuleName(Text, frozen=True):
    """What a replacement says."""

    expected: str = "a name of letters, digits, spaces and -"
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9 -]{0,31}"


def _read_only(patterns: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(patterns))


@frozen(kw_only=True)
class Redaction:
    """What is replaced in everything that is written down or shown of messages."""

    keys: tuple[Annotated[str, KeyName()], ...] = field(
        default=(),
        metadata=about(
            "Members whose values are replaced wherever they are; case, `-` and `_` do not matter."
        ),
    )
    paths: tuple[Annotated[str, JsonPath()], ...] = field(
        default=(), metadata=about("Places in a message that are replaced: `params.arguments.ssn`.")
    )
    patterns: Mapping[Annotated[str, RuleName()], Annotated[str, Pattern()]] = field(
        factory=dict,
        converter=_read_only,
        metadata=about("Regular expressions by name; what they match in any text is replaced by the name."),
    )
    skip: tuple[Annotated[str, Choice(BUILT_IN)], ...] = field(
        default=(), metadata=about("Built-in rules not to use, for what they find where no secret is.")
    )
