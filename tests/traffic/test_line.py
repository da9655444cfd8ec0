"""A line has all the facts of its message, with or without parts that are encoded once for many lines."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.channels.tap import Leg
from mcpmux.config.traffic import Redaction
from mcpmux.traffic.capture.line import (
    HEAD,
    LEGS_CACHED,
    _remembered_texts_of,
    encode_lines,
    without_repeats,
)
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import ANSWERS, Run, decode_record
from mcpmux.traffic.redaction.redactor import Redactor
from tests.examples import examples

RUN = Run("5f3a9c01", 100.25, 1_795_262_400.123_456)
REDACTOR = Redactor()
SECRET = "hunter2hunter2"

TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "a", "docs+memo:1", 'q"\\\n', "é\u2028", "ghp_" + "a" * 30])
)
LEGS = st.builds(
    Leg,
    st.sampled_from(["client", "upstream"]),
    st.sampled_from(["c1", "docs#2", 'odd"peer']),
    st.sampled_from(["http", "stdio"]),
    TEXTS,
)
SOUND = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": st.sampled_from([1, "a"])},
    optional={
        "method": st.sampled_from(["tools/call", "x" * 300]),
        "params": st.sampled_from([{"name": "é"}, {"password": SECRET, "uri": f"https://h/?token={SECRET}"}]),
        "result": st.just({"token": SECRET}),
    },
).map(lambda message: json.dumps(message, ensure_ascii=False, indent=1).encode())
ODD = st.one_of(
    st.binary(max_size=30), st.sampled_from([b"", b'"text"', b'{"a":\r\n"b', b"[1]", b'{"token": "hunter2"}'])
)
BODIES = st.one_of(
    st.tuples(st.sampled_from(["request", "notification", "result", "error"]), SOUND),
    st.tuples(st.just("invalid"), ODD),
)
OUTCOMES = st.fixed_dictionaries(
    {},
    optional={
        "code": st.integers(-(2**40), 2**40),
        "failed": st.booleans(),
        "ms": st.integers(0, 10**12).map(lambda micros: micros / 1000),
        "status": st.just(404),
        "answers": st.integers(0, 2**40),
    },
)


def seen_of(
    leg: Leg, direction: Any, body: tuple[str, bytes], at: float, outcome: Any, **facts: Any
) -> Observation:
    """Return the observation of these facts, of which only an answer has an outcome."""
    kind, data = body
    if kind in ANSWERS:
        facts |= outcome
    return Observation(leg, direction, data, at, kind, **facts)


MESSAGES = st.builds(
    seen_of,
    LEGS,
    st.sampled_from(["in", "out"]),
    BODIES,
    st.floats(100.25, 1e7),
    OUTCOMES,
    exchange=st.integers(0, 2**40),
    method=TEXTS,
    id=st.one_of(st.none(), st.integers(-(2**60), 2**60), st.text(max_size=5)),
    target=TEXTS,
    number=st.integers(1, 2**40),
)


def members(line: bytes) -> dict[str, Any]:
    """Decode a line, and return the members of its record."""
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    record = decode_record(line)
    message = None if record.message is None else bytes(record.message)
    return {**msgspec.structs.asdict(record), "message": message}


def test_times_follow_steps_of_the_system_and_earlier_ones_stay():
    run = Run("5f3a9c01", 100.0, 1000.0)
    run.follow(160.0, 161.0, 1061.1)  # no step, the clocks are not read at once
    run.follow(200.0, 201.0, 9101.0)  # the machine slept
    run.follow(300.0, 301.0, 1201.0)  # set back
    readings = (99.0, 199.0, 200.0, 299.0, 300.0)
    assert [run.wall_at(reading) for reading in readings] == [999.0, 1099.0, 9100.0, 9199.0, 1200.0]
    leg = Leg("client", "c1", "http")
    for reading, time in ((199.0, "1970-01-01T00:18:19.000000Z"), (200.0, "1970-01-01T02:31:40.000000Z")):
        (line,) = encode_lines(run, REDACTOR, 40, "full", [Observation(leg, "in", b"{}", reading, "request")])
        assert (members(line)["time"], members(line)["at"]) == (time, reading - run.clock)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.tuples(MESSAGES, TEXTS, TEXTS), max_size=4),
    st.sampled_from(["full", "truncated", "metadata"]),
)
def test_a_line_is_the_same_after_others(messages: list[tuple[Observation, Any, Any]], level: str):
    for seen, *facts in messages:
        for fact in facts:  # what is known of a leg may change from message to message
            seen.leg.name = seen.leg.session = seen.leg.revision = fact
            seen.leg.transport = fact or "http"
            after_others = encode_lines(RUN, REDACTOR, 40, level, [seen])
            _remembered_texts_of.cache_clear()
            assert encode_lines(RUN, REDACTOR, 40, level, [seen]) == after_others


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=5), st.sampled_from(["full", "truncated", "metadata"]))
def test_lines_of_many_messages_are_those_of_each(messages: list[Observation], level: str):
    lines = b"".join(encode_lines(RUN, REDACTOR, 40, level, messages)).splitlines(keepends=True)
    for seen, line in zip(messages, lines, strict=True):
        assert [line] == encode_lines(RUN, REDACTOR, 40, level, [seen])


@settings(max_examples=examples(300), deadline=None)
@given(MESSAGES, st.sampled_from(["full", "truncated", "metadata"]))
def test_a_line_says_what_is_known_of_its_message(seen: Observation, level: str):
    (line,) = encode_lines(RUN, REDACTOR, 40, level, [seen])
    body, count = REDACTOR.redact(seen.method, seen.data)
    record = members(line)
    assert (record["kind"], record["leg"], record["peer"]) == (seen.kind, seen.leg.side, seen.leg.peer)
    assert (record["direction"], record["transport"]) == (seen.direction, seen.leg.transport)
    assert (record["exchange"], record["own"]) == (seen.exchange or None, not seen.exchange and seen.own)
    assert (record["code"], record["failed"], record["ms"]) == (seen.code, seen.failed, seen.ms)
    assert (record["status"], record["size"]) == (seen.status, len(seen.data))
    assert (record["seq"], record["answers"]) == (seen.number, seen.answers or None)
    assert (record["time"], record["redacted"]) == (RUN.time_of(seen.at), count or None)
    assert record["at"] == pytest.approx(seen.at - RUN.clock, abs=1e-6)
    if not count:
        assert (record["id"], record["target"]) == (seen.id, seen.target)
        assert record["method"] == REDACTOR.clean(seen.method)
    if level == "metadata":
        assert (record["message"], record["text"]) == (None, None)
    elif level == "truncated" and len(body) > 40:
        assert (record["message"], record["text"]) == (None, body[:40].decode("utf-8", "ignore"))
    elif record["message"] is not None:
        assert record["message"] == body.replace(b"\r", b" ").replace(b"\n", b" ")
    else:
        assert record["text"] == body.decode("utf-8", "replace")
        assert seen.kind == "invalid" or body[:1] == b'"'


TEXT = "All work and no play makes Jack a dull boy. " * 60
PLACES = st.integers(HEAD - 20, HEAD)  # around the place where a body is cut that ends like another one


@settings(max_examples=examples(300), deadline=None)
@given(
    PLACES,
    st.sampled_from(["token", "otp", "AKIA", "?"]),
    st.sampled_from(['"', '":"', " ", ""]),
    st.sampled_from(["text", "data"]),
    st.booleans(),
    st.booleans(),
)
def test_secrets_are_found_wherever_two_answers_begin_or_cease_to_differ(
    place: int, word: str, beside: str, name: str, is_first: bool, in_tail: bool
):
    head, tail = (TEXT + beside, TEXT[:place]) if in_tail else (TEXT[:place], beside + TEXT)
    plain, secret = (f'{{"{name}":"{head}{it}{tail}"}}'.encode() for it in ("#" + word[1:], word))
    bodies = [secret, plain, plain] if is_first else [plain, secret, plain]
    joined = b"\t".join(without_repeats(bodies))
    assert not is_first or len(joined) < sum(map(len, bodies))
    leaves_unchanged = REDACTOR.current.leaves_unchanged
    assert leaves_unchanged(bodies, joined) == leaves_unchanged(bodies, b"\t".join(bodies))


def test_what_only_one_of_two_long_messages_has_is_kept():
    first, other = (f'{{"text":"{TEXT}{number}"}}'.encode() for number in (1, 2))
    assert without_repeats([first, other]) == [first, other]
    assert without_repeats([first, first[:100], first]) == [first, first[:100], b'{"text":"}']


def test_what_two_legs_have_in_common_is_looked_at_once():
    seen, sent = (
        f'{{"contents":[{{"uri":"{uri}","text":"{TEXT}"}}],"name":"{name}"}}'.encode()
        for uri, name in (("a", "server"), ("s1+a", "token"))
    )
    assert without_repeats([seen, sent]) == [seen, b'{"contents":[{"uri":"s1+a","text":"}],"name":"token"}']
    blob = [data.replace(b'"text"', b'"blob"') for data in (seen, sent)]
    assert without_repeats(blob) == [blob[0], b'{"contents":[{"uri":"s1+a","blob":"}],"name":"token"}']


@pytest.mark.parametrize("around", [b"%b", b'{"text":%b}', b'"%b', b'%b"'])
def test_long_nonsense_is_left_as_it_is(around: bytes):
    bodies = [around % (b"x" * (3 * HEAD)), around % (b"x" * (3 * HEAD) + b"y")]
    assert without_repeats(bodies) == bodies


def test_rules_that_are_replaced_count_for_names_that_were_encoded_before():
    redactor = Redactor()
    leg = Leg("client", "c1", "http")
    leg.name = "pin-1234"
    seen = Observation(leg, "out", b"{}", 101.0, "result", 1, "pin-5678")
    assert b"".join(encode_lines(RUN, redactor, 40, "full", [seen])).count(b"pin-") == 2
    redactor.adopt(Redaction(patterns={"pin": r"pin-\d+"}))
    (line,) = encode_lines(RUN, redactor, 40, "full", [seen])
    assert b"pin-" not in line
    assert line.count(b"[redacted: pin]") == 2


def test_what_is_remembered_is_bounded():
    leg = Leg("client", "c1", "http")
    for number in range(2 * LEGS_CACHED):
        leg.name = f"n{number % LEGS_CACHED}" if number % 2 else None
        seen = Observation(leg, "in", b"{}", 101.0, "request", 1, f"m{number}")
        (line,) = encode_lines(RUN, REDACTOR, 40, "metadata", [seen])
        assert decode_record(line).method == f"m{number}"
    assert 0 < _remembered_texts_of.cache_info().currsize <= LEGS_CACHED
