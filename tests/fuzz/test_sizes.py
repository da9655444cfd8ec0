"""Valid messages of which a part is repeated, lengthened or nested, through the decoder and the pure rooms.

Law: the work grows no faster than the message. It is counted in calls of functions, of Python and C, at one
size and at a multiple of it. Where there is a limit, there is less work beyond it.
The work inside a single call of C is not seen here; the walk in `runtime/test_growth` measures its time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.config import AccessRule, Redaction
from mcpmux.config.views import Parameter, Selector, View
from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.item import mend_items
from mcpmux.mux.merge import Walk, expose_list
from mcpmux.mux.override import BadArguments, NotJudged, check_arguments, override_schema
from mcpmux.mux.pattern import Target, template_glob
from mcpmux.mux.policy import policy_of
from mcpmux.mux.rewrite import Namespace
from mcpmux.mux.seal import CursorSeal, InvalidCursor, Position
from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.mux.view import BadNarrowing, Selection, read_narrowing, views_of
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import BadMessage, decode_message, encode, members_of, raw
from mcpmux.protocol.framing import read_batch
from mcpmux.protocol.principal import ANYONE
from mcpmux.traffic.redaction.redactor import Redactor
from tests.examples import examples

SIZE, TIMES = 32, 8
EXCESS: Final = 1.6  # times as many calls as in proportion, and
EXTRA: Final = 2_000  # calls more: some limits are met between the sizes
FEW = settings(max_examples=examples(60))

PIECES = [
    "a",
    "/",
    "%2e",
    "%25252e",
    "//",
    "\\",
    "\t",
    "{x}",
    "{",
    "+",
    "x+",
    "__",
    "x__",
    "..",
    "?",
    "#",
    "é",
]
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join)


class Growth(NamedTuple):
    """A way in which a part grows, and the piece that is repeated."""

    way: str
    piece: str

    def of(self, size: int) -> Any:
        """Return the part at a size."""
        return WAYS[self.way](self.piece, size)


def nested(piece: str, size: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = piece
    for _ in range(min(size, 400)):  # deeper is refused: json has its own limit
        value = wrap(value)
    return value


def referring(piece: str, size: int) -> Any:
    """Return a schema of definitions each of which refers to the next one twice."""
    parts = {f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{size}": {"pattern": piece}}}


WAYS: dict[str, Callable[[str, int], Any]] = {
    "long": lambda piece, size: piece * size,
    "items": lambda piece, size: [f"{piece}{number}" for number in range(size)],
    "the same items": lambda piece, size: [piece] * size,
    "members": lambda piece, size: {f"{piece}{number}": number for number in range(size)},
    "long name": lambda piece, size: {piece * size: 1},
    "objects": lambda piece, size: [{"name": f"{piece}{number}", "uri": piece} for number in range(size)],
    "blocks": lambda piece, size: [
        {"type": "resource", "resource": {"uri": f"{piece}{number}", "text": piece}} for number in range(size)
    ],
    "deep lists": lambda piece, size: nested(piece, size, lambda value: [value]),
    "deep objects": lambda piece, size: nested(piece, size, lambda value: {piece: value}),
    "deep blocks": lambda piece, size: nested(
        piece, size, lambda value: [{"type": "tool_result", "content": value}]
    ),
    "references": referring,
    "cursors": lambda piece, size: encode([[f"u{number}", piece] for number in range(size)]).decode(),
}
growths = st.builds(Growth, st.sampled_from(sorted(WAYS)), texts)

NAMESPACE = Namespace({"x": "x", "y": "y"})
SPACE = NAMESPACE.spaces["x"]
RULES = (
    AccessRule(effect="deny", targets=("file:///secret/*", "*secret", "a/*/b")),
    AccessRule(effect="allow"),
)
VIEW = View(include=(Selector(name="*a*"), Selector(upstream="x", kind="resources", name="file:///*")))
SEAL = CursorSeal(b"0123456789abcdef")
REDACTOR = Redactor(Redaction(paths=("..ssn", "params.arguments[*].ssn", "..a.*")))
PARAMETERS = {"p": Parameter(hidden=True, default="d"), "q": Parameter(description="of ours")}


def message_with(method: str, member: str, part: Any) -> bytes:
    params = {"name": "x__t", "uri": "x+file:///a", "arguments": {}, "_meta": {}, member: part}
    return encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


# The work on a part


def decode(part: Any) -> None:
    for member in ("arguments", "_meta", "uri", "cursor", "requestState", "id"):
        with suppress(RpcError):
            message = decode_message(message_with(m.TOOLS_CALL, member, part))
            Call.of(m.TOOLS_CALL, message.params)  # type: ignore[union-attr]  # it is a request
    with suppress(BadMessage):
        decode_message(encode(part)[:-1])
    with suppress(BadMessage):
        read_batch(encode([{"jsonrpc": "2.0", "method": "n", "params": {"a": part}}] * 4))


def resolve(part: Any) -> None:
    rewrite.resolve_arguments(raw(part), "x", NAMESPACE)
    rewrite.resolve_related({"_meta": raw(part)}, str.upper)
    if isinstance(part, str):
        NAMESPACE.resolve_uri(part)
        NAMESPACE.resolve_name(part)
        NAMESPACE.resolve_task(part)


def expose(part: Any) -> None:
    for method, member in [
        (m.TOOLS_CALL, "content"),
        (m.RESOURCES_READ, "contents"),
        (m.PROMPTS_GET, "messages"),
        (m.TOOLS_CALL, "inputRequests"),
        (m.TOOLS_CALL, "_meta"),
    ]:
        rewrite.expose_result(method, {member: raw(part)}, SPACE)
    rewrite.expose_error(RpcError(-32602, str(part), {"uri": part}), SPACE, "t", "x__t")
    rewrite.expose_event(m.RESOURCE_UPDATED, {"uri": raw(part)}, SPACE)


def merge(part: Any) -> None:
    for method in m.LISTS:
        for items in (part, [{"name": part, "uri": part, "uriTemplate": part, "inputSchema": part}]):
            with suppress(ValueError):
                mend_items(method, raw(items))
            with suppress(ValueError):
                exposed = expose_list(method, raw(items), SPACE)
                position = Position("x")
                walk = Walk([position], 100)
                walk.sift(position, exposed.names)
                walk.take_page(position, exposed.items, "next", names=exposed.names)
                walk.end_round()
                walk.items()
                walk.resume()


def judge(part: Any) -> None:
    policy, selection = policy_of(RULES), Selection("views.some", VIEW)
    assert policy is not None
    for text in texts_in(part):
        target = Target(text)
        assert target.readings
        for rules in (policy, selection):
            rules.decide(ANYONE, "x", m.RESOURCES_READ, text)
            rules.decide(ANYONE, "x", m.TEMPLATES_LIST, text)
            rules.decide(ANYONE, "x", m.TOOLS_LIST, text)
        template_glob(text)
        with suppress(BadNarrowing):
            list(views_of(read_narrowing(f"tools={text}&upstreams={text}")))


def subscribe(part: Any) -> None:
    subscriptions: Subscriptions[int] = Subscriptions()
    for number, text in enumerate(texts_in(part)):
        subscriptions.add(number % 3, "x", text)
    for text in texts_in(part)[:3]:
        subscriptions.audience("x", text)
        subscriptions.audience("x", f"{text}/b")
    subscriptions.remove_all(1)


def fill_in(part: Any) -> None:
    schema = part if isinstance(part, dict) else {"properties": {"a": {"enum": part}}, "required": part}
    with suppress(NotJudged, BadArguments, AttributeError):
        override_schema(schema, PARAMETERS)
    for arguments in ({"a": part}, part if isinstance(part, dict) else {}):
        with suppress(NotJudged, BadArguments, AttributeError):
            check_arguments(members_of(raw(arguments)), schema, PARAMETERS)


def carry(part: Any) -> None:
    for text in texts_in(part)[:4]:
        with suppress(InvalidCursor):
            SEAL.open(m.TOOLS_LIST, text)
        with suppress(InvalidCursor):
            sealed = SEAL.seal(m.TOOLS_LIST, [Position("x", text), Position("y", text)])
            for position in SEAL.open(m.TOOLS_LIST, sealed):
                position.advance(text)


def redact(part: Any) -> None:
    for method, member in ((m.TOOLS_CALL, "arguments"), (m.ELICIT, "requestedSchema")):
        REDACTOR.redact(method, message_with(method, member, {"ssn": 1, "password": part, "a": part}))
        REDACTOR.redact(method, message_with(method, member, {"ssn": 1, "a": encode(part).decode()}))
    REDACTOR.redact(None, encode({"ssn": part})[:-2])


def texts_in(part: Any) -> list[str]:
    """Return the texts of a part, however deep they are."""
    texts: list[str] = []
    waiting = [part]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list | dict):
            waiting += value
            waiting += value.values() if isinstance(value, dict) else ()
    return texts


WORK: dict[str, Callable[[Any], None]] = {
    function.__name__: function
    for function in (decode, resolve, expose, merge, judge, subscribe, fill_in, carry, redact)
}


def calls_of(work: Callable[[Any], None], part: Any) -> int:
    """Count the calls of functions in the work on a part."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        work(part)
    finally:
        sys.setprofile(profiler)
    return calls


@pytest.mark.parametrize("room", sorted(WORK))
@FEW
@given(growth=growths)
def test_what_is_done_grows_no_faster_than_the_message(room: str, growth: Growth):
    work = WORK[room]
    work(growth.of(1))  # what is imported, compiled or kept ready at first
    few, many = (calls_of(work, growth.of(size)) for size in (SIZE, SIZE * TIMES))
    assert many <= EXCESS * TIMES * few + EXTRA, (few, many)


def test_work_that_grows_faster_is_noticed():
    def compare_all(part: Any) -> None:
        for item in part:
            for other in part:
                item.startswith(other)

    few, many = (calls_of(compare_all, ["a"] * size) for size in (SIZE, SIZE * TIMES))
    assert many > EXCESS * TIMES * few + EXTRA
