"""Start tracing, if it is enabled: the maker of spans, and OpenTelemetry's SDK, which sends them.

The SDK sends by OTLP over HTTP from its own threads. Promises: no global state of OpenTelemetry is
touched; queues are bounded; warnings of the SDK become events of our log. OpenTelemetry, the extra
`otel`, is imported only when tracing is on.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
import trio

from mcpmux import __version__
from mcpmux.config import Http, Tcp, Tracing, Unix, Upstream, WebSocket
from mcpmux.errors import ConfigError
from mcpmux.traffic.redaction.redactor import Redactor

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

    from mcpmux.traffic.telemetry.spans import Attributes, Spans

log = structlog.get_logger()

FLUSH_SECONDS = 3.0  # to send the rest at the end; a collector that is down must not delay that
BATCH_SPANS = 512  # sent at once
SEND_SECONDS = 5.0  # for one attempt to send; the collector is meant to be near
SCOPE = "mcpmux"

MISSING = (
    "tracing: OpenTelemetry is not installed ({module} is missing); "
    "install it with: pip install 'mcpmux[otel]', or take `enabled` out of [tracing]"
)


@asynccontextmanager
async def open_tracing(
    config: Tracing, redactor: Redactor, upstreams: Iterable[Upstream]
) -> AsyncIterator[Spans]:
    """Open the spans to give to the Recorder and, as its `trace`, to the upstreams.

    Leaving sends the rest, within FLUSH_SECONDS. Raises ConfigError when the extra is missing.
    """
    try:
        from mcpmux.traffic.telemetry.spans import Spans

        tracer, meter, shutdown = _start_sdk(config)
    except ModuleNotFoundError as error:
        raise ConfigError([MISSING.format(module=error.name)]) from None
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
    """Return attributes of spans with the addresses of upstreams that mcpmux does not start, by name."""
    servers: dict[str, Attributes] = {}
    for upstream in upstreams:
        match upstream.target:
            case Http(url=url) | WebSocket(url=url):
                parts = urlsplit(url)
                port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
                servers[upstream.name] = {"server.address": parts.hostname or "", "server.port": port}
            case Tcp(host=host, port=port):
                servers[upstream.name] = {"server.address": host, "server.port": port}
            case Unix(path=path):
                servers[upstream.name] = {"server.address": path}
    return servers


def _start_sdk(config: Tracing) -> tuple[Tracer, Meter, Callable[[], None]]:
    """Start the sending threads. The returned function sends the rest and ends them, which takes seconds."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    warnings = _SdkWarnings(logging.WARNING)
    sdk = logging.getLogger("opentelemetry")
    sdk.addHandler(warnings)
    sdk.propagate = False
    service = {"name": config.service, "version": __version__, "instance.id": str(uuid.uuid4())}
    resource = Resource.create({f"service.{key}": value for key, value in service.items()})
    headers = {name: value.reveal() for name, value in config.headers.items()} or None

    def url(path: str) -> str | None:  # None leaves it to the SDK's environment variables and default
        return f"{config.endpoint.rstrip('/')}/{path}" if config.endpoint is not None else None

    sampler = ParentBased(TraceIdRatioBased(config.sample))
    traces = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    span_exporter = OTLPSpanExporter(url("v1/traces"), headers=headers, timeout=SEND_SECONDS)
    batch, queue = min(BATCH_SPANS, config.queue_spans), config.queue_spans
    traces.add_span_processor(
        BatchSpanProcessor(span_exporter, max_queue_size=queue, max_export_batch_size=batch)
    )
    meters = None
    if config.metrics:
        exporter = OTLPMetricExporter(url("v1/metrics"), headers=headers, timeout=SEND_SECONDS)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=config.interval * 1000)
        meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)

    def shutdown() -> None:
        traces.shutdown()
        if meters is not None:
            meters.shutdown()
        sdk.removeHandler(warnings)

    # The SDK takes microseconds for each value, even if no reader exists.
    meter = (meters or NoOpMeterProvider()).get_meter(SCOPE, __version__)
    return traces.get_tracer(SCOPE, __version__), meter, shutdown


class _SdkWarnings(logging.Handler):
    """Logs the SDK's warnings as events. Called from its threads, too."""

    _count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Log the 1st, 2nd, 4th, 8th …: a collector that is down must not flood the log."""
        self._count += 1
        if self._count.bit_count() == 1:
            log.warning("traces cannot be sent", reason=record.getMessage(), so_far=self._count)
