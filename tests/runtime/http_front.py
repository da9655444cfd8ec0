"""The HTTP endpoint of a mux of this process on a real socket, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.clients.service import Service
from mcpmux.config import HttpListener, Limits
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.peers.http_client import HttpClient
from tests.peers.http_server import start_http
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world

FEW_SESSIONS = Limits(max_sessions=10)


async def start_endpoint(
    nursery: trio.Nursery,
    service: Service,
    listener: HttpListener | None = None,
    sessions: Limits = FEW_SESSIONS,
    *parts: Any,
    serving: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[HttpEndpoint, int]:
    """Serve clients until the nursery ends; return the endpoint and its port.

    `parts` and `more`: other arguments of `HttpEndpoint`; `serving`: arguments of `serve_http`.
    """
    endpoint = HttpEndpoint(service, listener or HttpListener(port=0), sessions, *parts, **more)
    await nursery.start(endpoint.sessions.run)
    port = await start_http(nursery, endpoint.handle, **{"grants": endpoint.grants, **(serving or {})})
    return endpoint, port


@asynccontextmanager
async def open_endpoint(
    servers: dict[str, Any] | None = None,
    *,
    body_bytes: int = 1 << 20,
    max_sessions: int = 10,
    **watching: Any,
) -> AsyncIterator[HttpClient]:
    """Serve a world over HTTP: give a client of it."""
    async with open_world(servers or {"docs": docs(), "more": docs()}, **watching) as world:
        serving = {
            "inline": True,
            "limits": Limits(max_message_bytes=body_bytes),
            "poller": world.mux.poller,
        }
        sessions = Limits(max_sessions=max_sessions)
        _, port = await start_endpoint(world.nursery, world.mux.service, sessions=sessions, serving=serving)
        with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool:
            yield HttpClient(pool, world)
