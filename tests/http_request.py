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
    """Send a request, and yield the response, which is released at the end."""
    response = await pool.send(method, target, tuple(headers), body, idempotent=idempotent)
    try:
        yield response
    finally:
        response.release()
