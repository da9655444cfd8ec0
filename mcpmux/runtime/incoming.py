"""What the peer of one stream has asked and has no answer to yet.

Promises: each request is answered once, alone or with the rest of its batch, or not at all when the peer has
cancelled it; one that fails hurts no other. Refuses to know how many there may be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

import structlog
import trio

from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol.call import Event, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import Request, encode_error, encode_notification, encode_reply
from mcpmux.protocol.framing import BatchAnswer
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.transports.inline import Inline, in_task
from mcpmux.transports.message_stream import MessageStream

log = structlog.get_logger()

Answer = Callable[[Request, Notify], Awaitable[Fields]]
"""Answers one request of the peer, or raises RpcError."""


class InlineExchange:
    """One request that is being answered: inline, and in a task once it needs one."""

    __slots__ = ("_attended", "_nursery", "_running", "_scope")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._running: Inline | None = None
        self._scope: trio.CancelScope | None = None
        self._attended = False

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> None:
        """Begin."""
        self._running = running = Inline(work, context, self.attend)
        if not running.start():
            self.attend()

    def attend(self) -> None:
        """From now on it has a task, unless it is over."""
        running = self._running
        if running is None or self._attended:
            return
        if running.is_over:
            if (mistake := running.error) is not None:  # of ours, outside the wall
                log.error("an exchange ended badly", exc_info=mistake)
            return
        self._attended = True
        try:
            self._nursery.start_soon(self._go_on, running, self._make_scope(), name="exchange")
        except RuntimeError:  # who serves it has ended before this connection: nothing goes on any more
            running.close()

    def _make_scope(self) -> trio.CancelScope:
        """Its scope; most are over before they need one."""
        if self._scope is None:
            self._scope = trio.CancelScope()
        return self._scope

    async def _go_on(self, running: Inline, scope: trio.CancelScope) -> None:
        with scope:
            await running.attend()

    def cancel(self, reason: str) -> None:
        """It is not to be answered any more."""
        self._make_scope().cancel(reason=reason)
        self.attend()


class Incoming:
    """The peer's exchanges in progress, by id. `on_done` is called when one of them is over."""

    def __init__(self, messages: MessageStream, answer: Answer, on_done: Callable[[], None]) -> None:
        self._messages = messages
        self._offer = messages.offer
        self._answer = answer
        self._on_done = on_done
        self._exchanges: dict[Id, InlineExchange | trio.CancelScope] = {}
        self._context = copy_context()  # each exchange has its own copy

    def __len__(self) -> int:
        return len(self._exchanges)

    def __contains__(self, request_id: Id) -> bool:
        return request_id in self._exchanges

    def begin(self, nursery: trio.Nursery, request: Request, batch: BatchAnswer | None) -> None:
        """Answer a request, whose id is not in use."""
        if batch is None:
            exchange = self._exchanges[request.id] = InlineExchange(nursery)
            exchange.start(self._serve(request), self._context.copy())
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
        """The peer asks nothing more; what it has asked goes on, in tasks that its nursery waits for."""
        for exchange in list(self._exchanges.values()):
            if isinstance(exchange, InlineExchange):
                exchange.attend()

    async def _serve(self, request: Request) -> None:
        """One request, from its arrival to its answer. A cancelled one is not answered."""
        try:
            await self._send(await self._encoded_answer(request))
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
            message = encode_notification(event.method, event.params)
            if not self._offer(message):
                await in_task()
                await self._messages.send(message)

        try:
            return encode_reply(request.id, await self._answer(request, notify))
        except Exception as error:  # the wall around one request
            if isinstance(error, RpcError):
                return encode_error(request.id, error)
            log.error("request failed", method=request.method, exc_info=error)
            return encode_error(request.id, RpcError(INTERNAL_ERROR, "Internal error"))

    async def _send(self, data: bytes) -> None:
        """Send to a peer that may be gone; the reader notices that on its own."""
        if not self._offer(data):
            await in_task()
            with suppress(TransportError):
                await self._messages.send(data)
