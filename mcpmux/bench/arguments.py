"""Arguments that differ from request to request: JSON with placeholders in its texts. Pure.

    {{n}}           the number of this request, from 1
    {{uri}}         a resource of the server, drawn as reads are
    {{1..100}}      a whole number from 1 to 100
    {{a|b|c}}       one of these words

Inside quotation marks they are part of a text; `{"a": {{1..100}}}` without them is a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from mcpmux.config.report import Unfit
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.raw_json import Fields, Raw

_PLACE = re.compile(r"\{\{([^{}]*)\}\}")
_TEXT_OR_PLACE = re.compile(r'"(?:[^"\\]|\\.)*"|\{\{[^{}]*\}\}')
_BARE = "\0"  # before a placeholder that stood without quotation marks; no JSON text of ours begins so
_RANGE = re.compile(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})")

KNOWN = "expected {{n}}, {{uri}}, {{LOW..HIGH}} or {{one|other}}"


class Moment(NamedTuple):
    """What placeholders are filled from: the request's number, chance, and who draws a URI."""

    number: int
    random: Random
    uri: Callable[[], str]


Fill = Callable[[Moment], Any]
"""Makes one value."""


class Template:
    """A JSON value with placeholders. `needs_uri`: whether `{{uri}}` is among them."""

    def __init__(self, value: Any) -> None:
        self.needs_uri = False
        self._fill = self._compile(value)
        self._constant = raw(value) if self._fill is None else None

    def __repr__(self) -> str:
        return f"<Template{'' if self._fill else ' constant'}>"

    def fill(self, moment: Moment) -> Raw:
        """The value for one request."""
        if self._fill is None:
            assert self._constant is not None
            return self._constant
        return raw(self._fill(moment))

    def _compile(self, value: Any) -> Fill | None:
        """How to make the value; None when it never changes. Raises Unfit."""
        if isinstance(value, str):
            return self._compile_text(value)
        if isinstance(value, dict):
            members = {key: self._compile(member) for key, member in value.items()}
            if not any(members.values()):
                return None
            return lambda at: {key: fill(at) if fill else value[key] for key, fill in members.items()}
        if isinstance(value, list):
            items = [self._compile(item) for item in value]
            if not any(items):
                return None
            return lambda at: [fill(at) if fill else same for fill, same in zip(items, value, strict=True)]
        return None

    def _compile_text(self, text: str) -> Fill | None:
        if text.startswith(_BARE + "{{"):
            return self._compile_place(text[3:-2])
        pieces = _PLACE.split(text)
        if len(pieces) == 1:
            return None
        fills = [self._compile_place(piece) if turn % 2 else None for turn, piece in enumerate(pieces)]
        return lambda at: "".join(
            str(fill(at)) if fill else piece for fill, piece in zip(fills, pieces, strict=True)
        )

    def _compile_place(self, inside: str) -> Fill:
        inside = inside.strip()
        if inside == "n":
            return lambda at: at.number
        if inside == "uri":
            self.needs_uri = True
            return lambda at: at.uri()
        span = _RANGE.fullmatch(inside)
        if span is not None:
            low, high = int(span[1]), int(span[2])
            if low > high:
                raise Unfit(f"{{{{{inside}}}}} is empty; {KNOWN}")
            return lambda at: at.random.randint(low, high)
        if "|" in inside:
            words = inside.split("|")
            return lambda at: at.random.choice(words)
        raise Unfit(f"{{{{{inside}}}}} means nothing here; {KNOWN}")


def parse_arguments(text: str) -> Template:
    """The template in a JSON object; an empty text is an empty object. Raises Unfit."""
    try:
        value = decode_any(_TEXT_OR_PLACE.sub(_quote, text).encode() or b"{}")
    except ValueError as error:
        raise Unfit(f"the arguments are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unfit('the arguments have to be a JSON object such as {"message": "hello"}')
    return Template(value)


def _quote(found: re.Match[str]) -> str:
    """A text as it is; a placeholder outside of any as a text that is known again."""
    return found[0] if found[0].startswith('"') else json.dumps(_BARE + found[0])


def expand(template: str, values: Fields) -> str:
    """A URI of a template, each `{name}` (RFC 6570, level 1, and `{+name}`) replaced by its value."""
    return re.sub(r"\{\+?([A-Za-z0-9_.]+)\}", lambda found: _text(values.get(found[1])), template)


def _text(value: Raw | None) -> str:
    if value is None:
        return ""
    plain = decode_any(value)
    return plain if isinstance(plain, str) else bytes(value).decode()


def members(template: Template, moment: Moment) -> Fields:
    """The filled arguments, each value still raw."""
    return decode_fields(template.fill(moment))
