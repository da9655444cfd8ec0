"""Tracing, when it is switched on: what makes spans, and what sends them when mcpmux stops.

Imports OpenTelemetry only then; it is the extra `otel`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
import trio

from mcpmux.config import Http, Tcp, Tracing, Unix, Upstream, WebSocket
from mcpmux.errors import ConfigError
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.redaction.redactor import Redactor

if TYPE_CHECKING:
    from mcpmux.traffic.telemetry.spans import Spans

log = structlog.get_logger()

Attributes = dict[str, str | int]
"""Of a span."""

FLUSH_SECONDS = 3.0  # for sending what waits when we stop; a collector that is down must not hold that up

MISSING = (
    "tracing: OpenTelemetry is not installed ({module} is missing); "
    "install it with: pip install 'mcpmux[otel]', or take `enabled` out of [tracing]"
)


@asynccontextmanager
async def open_tracing(
    config: Tracing, redactor: Redactor, upstreams: Iterable[Upstream]
) -> AsyncIterator[Spans]:
    """What to give to the Recorder and, as its `trace`, to the upstreams.

    Leaving sends what waits, within FLUSH_SECONDS. Raises ConfigError when the extra is missing.
    """
    try:
        from mcpmux.traffic.telemetry.otlp import start_telemetry
        from mcpmux.traffic.telemetry.spans import Spans
    except ModuleNotFoundError as error:
        raise ConfigError([MISSING.format(module=error.name)]) from None
    tracer, meter, shutdown = start_telemetry(config)
    spans = Spans(
        tracer, meter, redactor, servers_of(upstreams), trio.current_time, propagate=config.propagate
    )
    try:
        yield spans
    finally:
        spans.close()
        with trio.move_on_after(FLUSH_SECONDS, shield=True) as scope:
            await trio.to_thread.run_sync(shutdown, abandon_on_cancel=True)
        if scope.cancelled_caught:
            log.warning("traces are lost: the collector did not take them in time", seconds=FLUSH_SECONDS)


def servers_of(upstreams: Iterable[Upstream]) -> Mapping[str, Attributes]:
    """Attributes of spans: where the upstreams are that are not started by mcpmux, by name."""
    found: dict[str, Attributes] = {}
    for upstream in upstreams:
        match upstream.target:
            case Http(url=url) | WebSocket(url=url):
                parts = urlsplit(url)
                port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
                found[upstream.name] = {"server.address": parts.hostname or "", "server.port": port}
            case Tcp(host=host, port=port):
                found[upstream.name] = {"server.address": host, "server.port": port}
            case Unix(path=path):
                found[upstream.name] = {"server.address": path}
    return found


# Trace context of a request: where it stands in `_meta` and HTTP headers, and putting it there.
#
# Pure, and without OpenTelemetry: what stands there is only text here.
#
# | key | meaning |
# | --- | --- |
# | `traceparent` | trace id, id of the caller's span, flags (W3C Trace Context) |
# | `tracestate` | what makers of tracing systems add to it (W3C Trace Context) |
# | `baggage` | names and values that go along with the work (W3C Baggage) |
#
# Source: "OpenTelemetry trace context" in the Base Protocol overview, 2026-07-28.

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
BAGGAGE = "baggage"
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)

BAGGAGE_LIMIT = 8192  # characters that have to be passed on (W3C Baggage, limits); more is not

Context = dict[str, str]
"""What is there of the keys."""

_HEADER_SAFE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")


def context_in_meta(meta: Fields) -> Context:
    """The context in a request's `_meta`."""
    if TRACEPARENT not in meta and BAGGAGE not in meta:
        return {}
    return {key: text for key in KEYS if (text := text_of(meta.get(key))) is not None}


def context_in_headers(headers: Mapping[str, str]) -> Context:
    """The context in HTTP headers, whose names are in lower case."""
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
