"""Trace context of a request: where it stands in `_meta` and HTTP headers, and putting it there.

Pure, and without OpenTelemetry: what stands there is only text here.

| key | says |
| --- | --- |
| `traceparent` | trace id, id of the caller's span, flags (W3C Trace Context) |
| `tracestate` | what makers of tracing systems add to it (W3C Trace Context) |
| `baggage` | names and values that go along with the work (W3C Baggage) |

Source: "OpenTelemetry trace context" in the Base Protocol overview, 2026-07-28.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.raw_json import Fields

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
BAGGAGE = "baggage"
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)

BAGGAGE_LIMIT = 8192  # characters that have to be passed on (W3C Baggage, limits); more is not

Context = dict[str, str]
"""What is there of the keys."""

_HEADER_SAFE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")


def context_in_meta(meta: Fields) -> Context:
    """The context that a request's `_meta` says."""
    if TRACEPARENT not in meta and BAGGAGE not in meta:
        return {}
    return {key: text for key in KEYS if (text := text_of(meta.get(key))) is not None}


def context_in_headers(headers: Mapping[str, str]) -> Context:
    """The context that HTTP headers say; their names in lower case."""
    return {key: headers[key] for key in KEYS if key in headers}


def with_context(call: Call, context: Mapping[str, str]) -> Call:
    """The call with that context in `_meta` in place of its own."""
    meta = {key: value for key, value in call.meta.items() if key not in KEYS}
    return call.with_meta({**meta, **{key: raw(text) for key, text in context.items()}})


def context_headers(context: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The same as HTTP headers, without what a header cannot hold."""
    return tuple((key, text) for key, text in context.items() if _HEADER_SAFE.fullmatch(text))


def baggage_to_pass(context: Mapping[str, str]) -> Context:
    """The baggage, for another leg."""
    text = context.get(BAGGAGE)
    return {BAGGAGE: text} if text and len(text) <= BAGGAGE_LIMIT else {}
