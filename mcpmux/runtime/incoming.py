"""What the peer of one stream has asked and has no answer to yet.

Promises: each request is answered once, alone or with the rest of its batch, or not at all when the peer has
cancelled it; one that fails hurts no other. Refuses to know how many there may be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog
import trio

from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol.batch import BatchAnswer
from mcpmux.protocol.call import Event, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import Fields, Id, Request, encode_error, encode_notification, encode_reply
from mcpmux.runtime.clerk import Clerks, Job
from mcpmux.transports.pipe import MessagePipe, offer_to

log = structlog.get_logger()

Answer = Callable[[Request, Notify], Awaitable[Fields]]
"""Answers one request of the peer, or raises RpcError."""


class Incoming:
    """The peer's exchanges in progress, by id. `on_done` is called when one of them is over."""

    def __init__(self, pipe: MessagePipe, answer: Answer, on_done: Callable[[], None]) -> None:
        self._pipe = pipe
        self._offer = offer_to(pipe)
        self._answer = answer
        self._on_done = on_done
        self._exchanges: dict[Id, Job | trio.CancelScope] = {}
        self._clerks = Clerks()

    def __repr__(self) -> str:
        return f"<Incoming {len(self._exchanges)} in progress, {self._clerks!r}>"

    def __len__(self) -> int:
        return len(self._exchanges)

    def __contains__(self, request_id: Id) -> bool:
        return request_id in self._exchanges

    def begin(self, nursery: trio.Nursery, request: Request, batch: BatchAnswer | None) -> None:
        """Answer a request, whose id is not in use, in the background."""
        if batch is None:
            self._exchanges[request.id] = self._clerks.give(nursery, partial(self._serve, request))
        else:
            batch.expect()
            scope = self._exchanges[request.id] = trio.CancelScope()
            nursery.start_soon(self._serve_in_batch, request, scope, batch, name="exchange of a batch")

    def cancel(self, request_id: Id) -> bool:
        """The peer does not want an answer any more; False when there is no such exchange."""
        exchange = self._exchanges.get(request_id)
        if exchange is not None:
            exchange.cancel(reason="the peer cancelled the request")
        return exchange is not None

    def close(self) -> None:
        """The peer asks nothing more; what it has asked goes on."""
        self._clerks.dismiss()

    async def _serve(self, request: Request) -> None:
        """One request, from its arrival to its answer. A cancelled one is not answered."""
        try:
            data = await self._encoded_answer(request)
            if not self._offer(data):
                await self._send(data)
        finally:
            self._end(request)

    async def _serve_in_batch(self, request: Request, scope: trio.CancelScope, batch: BatchAnswer) -> None:
        """The same in a batch: the one that is done last sends the answers of all."""
        data: bytes | None = None
        try:
            with scope:
                data = await self._encoded_answer(request)
            if (whole := batch.settle(data)) is not None:
                await self._send(whole)
        finally:
            self._end(request)

    def _end(self, request: Request) -> None:
        del self._exchanges[request.id]
        self._on_done()

    async def _encoded_answer(self, request: Request) -> bytes:
        async def notify(event: Event) -> None:
            await self._pipe.send(encode_notification(event.method, event.params))

        try:
            return encode_reply(request.id, await self._answer(request, notify))
        except RpcError as error:
            return encode_error(request.id, error)
        except Exception:  # the wall around one request
            log.exception("request failed", method=request.method)
            return encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))

    async def _send(self, data: bytes) -> None:
        """Send to a peer that may be gone; the reader notices that on its own."""
        with suppress(TransportError):
            await self._pipe.send(data)
