"""Whether and where OpenTelemetry spans and metrics are sent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from attrs import field, frozen

from mcpmux.config.scalars import (
    HEADER_NAME,
    HEADER_VALUE,
    Duration,
    Flag,
    HttpUrl,
    Share,
    Text,
    Whole,
    about,
)
from mcpmux.config.secret import Secret


def _read_only(headers: Mapping[str, Secret]) -> Mapping[str, Secret]:
    return MappingProxyType(dict(headers))


@frozen(kw_only=True)
class Tracing:
    """OpenTelemetry after its conventions for MCP, sent by OTLP over HTTP. Needs the extra `otel`."""

    enabled: Annotated[bool, Flag()] = field(
        default=False, metadata=about("Make spans of exchanges and their calls of upstreams, and send them.")
    )
    endpoint: Annotated[str, HttpUrl()] | None = field(
        default=None,
        metadata=about(
            "Base URL of the collector; /v1/traces and /v1/metrics are put behind it. Default: as the "
            "OTEL_EXPORTER_OTLP_* variables say, else http://localhost:4318."
        ),
    )
    headers: Mapping[Annotated[str, HEADER_NAME], Annotated[Secret, HEADER_VALUE]] = field(
        factory=dict, converter=_read_only, metadata=about("Headers for the collector, such as its key.")
    )
    service: Annotated[str, Text("text that is not empty", r"[^\x00]+")] = field(
        default="mcpmux", metadata=about("`service.name` of everything that is sent.")
    )
    sample: Annotated[float, Share()] = field(
        default=1.0,
        metadata=about(
            "Share of the traces that begin here to be sent, 0 to 1; a caller's own trace goes by its flag."
        ),
    )
    propagate: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about(
            "Tell upstreams the trace, in `_meta` and HTTP headers; `false` leaves what clients say as it is."
        ),
    )
    metrics: Annotated[bool, Flag()] = field(
        default=True, metadata=about("Send the durations of operations as OpenTelemetry metrics, too.")
    )
    interval: Annotated[float, Duration()] = field(
        default=60.0, metadata=about("How often metrics are sent.")
    )
    queue_spans: Annotated[int, Whole(16, 1_000_000)] = field(
        default=4096, metadata=about("Spans that may wait to be sent; more are dropped, and told.")
    )
