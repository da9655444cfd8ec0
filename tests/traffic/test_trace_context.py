from __future__ import annotations

from typing import Any

import pytest

from mcpmux.protocol.envelope import raw
from mcpmux.traffic.telemetry.spans import (
    BAGGAGE_LIMIT,
    baggage_to_pass,
    context_headers,
    context_in_meta,
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


@pytest.mark.parametrize("text", ["", " a", "a\r\nX: 1", "a\nb", "a\x00", "ü", "a "])
def test_what_a_header_cannot_hold_is_in_none(text: str):
    assert context_headers({"traceparent": "t", "baggage": text}) == (("traceparent", "t"),)


def test_baggage_beyond_what_must_be_passed_on_is_not():
    assert baggage_to_pass({"baggage": "b" * BAGGAGE_LIMIT, "traceparent": "t"}) == {
        "baggage": "b" * BAGGAGE_LIMIT
    }
    assert baggage_to_pass({"baggage": "b" * (BAGGAGE_LIMIT + 1)}) == {}
    assert baggage_to_pass({}) == {}
