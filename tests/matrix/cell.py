"""One cell of the matrix: mcpmux between a strict client and a strict server, over pipes or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from mcpmux import app
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import Config, Http, Merging, Upstream
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.peers.http_pipe import open_http_pipe
from tests.peers.http_server import open_http_face
from tests.peers.pipe import open_memory_pipes
from tests.peers.revision import Json
from tests.peers.strict_client import StrictClient
from tests.peers.strict_server import StrictServer
from tests.runtime.http_front import start_endpoint
from tests.runtime.world import open_world

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
PAGE_SIZE = 10  # items of a merged page

Settle = Callable[[], Any]


class Cell:
    """A client of revision `down` on a server of revision `up`, which mcpmux knows by the name `up`."""

    def __init__(self, client: StrictClient, server: StrictServer, settle: Settle) -> None:
        self.client = client
        self.server = server
        self.down = client.revision
        self.up = server.revision
        self.settle = settle
        self.introduction: Json = {}

    def since(self, revision: str) -> bool:
        """Return whether both sides speak `revision` or a later one."""
        return min(self.up, self.down) >= revision


@asynccontextmanager
async def open_cell(down: str, up: str) -> AsyncIterator[Cell]:
    """Open a cell over pipes in memory; the test needs the virtual clock. Leaving judges all messages."""
    server = StrictServer(up)
    async with open_world({"up": server}, page_size=PAGE_SIZE) as world:
        ours, theirs = open_memory_pipes()
        world.nursery.start_soon(serve_messages, theirs, world.mux.service)
        cell = Cell(StrictClient(ours, down), server, partial(trio.sleep, 5))
        world.nursery.start_soon(cell.client.run)
        cell.introduction = await cell.client.hello()
        yield cell
        server.judge()


@asynccontextmanager
async def open_http_cell(down: str, up: str) -> AsyncIterator[Cell]:
    """Open a cell with real sockets on both sides. Leaving judges all messages."""
    server = StrictServer(up)
    async with open_http_face(server) as face, trio.open_nursery() as nursery:
        config = Config(
            upstreams=(Upstream(name="up", target=Http(face.url), era="newest"),),
            merging=Merging(page_size=PAGE_SIZE, change_window=0.01),
        )
        async with app.open_mux(config) as mux:
            _, port = await start_endpoint(nursery, mux.service)
            with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool:
                async with open_http_pipe(pool) as pipe:
                    cell = Cell(StrictClient(pipe, down), server, partial(trio.sleep, 0.1))
                    nursery.start_soon(cell.client.run)
                    cell.introduction = await cell.client.hello()
                    yield cell
                    server.judge()
        nursery.cancel_scope.cancel()
