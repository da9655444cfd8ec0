"""mcpmux with tracing on, its spans kept in memory: with scripted peers in memory, and on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from mcpmux import app
from mcpmux.config import Config, Http, Redaction, Upstream
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.spans import Spans
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.peers.http_client import HttpClient
from tests.peers.http_server import HttpFace, open_http_face
from tests.peers.server import ScriptedServer
from tests.runtime.http_front import start_endpoint
from tests.runtime.world import World, open_world

OVER_HTTP = Http(url="http://unused.invalid/")  # as far as attributes say; the channels are in memory
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
OTHER_TRACE = "11111111111111111111111111111111"
OTHER_TRACEPARENT = f"00-{OTHER_TRACE}-2222222222222222-01"
TRACESTATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
BAGGAGE = "userId=alice,serverNode=DF%2028"


class Memory:
    """Where spans and metrics end up."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.traces = TracerProvider(shutdown_on_exit=False)
        self.traces.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def clear(self) -> None:
        self._exporter.clear()

    def of_kind(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is kind]

    def pair(self) -> tuple[ReadableSpan, ReadableSpan]:
        """Return the only span of the client's leg and the only one of an upstream's."""
        (server,), (client,) = self.of_kind(SpanKind.SERVER), self.of_kind(SpanKind.CLIENT)
        return server, client

    def points(self, name: str) -> list[tuple[dict[str, Any], int]]:
        """Return the points of a histogram: (attributes, count)."""
        data = self._reader.get_metrics_data()
        assert data is not None
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        points = [point for m in metrics if m.name == name for point in m.data.data_points]
        return [(dict(p.attributes or {}), p.count) for p in points if isinstance(p, HistogramDataPoint)]


class Traced(NamedTuple):
    world: World
    memory: Memory


def make_spans(memory: Memory, *, propagate: bool = True, keys: tuple[str, ...] = ()) -> Spans:
    return Spans(
        memory.traces.get_tracer("test"),
        memory.meters.get_meter("test"),
        Redactor(Redaction(keys=keys)),
        {"docs": {"server.address": "docs.example.com", "server.port": 8443}},
        trio.current_time,
        propagate=propagate,
    )


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def times_of(span: ReadableSpan) -> tuple[int, int]:
    """Return when a span has begun and ended, in nanoseconds."""
    assert span.start_time is not None and span.end_time is not None
    return span.start_time, span.end_time


def recorder_of(spans: Spans) -> Recorder:
    return Recorder([spans], [spans], trio.current_time)


@asynccontextmanager
async def open_traced(
    servers: Mapping[str, ScriptedServer | None], *, propagate: bool = True, **settings: Any
) -> AsyncIterator[Traced]:
    """Open scripted servers and clients in memory."""
    settings.setdefault("settings", {name: {"target": OVER_HTTP} for name in servers})
    memory = Memory()
    spans = make_spans(memory, propagate=propagate)
    async with open_world(servers, tap=recorder_of(spans), trace=spans.trace, **settings) as world:
        yield Traced(world, memory)
        assert not spans._open


def context_of(span: ReadableSpan) -> tuple[str, str]:
    """Trace id and span id."""
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)


def parent_of(span: ReadableSpan) -> tuple[str, str] | None:
    if span.parent is None:
        return None
    return format_trace_id(span.parent.trace_id), format_span_id(span.parent.span_id)


def traceparent_of(span: ReadableSpan) -> str:
    """Return the header for a peer. Its flags include the bit for random trace ids when the id is random."""
    return "00-{}-{}-{:02x}".format(*context_of(span), span.context.trace_flags)


@asynccontextmanager
async def open_over_http(
    server: ScriptedServer, spans: Spans | None
) -> AsyncIterator[tuple[HttpClient, HttpFace]]:
    """Open mcpmux between an HTTP client and an HTTP server, on real sockets."""
    async with open_http_face(server) as face, trio.open_nursery() as nursery:
        config = Config(upstreams=(Upstream(name="docs", target=Http(url=face.url), era="newest"),))
        watching: dict[str, Any] = {} if spans is None else {"tap": recorder_of(spans), "trace": spans.trace}
        async with app.open_mux(config, **watching) as mux:
            _, port = await start_endpoint(nursery, mux.service)
            with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool:
                yield HttpClient(pool), face
            nursery.cancel_scope.cancel()
