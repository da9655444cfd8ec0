"""Make OpenTelemetry spans of exchanges, after the semantic conventions for MCP.

A client's request is a span of kind SERVER, from its admission to its outcome; each request to an upstream
adds one of kind CLIENT below it. A SERVER span continues the trace in the request's `_meta`;
else the one in the HTTP request's headers, which is otherwise linked. Upstreams get the context of the CLIENT
span in `_meta` and in HTTP headers.

Requests of mcpmux itself (handshakes, subscriptions that many clients share) belong to no exchange and have
no spans. Untrusted text passes the Redactor and is cut. No call waits: a finished span goes into a
queue of the SDK.

Source: "Semantic conventions for Model Context Protocol (MCP)" of open-telemetry/semantic-conventions-genai
(status: development), October 2026; SEP-414 for `_meta`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import opentelemetry.trace as otel
import trio
from opentelemetry.context import Context as OtelContext
from opentelemetry.metrics import Meter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mcpmux.channels.tap import EXCHANGE, TRACE_HEADERS, Leg
from mcpmux.errors import Overdue, RpcError
from mcpmux.lru import Lru
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.protocol.revisions import SUPPORTED
from mcpmux.traffic.capture.line import fingerprint
from mcpmux.traffic.observer import Exchange, Observation
from mcpmux.traffic.outcome import TOOL_ERROR, is_tool_error
from mcpmux.traffic.record import cut
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.metrics import METHODS, LabelNames

Attributes = dict[str, str | int]  # of a span

ARRIVED_LIMIT = 4096  # ids of requests that are not admitted yet; far more than wait at any time
ARRIVED_BYTES = 4 * 2**20  # of those

# Bounds that the conventions ask for, in seconds.
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)

_W3C = TraceContextTextMapPropagator()


class _OpenSpan(NamedTuple):
    """A span that has begun. `baggage`: from the client."""

    kind: otel.SpanKind
    span: otel.Span
    attributes: Attributes
    baggage: Context


_UPSTREAM_CALL: ContextVar[tuple[otel.Span, str] | None] = ContextVar("asked", default=None)
"""The span and the method of a task's request to an upstream."""


@dataclass(eq=False)
class Spans:
    """A MessageObserver and an ExchangeObserver; `trace` is a runtime.tap.Trace. `clock` returns seconds.

    `propagate`: whether the trace context is sent to upstreams.
    """

    _tracer: otel.Tracer
    _meter: Meter
    _redactor: Redactor
    _servers: Mapping[str, Attributes]
    _clock: Callable[[], float]
    propagate: bool = True

    most_waiting = 1
    passes = False

    def __post_init__(self) -> None:
        self._open: dict[int, _OpenSpan] = {}
        self._arrived: Lru[int, Id] = Lru(ARRIVED_LIMIT, ARRIVED_BYTES)
        self._names = {otel.SpanKind.SERVER: LabelNames(), otel.SpanKind.CLIENT: LabelNames()}
        self._durations = {
            kind: self._meter.create_histogram(
                f"mcp.{kind.name.lower()}.operation.duration",
                unit="s",
                description=f"Duration of MCP requests as seen by the {kind.name.lower()}.",
                explicit_bucket_boundaries_advisory=BOUNDS,
            )
            for kind in self._names
        }

    def know(self, servers: Mapping[str, Attributes]) -> None:
        """Use another set of upstreams."""
        self._servers = servers

    def expect(self, settle: Callable[[], None]) -> None:
        """Ignore it, as no message waits. See MessageObserver."""

    def take_all(self, batch: Sequence[Observation]) -> None:
        """Note the ids of requests for their spans. See MessageObserver."""
        for observed in batch:
            if observed.kind != "request" or observed.id is None:
                continue
            if observed.leg.side == "client" and observed.direction == "in":
                self._arrived[observed.exchange] = observed.id
            elif observed.leg.side == "upstream" and observed.direction == "out":
                upstream_call = _UPSTREAM_CALL.get()
                if upstream_call is None:
                    continue
                span, method = upstream_call
                if method == observed.method and span.is_recording():
                    span.set_attribute("jsonrpc.request.id", str(observed.id))

    async def admit(self, exchange: Exchange) -> None:
        """Begin the SERVER span of an exchange. See ExchangeObserver."""
        call = exchange.call
        meta_context = context_in_meta(call.meta)
        header_context = {key: exchange.headers[key] for key in KEYS if key in exchange.headers}
        parent, ambient = _extract(meta_context), _extract(header_context)
        above = otel.NonRecordingSpan(parent if parent.is_valid else ambient)
        baggage = baggage_to_pass(meta_context) or baggage_to_pass(header_context)
        opened = self._open[exchange.number] = self._begin(
            otel.SpanKind.SERVER, exchange.leg, call, above, baggage
        )
        opened.span.set_attribute("mcpmux.exchange", exchange.number)
        if (request_id := self._arrived.pop(exchange.number)) is not None:
            opened.span.set_attribute("jsonrpc.request.id", self._text(str(request_id), NAME_LIMIT))
        if parent.is_valid and ambient.is_valid and ambient != parent:
            opened.span.add_link(ambient)

    async def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> None:
        """End the SERVER span of an exchange. See ExchangeObserver."""
        opened = self._open.pop(exchange.number, None)
        if opened is None:
            return
        context = otel.set_span_in_context(opened.span, OtelContext())
        for verdict in exchange.intercepted:
            attributes = {"mcpmux.interceptor": verdict.name, "mcpmux.verdict": verdict.verdict}
            # The wall's time of now, less what has passed since: as the tracer measures its other spans.
            began = time.time_ns() - int((trio.current_time() - verdict.began) * 1e9)
            name = f"intercept {verdict.on}"
            inner = self._tracer.start_span(name, context, attributes=attributes, start_time=began)
            inner.end(began + int(verdict.seconds * 1e9))
        self._end(opened, exchange.leg, exchange.call.method, outcome, seconds)

    async def trace(self, leg: Leg, call: Call, work: Callable[[Call], Awaitable[Fields]]) -> Fields:
        """Do the work of a request to an upstream within a CLIENT span. See runtime.tap.Trace."""
        above = self._open.get(EXCHANGE.get())
        if above is None:
            return await work(call)
        opened = self._begin(otel.SpanKind.CLIENT, leg, call, above.span, above.baggage)
        token = _UPSTREAM_CALL.set((opened.span, call.method))
        # Set to its present value only to have a token, so that `reset` restores it in any case.
        headers = TRACE_HEADERS.set(TRACE_HEADERS.get())
        if self.propagate:
            context: Context = {}
            _W3C.inject(context, otel.set_span_in_context(opened.span, OtelContext()))
            context |= above.baggage
            TRACE_HEADERS.set(context_headers(context))
            meta = {key: value for key, value in call.meta.items() if key not in KEYS}
            call = call.with_meta({**meta, **{key: raw(text) for key, text in context.items()}})
        began = self._clock()
        outcome: Fields | BaseException = {}
        try:
            outcome = await work(call)
            return outcome
        except BaseException as error:
            outcome = error
            raise
        finally:
            TRACE_HEADERS.reset(headers)
            _UPSTREAM_CALL.reset(token)
            self._end(opened, leg, call.method, outcome, self._clock() - began)

    def close(self) -> None:
        """End all open spans."""
        for opened in self._open.values():
            opened.span.end()
        self._open.clear()

    def _begin(
        self, kind: otel.SpanKind, leg: Leg, call: Call, above: otel.Span, baggage: Context
    ) -> _OpenSpan:
        attributes: Attributes = {"mcp.method.name": self._text(call.method, NAME_LIMIT)}
        attributes |= _TRANSPORTS.get(leg.transport, {})
        attributes |= self._of_session(leg)
        if call.method == m.TOOLS_CALL:
            attributes["gen_ai.operation.name"] = "execute_tool"
        if call.method in _NAMED and (named := call.text("name")) is not None:
            attributes[_NAMED[call.method]] = self._text(named, NAME_LIMIT)
        if call.method in _WITH_URI and (uri := call.text("uri")) is not None:
            attributes["mcp.resource.uri"] = self._text(uri, TEXT_LIMIT)
        if leg.upstream is not None:
            attributes |= {"mcpmux.upstream": leg.upstream, **self._servers.get(leg.upstream, {})}
        name = call.method if call.method in METHODS else OTHER  # without the URI, which has too many values
        if target := attributes.get(_NAMED.get(call.method, "")):
            name = f"{name} {target}"
        context = otel.set_span_in_context(above, OtelContext())
        return _OpenSpan(kind, self._tracer.start_span(name, context, kind, attributes), attributes, baggage)

    def _end(
        self, opened: _OpenSpan, leg: Leg, method: str, outcome: Fields | BaseException, seconds: float
    ) -> None:
        kind, span, attributes, _ = opened
        error = error_type(method, outcome)
        agreed = self._of_session(leg)  # again, for the exchange may have agreed on the revision
        attributes |= agreed
        span.set_attributes(agreed)
        if error is not None:
            span.set_attribute("error.type", error)
            about = None
            if isinstance(outcome, RpcError):
                span.set_attribute("rpc.response.status_code", error)
                about = self._text(outcome.message, TEXT_LIMIT)
            span.set_status(otel.Status(otel.StatusCode.ERROR, about))
        span.end()
        self._durations[kind].record(seconds, measured(attributes, error, self._names[kind]))

    def _of_session(self, leg: Leg) -> Attributes:
        attributes: Attributes = {}
        if leg.revision is not None:
            attributes["mcp.protocol.version"] = self._text(leg.revision, NAME_LIMIT)
        if leg.session is not None:  # it is a credential: only its fingerprint
            attributes["mcp.session.id"] = fingerprint(leg.session)
        return attributes

    def _text(self, text: str, limit: int) -> str:
        if text in _OURS:
            return text
        return cut(self._redactor.redact_text(text)[0].encode("utf-8", "replace").decode(), limit)


def error_type(method: str, outcome: Fields | BaseException) -> str | None:
    """Return `error.type` of the conventions, None for success. Ending a listen is no error."""
    if isinstance(outcome, RpcError):
        return str(outcome.code)
    if isinstance(outcome, trio.Cancelled):
        if method == m.LISTEN:
            return None
        return "timeout" if outcome.source == "deadline" else "cancelled"
    if isinstance(outcome, Overdue):
        return "timeout"
    if isinstance(outcome, BaseException):
        return type(outcome).__name__
    return TOOL_ERROR if method == m.TOOLS_CALL and is_tool_error(outcome) else None


def _extract(context: Context) -> otel.SpanContext:
    if TRACEPARENT not in context:
        return otel.INVALID_SPAN_CONTEXT
    return otel.get_current_span(_W3C.extract(context, OtelContext())).get_span_context()


# Names and attributes of spans.

TEXT_LIMIT = 2048  # characters of a URI or a message
NAME_LIMIT = 200  # characters of a name, method or id

OTHER = "_OTHER"  # replaces a value with too many variants, in the conventions' spelling

_TRANSPORTS = {
    "stdio": {"network.transport": "pipe"},
    "http": {"network.transport": "tcp", "network.protocol.name": "http"},
    "sse": {"network.transport": "tcp", "network.protocol.name": "http"},
    "websocket": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "tcp": {"network.transport": "tcp"},
    "unix": {"network.transport": "unix"},
}
_NAMED = {m.TOOLS_CALL: "gen_ai.tool.name", m.PROMPTS_GET: "gen_ai.prompt.name"}
_WITH_URI = frozenset({m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})

_OURS = METHODS | set(SUPPORTED)  # words of the protocol, which need no redaction

_MEASURED = frozenset(
    {"mcp.protocol.version", "network.transport", "network.protocol.name", "mcpmux.upstream"}
    | {"server.address", "server.port", "gen_ai.operation.name"}
)


def measured(attributes: Attributes, error: str | None, names: LabelNames) -> Attributes:
    """Return those attributes of a span that a metric may have, too: the ones with few values."""
    measured = {key: value for key, value in attributes.items() if key in _MEASURED}
    method = attributes["mcp.method.name"]
    measured["mcp.method.name"] = method if method in METHODS else OTHER
    if error is None or error == TOOL_ERROR:  # else the name may be invented
        for key in _NAMED.values():
            if key in attributes and names.allow(attributes[key], error):
                measured[key] = attributes[key]
    if error is not None:
        measured["error.type"] = error
    return measured


# Trace context of a request, in `_meta` and HTTP headers.
#
# Source: "OpenTelemetry trace context" in the Base Protocol overview, 2026-07-28.

TRACEPARENT = "traceparent"  # trace id, id of the caller's span, flags (W3C Trace Context)
TRACESTATE = "tracestate"  # additions of tracing systems (W3C Trace Context)
BAGGAGE = "baggage"  # names and values that accompany the work (W3C Baggage)
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)

BAGGAGE_LIMIT = 8192  # characters that must be passed on (W3C Baggage, limits); a longer one is dropped

Context = dict[str, str]  # the present ones of KEYS

_HEADER_SAFE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")


def context_in_meta(meta: Fields) -> Context:
    """Return the context in a request's `_meta`."""
    if TRACEPARENT not in meta and BAGGAGE not in meta:
        return {}
    return {key: text for key in KEYS if (text := text_of(meta.get(key))) is not None}


def context_headers(context: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the context as HTTP headers, without values that a header cannot hold."""
    return tuple((key, text) for key, text in context.items() if _HEADER_SAFE.fullmatch(text))


def baggage_to_pass(context: Mapping[str, str]) -> Context:
    """Return the baggage for another leg."""
    text = context.get(BAGGAGE)
    return {BAGGAGE: text} if text and len(text) <= BAGGAGE_LIMIT else {}
