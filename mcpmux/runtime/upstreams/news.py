"""Notifications of clients on their way to one upstream: equal ones wait as one, and none for a server."""

from __future__ import annotations

import structlog
import trio

from mcpmux.errors import TransportError
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.upstreams.connection import Connection

log = structlog.get_logger()

NEWS_LIMIT = 256  # notifications of clients that wait for a server; more is a flood


class News:
    """What one upstream is to be told. `run` has to run while a connection lasts."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, bytes], Fields] = {}
        self._arrival = trio.Event()

    def __repr__(self) -> str:
        return f"<News {len(self._waiting)}>"

    def put_nowait(self, method: str, params: Fields) -> bool:
        """Have it passed on, once. False when too much waits already."""
        key = (method, bytes(raw(params)))
        if len(self._waiting) >= NEWS_LIMIT and key not in self._waiting:
            return False
        self._waiting[key] = params
        self._arrival.set()
        return True

    async def run(self, connection: Connection) -> None:
        """Pass on what comes, until cancelled."""
        while True:
            await self._arrival.wait()
            news, self._waiting = self._waiting, {}
            self._arrival = trio.Event()
            for (method, _), params in news.items():
                try:
                    await connection.tell(method, params)
                except TransportError as error:
                    log.debug("notification not passed on", method=method, reason=str(error))
