"""One HTTP request of a pool as a context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from mcpmux.transports.http.client import HttpPool, HttpResponse


@asynccontextmanager
async def requested(
    pool: HttpPool,
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    *,
    idempotent: bool,
) -> AsyncIterator[HttpResponse]:
    """Its value is the response, which is released when it is left."""
    response = await pool.send(method, target, tuple(headers), body, idempotent=idempotent)
    try:
        yield response
    finally:
        response.release()
