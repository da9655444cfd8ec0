"""Tracing switched on, with spans and metrics sent to a collector over OTLP/HTTP; and switched off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from structlog.testing import capture_logs

from mcpmux import __version__
from mcpmux.config import Http, Secret, Stdio, Tcp, Tracing, Unix, Upstream, WebSocket
from mcpmux.errors import ConfigError
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry import tracing
from mcpmux.traffic.telemetry.tracing import open_tracing, servers_of
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from tests.peers.http_server import open_http
from tests.runtime.test_flows import docs
from tests.traffic.test_spans import MODERN, URI, modern
from tests.traffic.traced_world import CALLER, TRACE, TRACEPARENT, open_over_http


class Collector:
    """A collector of OTLP over HTTP. `url` is its base. With `answers` False it does not respond."""

    def __init__(self) -> None:
        self.url = ""
        self.answers = True
        self.asked = trio.Event()
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: set[str] = set()
        self.headers: list[Mapping[str, str]] = []

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        self.asked.set()
        if not self.answers:
            await trio.sleep_forever()
        self.headers.append(request.headers)
        if request.path == "/v1/traces":
            for traced in ExportTraceServiceRequest.FromString(request.body).resource_spans:
                self._take_resource(traced.resource)
                self.spans += [span for scope in traced.scope_spans for span in scope.spans]
        elif request.path == "/v1/metrics":
            for measured in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
                self._take_resource(measured.resource)
                self.metrics |= {m.name for scope in measured.scope_metrics for m in scope.metrics}
        await reply.send(200, (("Content-Type", "application/x-protobuf"),), b"")

    def _take_resource(self, resource: Any) -> None:
        self.resources.append({pair.key: pair.value.string_value for pair in resource.attributes})


@asynccontextmanager
async def open_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    async with open_http(collector.handle) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector


def attributes_of(span: Span) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in span.attributes}


@pytest.mark.parametrize("down", ["2025-11-25", MODERN])
async def test_one_trace_over_both_legs_reaches_a_collector(down: str):
    async with open_collector() as collector:
        config = Tracing(
            enabled=True,
            endpoint=collector.url + "/",
            headers={"Authorization": Secret("Bearer k")},
            service="mux",
        )
        async with (
            open_tracing(config, Redactor(), ()) as spans,
            open_over_http(docs("2025-06-18"), spans) as (client, face),
        ):
            if down == MODERN:
                body, headers = modern(URI, traceparent=TRACEPARENT)
                await client.send(body, headers)
            else:
                session = await client.initialize(down)
                body = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": URI}
                await client.send(body, {**session, "traceparent": TRACEPARENT})
            traceparent = face.headers["resources/read"]["traceparent"]
    reads = [span for span in collector.spans if span.name == "resources/read"]
    (above,) = [span for span in reads if span.kind == Span.SPAN_KIND_SERVER]
    (below,) = [span for span in reads if span.kind == Span.SPAN_KIND_CLIENT]
    assert above.trace_id.hex() == below.trace_id.hex() == TRACE
    assert above.parent_span_id.hex() == CALLER
    assert below.parent_span_id == above.span_id
    assert traceparent == f"00-{TRACE}-{below.span_id.hex()}-01"
    assert attributes_of(above)["mcp.protocol.version"] == down
    assert attributes_of(below)["mcp.protocol.version"] == "2025-06-18"
    assert attributes_of(below)["mcpmux.upstream"] == "docs"
    assert collector.metrics == {"mcp.server.operation.duration", "mcp.client.operation.duration"}
    for resource in collector.resources:
        assert (resource["service.name"], resource["service.version"]) == ("mux", __version__)
    assert {headers["authorization"] for headers in collector.headers} == {"Bearer k"}


async def test_metrics_can_be_left_out_and_none_of_the_traces_sampled():
    async with open_collector() as collector:
        config = Tracing(enabled=True, endpoint=collector.url, metrics=False, sample=0.0)
        async with (
            open_tracing(config, Redactor(), ()) as spans,
            open_over_http(docs(), spans) as (client, _face),
        ):
            body, headers = modern(URI)
            await client.send(body, headers)
    assert not collector.asked.is_set()


async def test_a_collector_that_says_nothing_holds_up_neither_calls_nor_the_stop(monkeypatch):
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.2)
    async with open_collector() as collector:
        collector.answers = False
        config = Tracing(enabled=True, endpoint=collector.url, metrics=False)
        with capture_logs() as events, trio.fail_after(60):
            async with (
                open_tracing(config, Redactor(), ()) as spans,
                open_over_http(docs(), spans) as (client, _face),
            ):
                for _ in range(3):
                    body, headers = modern(URI)
                    assert "result" in (await client.send(body, headers)).last
        assert "traces are lost: the collector did not take them in time" in [e["event"] for e in events]


async def test_a_collector_that_is_not_there_is_told_in_the_log(monkeypatch):
    monkeypatch.setattr(tracing, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 60.0)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    await listeners[0].aclose()
    with capture_logs() as events, trio.fail_after(60):
        async with (
            open_tracing(Tracing(enabled=True, endpoint=url, metrics=False), Redactor(), ()) as spans,
            open_over_http(docs(), spans) as (client, _face),
        ):
            body, headers = modern(URI)
            assert "result" in (await client.send(body, headers)).last
    warnings = [event for event in events if event["event"] == "traces cannot be sent"]
    assert warnings and warnings[0]["log_level"] == "warning" and "export" in warnings[0]["reason"]


@pytest.mark.process
def test_opentelemetry_is_imported_only_when_it_is_wanted():
    program = (
        "import sys, mcpmux.app, mcpmux.__main__\n"
        "import mcpmux.traffic.telemetry.tracing, mcpmux.traffic.telemetry.prometheus\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'google')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


async def test_the_missing_extra_is_told_with_its_cure(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mcpmux.traffic.telemetry.spans")
    with pytest.raises(ConfigError) as caught:
        async with open_tracing(Tracing(enabled=True), Redactor(), ()):
            pass
    (problem,) = caught.value.problems
    assert problem.startswith("tracing: OpenTelemetry is not installed (opentelemetry")
    assert "pip install 'mcpmux[otel]'" in problem


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Http(url="https://a.example.com/mcp"), ("a.example.com", 443)),
        (Http(url="http://user:secret@[::1]:81/mcp?key=secret"), ("::1", 81)),
        (WebSocket(url="wss://a.example.com/"), ("a.example.com", 443)),
        (WebSocket(url="ws://a.example.com/"), ("a.example.com", 80)),
        (Tcp(host="a", port=5), ("a", 5)),
        (Unix(path="/run/a.sock"), ("/run/a.sock", None)),
        (Stdio(command="npx"), (None, None)),
    ],
)
def test_where_an_upstream_is_says_nothing_secret(target: Any, expected: Any):
    address, port = expected
    attributes = servers_of([Upstream(name="a", target=target)]).get("a", {})
    assert (attributes.get("server.address"), attributes.get("server.port")) == (address, port)
