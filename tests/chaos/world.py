"""mcpmux served by this very process, so that a test can look into its tables."""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from mcpmux import app
from mcpmux.app.listeners import Serving, serve_listener
from mcpmux.channels.pending import PendingRequest
from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import Config, HttpListener, Upstream
from mcpmux.protocol.revisions import is_modern
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.transports.message_stream import open_line_stream
from mcpmux.upstreams.connection import Connection
from tests.chaos.clients import HttpClient, LineClient, LoadClient
from tests.chaos.waiting import count_descriptors, until
from tests.peers.revision import LEGACY, MODERN

T = TypeVar("T")

MESSAGE_BYTES = 2**20
REVISIONS = (MODERN, LEGACY, MODERN, LEGACY)  # of the clients over HTTP


@dataclass(frozen=True)
class Held:
    """The tasks, descriptors and objects of one moment, to be compared with another."""

    tasks: Counter[str]
    descriptors: int
    objects: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        return cls(Counter(_tasks()), count_descriptors(), len(gc.get_objects()))


def _tasks() -> list[str]:
    """Return the names of all tasks of this loop."""
    root = trio.lowlevel.current_root_task()
    waiting, names = [root], []
    while waiting:
        task = waiting.pop()
        if task is not None:
            names.append(task.name)
            waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return names


def _is_deaf(connection: Connection | None) -> bool:
    """Return whether the stream for a legacy server's own messages is not open."""
    return connection is not None and not (is_modern(connection.facts.revision) or connection.channel.hearing)


class World:
    """A running mcpmux with one HTTP listener at `port`."""

    def __init__(self, mux: app.Mux, port: int, nursery: trio.Nursery, others: dict[type, int]) -> None:
        """`others`: how many objects of a kind other tests have left behind."""
        self.mux, self._port, self._nursery = mux, port, nursery
        self._others = others

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[LoadClient]]:
        """Open some clients of both eras over HTTP, and one on a stream; all are gone afterwards."""
        async with trio.open_nursery() as nursery:
            over_http = [HttpClient(self._port, revision, nursery) for revision in REVISIONS]
            ours, theirs = (trio.SocketStream(_trio(side)) for side in socket.socketpair())
            self._nursery.start_soon(self._serve_stream, theirs, name="stream client")
            on_stream = LineClient(ours)
            nursery.start_soon(on_stream.run)
            clients: list[LoadClient] = [*over_http, on_stream]
            for client in clients:
                await client.open()
            yield clients
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                for client in clients:
                    await client.close()
                await ours.aclose()

    async def _serve_stream(self, stream: trio.SocketStream) -> None:
        async with stream, open_line_stream(stream, MESSAGE_BYTES) as pipe:
            await serve_messages(pipe, self.mux.service)

    def faults(self) -> dict[str, str]:
        """Return the reason for each session that should be ready and subscribed, and is not."""
        faults = {}
        for session in self.mux.upstreams.sessions():
            uris = self.mux.hub.subscriptions.wanted(session.key)
            if session.state != "ready":
                faults[session.key] = f"{session.state}: {session.status.trouble}"
            elif session.subscriber.asked != uris:
                faults[session.key] = f"subscribed to {session.subscriber.asked}, wanted are {uris}"
            elif _is_deaf(session.status.connection):
                faults[session.key] = "its own stream is not open (yet: it may be asked for in 5 s again)"
        return faults

    async def is_well(self, seconds: float) -> None:
        """Wait until everything is connected, subscribed and heard."""
        await until(lambda: not self.faults(), seconds)
        assert not self.faults()

    def leftovers(self) -> dict[str, object]:
        """Return the entries of tables that are left though no client is there."""
        mux = self.mux
        counts: dict[str, object] = {
            "clients": mux.upstreams.clients,
            "listeners": mux.hub.listening,
            "private sessions": len(mux.upstreams._private),
            "questions": len(mux.hub.personal.questions),
            "mailboxes": self._left(ClientOutbox),
            "tickets": self._left(PendingRequest),
            "http sessions": sum(len(endpoint.sessions) for endpoint in _found(HttpEndpoint)),
        }
        for session in mux.upstreams.sessions():
            counts[f"{session.key} wanted"] = len(mux.hub.subscriptions.wanted(session.key))
            counts[f"{session.key} asked"] = len(session.subscriber.asked)
            counts[f"{session.key} in flight"] = session.status.in_flight
            counts[f"{session.key} running"] = session.limiter.running
            counts[f"{session.key} waiting"] = session.limiter.waiting
        return {what: count for what, count in counts.items() if count}

    def _left(self, kind: type) -> int:
        return max(0, _alive(kind) - self._others[kind])

    async def is_empty(self, seconds: float) -> None:
        """Wait until no entry of any client is left."""
        await until(lambda: not self.leftovers(), seconds)
        left = self.leftovers()
        assert not left, left


def _trio(side: socket.socket) -> trio.socket.SocketType:
    return trio.socket.from_stdlib_socket(side)


def _found(kind: type[T]) -> list[T]:
    return [item for item in gc.get_objects() if type(item) is kind]


def _alive(kind: type) -> int:
    gc.collect()
    return len(_found(kind))


@asynccontextmanager
async def open_world(upstreams: list[Upstream]) -> AsyncIterator[World]:
    """Open mcpmux in front of these upstreams."""
    config = Config(upstreams=tuple(upstreams))
    urls: list[str] = []
    stopping = trio.Event()
    kinds: tuple[type, ...] = (ClientOutbox, PendingRequest)
    others = {kind: _alive(kind) for kind in kinds}
    async with app.open_mux(config) as mux, trio.open_nursery() as nursery:
        serving = Serving(config.limits, mux.service, stopping, urls.append)
        await nursery.start(serve_listener, HttpListener(host="127.0.0.1", port=0), serving)
        for upstream in mux.upstreams.values():
            await upstream.supervision.settled()
        yield World(mux, int(urls[0].rpartition(":")[2].partition("/")[0]), nursery, others)
        stopping.set()
        nursery.cancel_scope.cancel()
