"""`/metrics` of the admin listener, for Prometheus. It needs the token, as everything there does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mcpmux.traffic.admin.route import Route, Visit
from mcpmux.traffic.telemetry.metrics import Metrics
from mcpmux.traffic.telemetry.prometheus import CONTENT_TYPE, Gauge, render
from mcpmux.transports.http.message import Fields

PATH = "/metrics"

_FIELDS: Fields = (
    ("Content-Type", CONTENT_TYPE),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)


def metrics_route(metrics: Metrics, gauges: Sequence[Gauge]) -> Route:
    """What `serve_admin` takes as one of `more`."""

    async def read() -> bytes:
        return render(metrics, gauges)

    return text_route(read)


def text_route(read: Callable[[], Awaitable[bytes]]) -> Route:
    """The same, with what `read` says."""

    async def handle(visit: Visit) -> None:
        await visit.reply.send(200, _FIELDS, await read())

    return Route(PATH, handle)
