"""A head like an earlier one is read as the parser reads it: a parser without a past is the oracle."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mcpmux.config import Limits
from mcpmux.errors import McpmuxError
from mcpmux.transports.http.message import LEARNED_BYTES, LESSONS, ResponseParser, learn
from mcpmux.transports.http.request_parser import BODY, RequestParser

LIMITS = Limits(max_head_bytes=400, max_header_fields=20, max_message_bytes=40)
HEAD_LIMIT = 300
REQUEST = (
    b"POST /mcp?a HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer abc\r\nMcp-Method: x/y\r\nMcp-Name: n\r\n"
    b"X-A:\r\nContent-Length: 4\r\n\r\nbody"
)
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nDate: Fri, 21 Nov 2026 10:00:00 GMT\r\n"
    b"Content-Length: 4\r\n\r\nbody"
)
STRANGE = b"\r\n\0\t :,7z\x7f\x80"


def fields_of(message):
    lines = message.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    pairs = (line.decode().partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in pairs}


def after(changed):
    """Return a parser that has read a head twice, and its results for another one and the first again."""
    parser = RequestParser(LIMITS, "peer")
    for _ in range(2):
        parser.feed(REQUEST)
    parser.requests.clear()
    return told(parser, changed)


FACTS = (
    "method",
    "path",
    "query",
    "headers",
    "body",
    "peer",
    "http_1_0",
    "keep_alive",
    "holder",
    "principal",
)


def told(parser, pieces):
    for piece in pieces:
        if parser.refusal is None:
            parser.feed(piece)
    received = parser.body_bytes if parser.phase is BODY else 0
    requests = [
        SimpleNamespace(**{name: getattr(request, name) for name in FACTS}) for request in parser.requests
    ]
    return requests, parser.refusal, parser.phase, parser.wants_continue, received


def answered(parser, pieces):
    parser.begin()
    try:
        for piece in pieces:
            parser.feed(piece)
    except McpmuxError as error:
        return repr(error), None
    facts = (parser.status, parser.headers, parser.complete, parser.body_bytes, parser.missing)
    # Whether a connection stays open is only asked when the response is complete.
    return facts, (parser.take_body(), parser.complete and parser.keep_alive)


def taught():
    parser = ResponseParser(HEAD_LIMIT)
    for _ in range(2):
        answered(parser, [RESPONSE])
    return parser


def with_id(message, name):
    """Return a message as real peers send it, with a field that varies each time."""
    return message.replace(b"\r\n", b"\r\nX-Request-Id: %b\r\n" % name, 1)


def taught_by_ids():
    parser = ResponseParser(HEAD_LIMIT)
    for name in (b"1", b"a2", b"a3"):
        answered(parser, [with_id(RESPONSE, name)])
    return parser


def changes_of(message):
    """Yield the data with each byte replaced, left out, or something put before it."""
    for position in range(len(message) + 1):
        head, tail = message[:position], message[position:]
        yield head + tail[1:]
        for byte in STRANGE:
            yield head + bytes([byte]) + tail[1:]
            yield head + bytes([byte]) + tail


def test_changed_request_is_what_it_is_to_a_parser_without_a_past():
    for changed in changes_of(REQUEST):
        fresh = RequestParser(LIMITS, "peer")
        expected = told(fresh, [changed])
        assert after([changed]) == expected, changed
        if expected[1] is None:
            assert after([changed, REQUEST]) == told(fresh, [REQUEST]), changed


def test_changed_response_is_what_it_is_to_a_parser_without_a_past():
    for changed in changes_of(RESPONSE):
        expected = answered(ResponseParser(HEAD_LIMIT), [changed])
        assert answered(taught(), [changed]) == expected, changed


def test_changed_response_is_what_it_is_where_fields_vary():
    for changed in changes_of(with_id(RESPONSE, b"a4")):
        expected = answered(ResponseParser(HEAD_LIMIT), [changed])
        assert answered(taught_by_ids(), [changed]) == expected, changed


def test_a_field_that_has_varied_is_read_from_a_known_head():
    request, response = (with_id(message, b"something-else") for message in (REQUEST, RESPONSE))
    parser = RequestParser(LIMITS, "peer")
    for name in (b"1", b"a2", b"a3"):
        parser.feed(with_id(REQUEST, name))
    for learned, message in ((parser._known, request), (taught_by_ids()._known, response)):
        assert learned is not None
        assert learned.read(message) == (fields_of(message), len(message) - 4, 0)


@pytest.mark.parametrize("name", [b"Connection", b"Host"])
def test_what_the_parser_judges_does_not_vary(name):
    first, second = (
        REQUEST.replace(b"Host: here", b"%b: %b\r\nX-B: %b" % (name, value, value)) for value in (b"a", b"b")
    )
    learned = learn(second, fields_of(second), learn(first, fields_of(first)))
    assert learned is not None
    for message, value in ((second, "b"), (second.replace(b"X-B: b", b"X-B: c"), "c")):
        fields_read = learned.read(message)
        assert fields_read is not None
        assert fields_read[0]["x-b"] == value
    assert learned.read(second.replace(b"%b: b" % name, b"%b: c" % name)) is None


def test_the_head_of_an_interim_response_teaches_nothing():
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    early = b"HTTP/1.1 103 Early Hints\r\nContent-Length: %d\r\n\r\n" % len(final)
    parser = ResponseParser(HEAD_LIMIT)
    for _ in range(4):
        facts, (body, _) = answered(parser, [early + final])
        assert (facts[0], bytes(body)) == (200, b"hi")


@pytest.mark.parametrize("position", range(1, len(REQUEST), 7))
def test_request_in_pieces_and_several_at_once_are_what_they_were(position):
    whole, _, phase, *_ = told(RequestParser(LIMITS, "peer"), [REQUEST])
    for pieces in ([REQUEST[:position], REQUEST[position:]], [REQUEST + REQUEST], [b"\r\n" + REQUEST]):
        expected = whole * (sum(map(len, pieces)) // len(REQUEST))
        assert after(pieces)[:3] == (expected, None, phase)


@pytest.mark.parametrize("behind", [b"", b"more", RESPONSE])
def test_response_in_pieces_is_what_a_fresh_parser_reads(behind):
    for position in range(1, len(RESPONSE)):
        in_pieces = ResponseParser(HEAD_LIMIT)
        for _ in range(2):
            answered(in_pieces, [RESPONSE[:-4], RESPONSE[-4:]])
        assert in_pieces._known is not None
        pieces = RESPONSE[:position], RESPONSE[position:] + behind
        expected = answered(ResponseParser(HEAD_LIMIT), pieces)
        assert answered(taught(), pieces) == expected, position
        assert answered(in_pieces, pieces) == expected, position


@pytest.mark.parametrize(
    "other",
    [
        REQUEST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked").replace(
            b"body", b"4\r\nbody\r\n0\r\n\r\n"
        ),
        REQUEST.replace(b"X-A:", b"Transfer-Encoding: chunked"),
        REQUEST.replace(b"X-A:", b"Content-Length: 4"),
        REQUEST.replace(b"X-A:", b"Expect: 100-continue"),
        REQUEST.replace(b"X-A:", b"Upgrade: h2c\r\nConnection: upgrade"),
        REQUEST.replace(b"X-A:", b"Connection: close"),
        REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"),
        REQUEST.replace(b"Mcp-Name: n", b"Mcp-Name: n\r\nMcp-Name: m"),
        REQUEST.replace(b"Mcp-Name: n", b"Mcp-Name: " + b"n" * 400),
        REQUEST.replace(b"4\r\n\r\nbody", b"41\r\n\r\n" + b"b" * 41),
        REQUEST.replace(b"Length: 4", b"Length: " + b"9" * 30),
        REQUEST.replace(b"Length: 4", b"Length: 0000000000000000004"),
        REQUEST.replace(b"Length: 4", b"Length: +4"),
        b"GET /mcp HTTP/1.1\r\nHost: here\r\n\r\n",
    ],
)
def test_other_request_is_what_it_is_to_a_parser_without_a_past(other):
    fresh = RequestParser(LIMITS, "peer")
    expected = told(fresh, [other])
    assert after([other]) == expected
    if expected[1] is None and expected[0] and expected[0][0].keep_alive:
        assert after([other, REQUEST, REQUEST]) == told(fresh, [REQUEST, REQUEST])


@pytest.mark.parametrize(
    "other",
    [
        RESPONSE.replace(b"200 OK", b"404 Not Found"),
        RESPONSE.replace(b"200 OK", b"204 No Content"),
        RESPONSE.replace(b"200 OK", b"100 Continue") + RESPONSE,
        RESPONSE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        RESPONSE.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"),
        RESPONSE.replace(b"Content-Length: 4\r\n", b""),
        RESPONSE.replace(b"Date", b"Connection: close\r\nDate"),
        RESPONSE.replace(b"GMT", b"GMT" * 100),
        RESPONSE.replace(b"4\r\n\r\nbody", b"0\r\n\r\n"),
        RESPONSE + b"more",
        RESPONSE + RESPONSE,
    ],
)
def test_other_response_is_what_it_is_to_a_parser_without_a_past(other):
    assert answered(taught(), [other]) == answered(ResponseParser(HEAD_LIMIT), [other])


def test_old_version_is_not_taken_for_a_new_one():
    old = REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"X-A:", b"Connection: keep-alive")
    requests, *_ = told(RequestParser(LIMITS, "peer"), [old] * 3)
    assert [(request.http_1_0, request.keep_alive) for request in requests] == [(True, True)] * 3


def test_what_varies_is_read_from_a_known_head():
    other = REQUEST.replace(b"x/y", b"z").replace(b": n\r", b": other~name x\r").replace(b"abc", b"def")
    other = other.replace(b"4\r\n\r\nbody", b"2\r\n\r\n{}")
    learned = learn(REQUEST, fields_of(REQUEST))
    assert learned is not None
    assert learned.read(other) == (fields_of(other), len(other) - 2, 0)


@pytest.mark.interpreted
def test_one_software_has_one_known_head_and_it_keeps_no_secret():
    other = REQUEST.replace(b"abc", b"secret")
    learned = learn(REQUEST, fields_of(REQUEST))
    assert learned is not None
    assert learn(other, fields_of(other)) is learned
    assert "abc" not in repr([getattr(learned, name) for name in learned.__slots__])


@pytest.mark.parametrize(
    "message",
    [
        REQUEST.replace(b"X-A:", b"X-A: " + b"a" * LEARNED_BYTES),
        REQUEST.replace(b"X-A:", b"Expect: 100-continue"),
        REQUEST.replace(b"X-A:", b"Upgrade: h2c"),
        REQUEST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"),
        b"POST /mcp HTTP/1.1\r\nhost:here\r\ncontent-length:4\r\n\r\nbody",
        REQUEST + b"more",
        REQUEST.replace(b"X-A:", b"x-a: 1\r\nX-A:"),
        REQUEST.partition(b"\r\n\r\n")[0],
    ],
)
def test_unfit_head_is_not_learned(message):
    assert learn(message, fields_of(message)) is None


@pytest.mark.parametrize(("length", "learned"), [(2000, True), (9000, False)])
def test_a_token_may_be_long_but_not_endless(length, learned):
    message = REQUEST.replace(b"abc", b"a" * length)
    head = learn(message, fields_of(message))
    assert (head is not None) is learned


def test_who_never_says_the_same_is_not_listened_to_for_ever():
    parser = RequestParser(LIMITS, "peer")
    heads = set()
    for number in range(3 * LESSONS):
        parser.feed(REQUEST.replace(b"X-A:", b"X-%d:" % number))
        heads.add(parser._known)
    assert len(heads) == LESSONS + 1  # None is one: the only request of a connection is not learned
    assert len(parser.requests) == 3 * LESSONS
