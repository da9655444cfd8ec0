"""Requests of the load: from words to calls. Pure; chance comes in as an argument.

The words are those that the help of `mcpmux bench` lists: a `read` is of a resource of the server's own
list, a `list` is all pages, `template` reads a URI that the template makes of the arguments, and `subscribe`
subscribes to a resource and unsubscribes. They may have a weight in front, see `workload`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple, TypeVar

from mcpmux.config.report import InvalidValue, closest, hint_at
from mcpmux.mux.naming import likely_own
from mcpmux.mux.pattern import matches as is_match
from mcpmux.mux.pattern import parse_glob
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.raw_json import Fields

T = TypeVar("T")

LISTS = {method.split("/")[-2]: method for method in m.LISTS}  # such as "templates"

SYNTAX = {
    "read": "[GLOB]",
    "list": "[resources|templates|tools|prompts]",
    "template": "TEMPLATE ARGUMENTS",
    "tool": "NAME [ARGUMENTS]",
    "prompt": "NAME [ARGUMENTS]",
    "complete": "prompt:NAME|TEMPLATE ARGUMENT VALUE",
    "ping": "",
    "subscribe": "[GLOB]",
}
"""What follows a verb."""

EXPECTED = "expected one of: " + ", ".join(f"{verb} {rest}".strip() for verb, rest in SYNTAX.items())

NAMED = {"tool": m.TOOLS_CALL, "prompt": m.PROMPTS_GET}


OF_URIS = {"read": m.RESOURCES_READ, "subscribe": m.RESOURCES_SUBSCRIBE}
"""Verbs about resources of the server's own list."""

SEVERAL = frozenset({*m.LISTS, m.RESOURCES_SUBSCRIBE})
"""What is asked for by several requests: every page of a list; a subscription, which is taken back."""


class Ask(NamedTuple):
    """One request. `operation`: its name in the results; `subject`: the URI that is read, for `Checker`."""

    operation: str
    call: Call
    subject: str | None = None


Make = Callable[[int, Random], Ask]
"""Makes the ask with a number, from 1."""


class Operation(NamedTuple):
    """One kind of request. `text`: as it was written."""

    text: str
    verb: str
    subject: str
    arguments: Template | None = None

    @property
    def name(self) -> str:
        """Its name in the results: the verb and what it is about."""
        return f"{self.verb} {self.subject}".strip()

    @property
    def needs_uris(self) -> bool:
        """Whether the server has to be asked for its resources first."""
        return self.verb in OF_URIS or (self.arguments is not None and self.arguments.needs_uri)


def parse_operation(text: str) -> Operation:
    """Return the operation that the words describe. Raises InvalidValue."""
    verb, _, rest = text.strip().partition(" ")
    subject, _, more = (part.strip() for part in rest.strip().partition(" "))
    if (verb == "ping" and not subject) or (verb in OF_URIS and not more):
        return Operation(text, verb, subject)
    if verb == "list" and not more and (subject or "resources") in LISTS:
        return Operation(text, verb, subject or "resources")
    if verb == "template" and subject and not more:
        raise InvalidValue(f'`{text}`: a template needs values, such as {{"name": "{{{{a|b}}}}"}}')
    if verb in (*NAMED, "template") and subject:
        try:
            return Operation(text, verb, subject, parse_arguments(more))
        except InvalidValue as mistake:
            raise InvalidValue(f"`{text}`: {mistake}") from None
    if verb == "complete" and subject and more:
        argument, _, value = more.partition(" ")
        return Operation(text, verb, subject, Template({"name": argument, "value": value.strip()}))
    guess = None
    if verb == "list" and not more and (near := closest(subject.lower(), LISTS)):
        guess = f"list {near}"
    elif verb not in SYNTAX and (near := closest(verb.lower(), SYNTAX)):
        guess = f"{near} {subject} {more}".strip()
    hint = f"did you mean `{guess}`? " if guess else ""
    raise InvalidValue(f"unknown operation `{text}`; {hint}{EXPECTED}")


Draw = Callable[[Random], T]
"""Draws one of some things."""


def draw_by(items: Sequence[T], weights: Iterable[float]) -> Draw[T]:
    """Return a function that draws each as often as its weight says. The weights must not all be 0."""
    bounds, last = list(accumulate(weights)), len(items) - 1
    return lambda random: items[min(bisect_right(bounds, random.random() * bounds[-1]), last)]


def always(ask: Ask) -> Make:
    """Return a function that makes the same ask again and again."""
    return lambda _number, _random: ask


def bind(operation: Operation, uris: Sequence[str]) -> Make:
    """Return a function that makes the asks. Raises InvalidValue."""
    verb, name, template = operation.verb, operation.name, operation.arguments

    def draw_from(items: Sequence[T], about: str = "") -> Draw[T]:
        if not items:
            hint = hint_at(operation.subject, uris)
            raise InvalidValue(f"`{operation.text}`: the server lists no resource{about}{hint}")
        return draw_by(items, [1.0] * len(items))

    if verb in OF_URIS:
        glob = operation.subject
        fitting = [uri for uri in uris if matches(glob, uri)]
        asks = [Ask(name, Call(OF_URIS[verb], {"uri": raw(uri)}, {}), uri) for uri in fitting]
        draw = draw_from(asks, f" that matches {glob}" if glob else "")
        return lambda _number, random: draw(random)
    if template is None:
        return always(Ask(name, Call(LISTS[operation.subject] if verb == "list" else m.PING, {}, {})))
    draw_uri = draw_from(uris) if template.needs_uri else lambda _: ""

    def make(number: int, random: Random) -> Ask:
        subject, values = operation.subject, template.fill(number, random, draw_uri)
        if verb == "template":
            uri = expand(subject, values)
            return Ask(name, Call(m.RESOURCES_READ, {"uri": raw(uri)}, {}), uri)
        if verb != "complete":
            return Ask(name, Call(NAMED[verb], {"name": raw(subject), "arguments": raw(values)}, {}))
        kind, _, prompt = subject.partition(":")
        ref = {"type": "ref/resource", "uri": subject}
        if kind == "prompt":
            ref = {"type": "ref/prompt", "name": prompt}
        return Ask(name, Call(m.COMPLETE, {"ref": raw(ref), "argument": raw(values)}, {}))

    return make


def matches(glob: str, uri: str) -> bool:
    """Return whether a glob, in which `*` is any text, matches the whole URI, with its prefix or without.

    So one text is about the same resource at a server and at the mcpmux in front of it.
    """
    globs = {glob, likely_own(glob)} if glob else {"*"}
    return any(is_match(parse_glob(glob), text) for glob in globs for text in (uri, likely_own(uri)))


# Arguments that differ from request to request: JSON with placeholders in its texts.
#
#     {{n}}           the number of this request, from 1
#     {{uri}}         a resource of the server, drawn as reads are
#     {{1..100}}      a whole number from 1 to 100
#     {{a|b|c}}       one of these words
#
# Inside quotation marks they are part of a text; `{"a": {{1..100}}}` without them is a number.

_TEXT_OR_PLACE = re.compile(r'"(?:[^"\\]|\\.)*"|\{\{[^{}]*\}\}')
_BARE = "\0"  # before a placeholder that stood without quotation marks; no JSON text of ours begins so
_PLACE = re.compile(r'("\\u0000)?\{\{([^{}]*)\}\}(?(1)")')  # a bare one, or one in a text
_RANGE = re.compile(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})")

KNOWN = "expected {{n}}, {{uri}}, {{LOW..HIGH}} or {{one|other}}"

Fill = Callable[[int, Random, Draw[str]], Any]
"""Makes one value of a request's number, chance, and what draws a URI."""


class Template:
    """A JSON object with placeholders. `needs_uri`: whether `{{uri}}` is among them."""

    def __init__(self, value: dict[str, Any]) -> None:
        """Read an object. A bare placeholder in it is a text that begins with _BARE. Raises InvalidValue."""
        self.needs_uri = False
        self._first, *pieces = _PLACE.split(_json(value))
        self._rest: list[tuple[Fill, bool, str]] = []  # and whether it is in a text, and what follows it
        for bare, inside, literal in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            name = json.loads(f'"{inside}"').strip()
            self.needs_uri = self.needs_uri or name == "uri"
            self._rest.append((_fill_of(name), not bare, literal))
        self._constant = None if self._rest else decode_fields(raw(value))

    def fill(self, number: int, random: Random, draw_uri: Draw[str]) -> Fields:
        """Return the members of the object for one request."""
        if self._constant is not None:
            return self._constant
        text = self._first
        for fill, quoted, literal in self._rest:
            value = fill(number, random, draw_uri)
            text += (_json(str(value))[1:-1] if quoted else _json(value)) + literal
        return decode_fields(text.encode())


def _fill_of(name: str) -> Fill:
    if name == "n":
        return lambda number, *_: number
    if name == "uri":
        return lambda _number, random, draw_uri: draw_uri(random)
    span = _RANGE.fullmatch(name)
    if span is not None:
        low, high = int(span[1]), int(span[2])
        if low > high:
            raise InvalidValue(f"{{{{{name}}}}} is empty; {KNOWN}")
        return lambda _number, random, _: random.randint(low, high)
    if "|" in name:
        words = name.split("|")
        return lambda _number, random, _: random.choice(words)
    raise InvalidValue(f"{{{{{name}}}}} means nothing here; {KNOWN}")


def _json(value: Any) -> str:
    return bytes(raw(value)).decode()


def parse_arguments(text: str) -> Template:
    """Return the template in a JSON object; an empty text is an empty object. Raises InvalidValue."""
    try:
        value = decode_any(_TEXT_OR_PLACE.sub(_quote, text).encode() or b"{}")
    except ValueError as error:
        raise InvalidValue(f"the arguments are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidValue('the arguments have to be a JSON object such as {"message": "hello"}')
    return Template(value)


def _quote(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else json.dumps(_BARE + found[0])


def expand(template: str, values: Fields) -> str:
    """Return a URI of a template, each `{name}` (RFC 6570, level 1, and `{+name}`) replaced by its value."""

    def text_of_value(found: re.Match[str]) -> str:
        value = values.get(found[1], raw(""))
        plain = decode_any(value)
        return plain if isinstance(plain, str) else bytes(value).decode()

    return re.sub(r"\{\+?([A-Za-z0-9_.]+)\}", text_of_value, template)
