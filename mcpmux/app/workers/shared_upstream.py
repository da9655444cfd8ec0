"""Serve one server to all workers: a mux in the supervisor passes its messages on at a Unix socket.

Workers are connected exactly as long as the server is. When the configuration replaces or removes it, they
leave once they have their answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
import trio
from trio.abc import Stream

from mcpmux.app.mux import Mux, open_mux
from mcpmux.channels.tap import Tap
from mcpmux.clients.legacy_session import Session
from mcpmux.clients.service import Elsewhere
from mcpmux.clients.stream_clients import StreamClients
from mcpmux.config import Config
from mcpmux.errors import RpcError
from mcpmux.files import PRIVATE
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import Request
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.runtime.sessions import SessionCounter
from mcpmux.transports.stream import open_unix_listener, serve_streams
from mcpmux.upstreams.registry import RETIRE_SECONDS
from mcpmux.upstreams.upstream import Upstream as Server

log = structlog.get_logger()

CHECK_SECONDS = 0.1  # between two checks whether a lost server is back
CONNECTIONS = 4096  # of workers; each has one for all clients, and one more for its legacy clients
LEAVE_SECONDS = 5.0  # for workers to follow a configuration, after which their exchanges have RETIRE_SECONDS


@dataclass(eq=False)
class SharedUpstream:
    """One shared server, while `run` runs. `path`: of the socket for workers.

    `on_ready` gets the upstream's name each time that the server is connected. `former`: the one that was
    shared under that name before, whose process must end first. `mux`: set by `run`. `listening`: set once
    workers can connect, or the socket cannot be made. `ended`: set at its end.
    """

    name: str
    path: Path
    config: Config
    on_ready: Callable[[str], None]
    former: SharedUpstream | None = None
    mux: Mux | None = None
    listening: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _leaving: trio.Event = field(default_factory=trio.Event)

    def apply(self, config: Config) -> None:
        self.config = config
        if self.mux is not None:
            self.mux.apply(config)

    def restart(self) -> None:
        """Replace the process of the server."""
        if self.mux is not None:
            self.mux.restart(self.name)

    def leave(self) -> None:
        """End once all workers have left, which do so when none of their exchanges is in flight."""
        self._scope.deadline = trio.current_time() + LEAVE_SECONDS + RETIRE_SECONDS
        self._leaving.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `leave`. Raises TransportError when the socket cannot be made."""
        try:
            with self._scope:
                async with open_unix_listener(str(self.path), PRIVATE) as listener:
                    self.listening.set()
                    task_status.started()  # workers can connect, and wait
                    # A program starts after the one before has ended, as it does without workers.
                    if self.former is not None:
                        await self.former.ended.wait()
                        self.former = None
                    async with open_mux(self.config) as self.mux, trio.open_nursery() as nursery:
                        # Workers wait for the next process meanwhile, and could bring no answer.
                        self.mux.upstreams.waits_for_clients = False
                        nursery.start_soon(self._tell_when_ready, self.mux)
                        serve_one = partial(self._serve, self.mux)
                        await serve_streams([listener], serve_one, self._leaving, CONNECTIONS, CONNECTIONS)
                        nursery.cancel_scope.cancel(reason="it is not shared any more")
        finally:
            self.listening.set()
            self.ended.set()

    async def _tell_when_ready(self, mux: Mux) -> None:
        announced = None
        while True:
            connection = mux.upstreams[self.name].status.connection
            if connection is not None and connection is not announced:
                announced = connection
                self.on_ready(self.name)
                await connection.closed.wait()
            await trio.sleep(CHECK_SECONDS)

    async def _serve(self, mux: Mux, stream: Stream, crowded: str) -> None:
        server = mux.upstreams[self.name]
        await server.supervision.settled()
        connection = server.status.connection
        async with trio.open_nursery() as nursery:
            if connection is not None:
                # A worker that loses its connection connects again, and so learns the new server's facts.
                async def end_with_server() -> None:
                    await connection.closed.wait()
                    if mux.upstreams[self.name] is server:  # else it was replaced, and the worker knows
                        nursery.cancel_scope.cancel(reason="the server was lost")

                nursery.start_soon(end_with_server)
            clients = StreamClients(_Service(mux, server), self.config.limits, trio.Event(), None)
            await clients.serve(stream, crowded)
            nursery.cancel_scope.cancel()


class _Service:
    """The service for workers: answers calls as those of no known client, and with errors while the server is
    down.
    """

    tap: Tap | None = None
    session_counter = SessionCounter()
    elsewhere: Elsewhere | None = None

    def __init__(self, mux: Mux, server: Server) -> None:
        self._service, self._upstreams = mux.service, mux.upstreams
        self._server = server

    def _require_server(self) -> None:
        # A call for one that was replaced goes to the next one, and waits until that is connected.
        is_replaced = self._upstreams[self._server.name] is not self._server
        # A worker that connects while the server is down gets the reason as an error.
        if self._server.status.connection is None and not is_replaced:
            raise RpcError(UPSTREAM_UNAVAILABLE, self._server.status.trouble)

    async def answer(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        self._require_server()
        # The calls of one worker may come from many clients. So a question of a legacy server during several
        # calls is refused, as with stateless clients.
        return await self._service.answer(request_id, call.with_client(None), notify)

    async def initialize(self, request: Request, principal: Principal = ANYONE) -> tuple[Session, Fields]:
        self._require_server()
        return await self._service.initialize(request, principal)

    def enter(self, principal: Principal, view: str, query: str = "") -> Principal | None:
        return self._service.enter(principal, view, query)

    def judging(self, principal: Principal) -> Awaitable[list[str]] | None:
        return self._service.judging(principal)

    def leave(self, client: object) -> None:
        self._service.leave(client)

    def roots_changed(self) -> None:
        self._service.roots_changed()
