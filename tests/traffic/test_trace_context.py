from __future__ import annotations

from typing import Any

import pytest

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.traffic.telemetry.spans import (
    BAGGAGE_LIMIT,
    baggage_to_pass,
    context_headers,
    context_in_headers,
    context_in_meta,
    with_context,
)


def meta(**members: Any) -> dict[str, Any]:
    return {key: raw(value) for key, value in members.items()}


@pytest.mark.parametrize(
    ("members", "context"),
    [
        ({}, {}),
        ({"other": "x", "tracestate": "a=1"}, {}),
        ({"traceparent": "t"}, {"traceparent": "t"}),
        ({"traceparent": "t", "tracestate": "a=1"}, {"traceparent": "t", "tracestate": "a=1"}),
        ({"baggage": "b=1", "tracestate": 5}, {"baggage": "b=1"}),
        ({"traceparent": None, "baggage": ["b"]}, {}),
    ],
)
def test_context_in_meta_is_its_text(members: dict[str, Any], context: dict[str, str]):
    assert context_in_meta(meta(**members)) == context


def test_context_in_headers_is_that_of_the_three_keys():
    headers = {"traceparent": "t", "baggage": "b=1", "cookie": "c"}
    assert context_in_headers(headers) == {"traceparent": "t", "baggage": "b=1"}
    assert context_in_headers({}) == {}


def test_context_takes_the_place_of_the_clients_and_nothing_else_changes():
    call = Call("ping", {}, meta(progressToken=1, traceparent="old", tracestate="old"), client := object())
    changed = with_context(call, {"traceparent": "new"})
    assert changed.meta == meta(progressToken=1, traceparent="new")
    assert changed.client is client
    assert call.meta == meta(progressToken=1, traceparent="old", tracestate="old")


def test_what_is_put_into_meta_is_found_there():
    context = {"traceparent": "t", "tracestate": "a=1", "baggage": 'b="\\ü'}
    assert context_in_meta(with_context(Call("ping", {}, {}), context).meta) == context


@pytest.mark.parametrize("text", ["", " a", "a\r\nX: 1", "a\nb", "a\x00", "ü", "a "])
def test_what_a_header_cannot_hold_is_in_none(text: str):
    assert context_headers({"traceparent": "t", "baggage": text}) == (("traceparent", "t"),)


def test_baggage_beyond_what_must_be_passed_on_is_not():
    assert baggage_to_pass({"baggage": "b" * BAGGAGE_LIMIT, "traceparent": "t"}) == {
        "baggage": "b" * BAGGAGE_LIMIT
    }
    assert baggage_to_pass({"baggage": "b" * (BAGGAGE_LIMIT + 1)}) == {}
    assert baggage_to_pass({}) == {}
