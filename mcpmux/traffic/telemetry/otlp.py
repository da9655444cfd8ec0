"""OpenTelemetry's SDK, set up to send by OTLP over HTTP from threads of its own.

Promises: no global state of OpenTelemetry is touched; queues are bounded; what the SDK has to say comes out
as events of our log. Everything of the extra `otel` but its plain API is imported here.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from mcpmux import __version__
from mcpmux.config import Tracing

log = structlog.get_logger()

BATCH_SPANS = 512  # sent at once
SEND_SECONDS = 5.0  # for one attempt to send; the collector is meant to be near

SCOPE = "mcpmux"
_SDK_LOGGER = "opentelemetry"


def start_telemetry(config: Tracing) -> tuple[Tracer, Meter, Callable[[], None]]:
    """Start the threads that send. The function sends what waits and ends them; it blocks for seconds."""
    warnings = _SdkWarnings()
    sdk = logging.getLogger(_SDK_LOGGER)
    sdk.addHandler(warnings)
    sdk.propagate = False
    resource = Resource.create(
        {
            "service.name": config.service,
            "service.version": __version__,
            "service.instance.id": str(uuid.uuid4()),
        }
    )
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

    meter = (meters or NoOpMeterProvider()).get_meter(SCOPE, __version__)
    return traces.get_tracer(SCOPE, __version__), meter, shutdown


class _SdkWarnings(logging.Handler):
    """The SDK's warnings as events of our log. Called from its threads, too."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the 1st, 2nd, 4th, 8th …: a collector that is down must not flood the log."""
        self._count += 1
        if self._count.bit_count() == 1:
            log.warning("traces cannot be sent", reason=record.getMessage(), so_far=self._count)
