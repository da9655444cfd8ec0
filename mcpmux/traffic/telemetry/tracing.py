"""Tracing, when it is switched on: what makes spans, and what sends them when mcpmux stops.

Imports OpenTelemetry only then; it is the extra `otel`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
import trio

from mcpmux.config import Http, Tcp, Tracing, Unix, Upstream, WebSocket
from mcpmux.errors import ConfigError
from mcpmux.traffic.redaction.redactor import Redactor

if TYPE_CHECKING:
    from mcpmux.traffic.telemetry.otlp import Telemetry
    from mcpmux.traffic.telemetry.span_attributes import Server
    from mcpmux.traffic.telemetry.spans import Spans

log = structlog.get_logger()

FLUSH_SECONDS = 3.0  # for sending what waits when we stop; a collector that is down must not hold that up

MISSING = (
    "tracing: OpenTelemetry is not installed ({module} is missing); "
    "install it with: pip install 'mcpmux[otel]', or take `enabled` out of [tracing]"
)


@asynccontextmanager
async def open_tracing(
    config: Tracing, redactor: Redactor, upstreams: Iterable[Upstream]
) -> AsyncIterator[Spans | None]:
    """What to give to the Recorder and, as its `trace`, to the upstreams; None when tracing is off.

    Leaving sends what waits, within FLUSH_SECONDS. Raises ConfigError when the extra is missing.
    """
    if not config.enabled:
        yield None
        return
    try:
        from mcpmux.traffic.telemetry.otlp import start_telemetry
        from mcpmux.traffic.telemetry.spans import Spans
    except ModuleNotFoundError as error:
        raise ConfigError([MISSING.format(module=error.name)]) from None
    telemetry = start_telemetry(config)
    spans = Spans(
        telemetry.tracer,
        telemetry.meter,
        lambda text: redactor.redact_text(text)[0],
        servers_of(upstreams),
        trio.current_time,
        propagate=config.propagate,
    )
    try:
        yield spans
    finally:
        spans.close()
        await _flush(telemetry)


async def _flush(telemetry: Telemetry) -> None:
    with trio.move_on_after(FLUSH_SECONDS, shield=True) as scope:
        await trio.to_thread.run_sync(telemetry.shutdown, abandon_on_cancel=True)
    if scope.cancelled_caught:
        log.warning("traces are lost: the collector did not take them in time", seconds=FLUSH_SECONDS)


def servers_of(upstreams: Iterable[Upstream]) -> Mapping[str, Server]:
    """Where the upstreams are that are not started by mcpmux, by name."""
    from mcpmux.traffic.telemetry.span_attributes import Server

    found = {}
    for upstream in upstreams:
        match upstream.target:
            case Http(url=url) | WebSocket(url=url):
                parts = urlsplit(url)
                port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
                found[upstream.name] = Server(parts.hostname or "", port)
            case Tcp(host=host, port=port):
                found[upstream.name] = Server(host, port)
            case Unix(path=path):
                found[upstream.name] = Server(path, None)
    return found
