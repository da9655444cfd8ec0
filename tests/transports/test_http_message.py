from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import LocalProtocolError
from mcpmux.transports.http.message import (
    encode_fields,
    encode_request_head,
    encode_response_head,
    has_no_body,
    http_date,
)


def test_fields_are_encoded_in_order():
    fields = (("B", "1"), ("a", "x, y\t\xe9"), ("Empty", ""))
    assert encode_fields(fields) == b"B: 1\r\na: x, y\t\xe9\r\nEmpty: \r\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "x"),
        ("A:", "x"),
        ("A\n", "x"),
        ("Ä", "x"),
        ("A", "x\n"),
        ("A", "x\0"),
        ("A", "€"),
        ("content-length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("CONNECTION", "close"),
    ],
)
def test_field_that_would_change_the_framing_is_refused(name, value):
    with pytest.raises(LocalProtocolError):
        encode_fields(((name, value),))


@pytest.mark.parametrize(
    ("status", "line"),
    [(200, b"HTTP/1.1 200 OK\r\n"), (404, b"HTTP/1.1 404 Not Found\r\n"), (299, b"HTTP/1.1 299 \r\n")],
)
def test_response_head_starts_with_the_status(status, line):
    assert encode_response_head(status, (("A", "b"),)) == line + b"A: b\r\n"


def test_request_head_starts_with_method_and_target():
    assert encode_request_head("GET", "/a?b", (("A", "b"),)) == b"GET /a?b HTTP/1.1\r\nA: b\r\n"


@pytest.mark.parametrize(
    ("status", "bodiless"), [(100, True), (200, False), (204, True), (304, True), (404, False)]
)
def test_some_statuses_have_no_body(status, bodiless):
    assert has_no_body(status) is bodiless


def test_the_example_of_the_specification() -> None:
    assert http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"


@given(st.floats(0, 253402300799))
def test_a_date_is_what_the_standard_library_says(seconds: float) -> None:
    assert http_date(seconds) == formatdate(seconds, usegmt=True)
