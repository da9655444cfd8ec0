"""What the peer of one stream has asked and has no answer to yet.

Promises: each request is answered once, alone or with the rest of its batch, or not at all when the peer has
cancelled it; one that fails hurts no other. Refuses to know how many there may be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog
import trio

from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol.call import Event, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import Request, encode_error, encode_notification, encode_reply
from mcpmux.protocol.framing import BatchAnswer
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.shapes import Id
from mcpmux.runtime.clerk import Clerks, Job
from mcpmux.transports.pipe import MessagePipe, offer_to

# Requests of a peer that were passed on at once, and that no task waits for.
#
# Promises: such a request goes from the reader of one peer to the pipe of the other, and its answer back:
# no task is in between. One carries it on as soon as there is anything else to do than to take its result.


class Forwarded(Protocol):
    """A request that was passed on. Either `take` or `carry_on` must follow."""

    @property
    def posted(self) -> bool:
        """Whether it was sent; when not, there is nothing to `take`, and `carry_on` sends it."""
        ...

    def tell(self, hear: Callable[[], None] | None) -> None:
        """From now on `hear` is called whenever there may be something to take, or to carry on with."""
        ...

    def take(self) -> Fields | None:
        """The answer, the request being done with; None when there is more to it. Raises RpcError."""
        ...

    def carry_on(self, notify: Notify) -> Awaitable[Fields]:
        """Wait for the answer. Raises RpcError."""
        ...


Forward = Callable[[Request], Forwarded | None]
"""Passes a request on; None, and nothing is sent, when it has to be answered in the ordinary way.

The same when it raises RpcError. Anything else is a mistake of ours: the request may have been sent or not.
"""


def forward_nothing(_request: Request) -> None:
    """Every request is answered in the ordinary way."""


log = structlog.get_logger()

Answer = Callable[[Request, Notify], Awaitable[Fields]]
"""Answers one request of the peer, or raises RpcError."""


class _Pending:
    """A request that was passed on and that no task waits for.

    pending --answered or carried on--> gone
    """

    __slots__ = ("_incoming", "forwarded", "nursery", "request")

    def __init__(
        self, incoming: Incoming, nursery: trio.Nursery, request: Request, forwarded: Forwarded
    ) -> None:
        self._incoming = incoming
        self.nursery = nursery
        self.request = request
        self.forwarded = forwarded
        forwarded.tell(self._take)

    def __repr__(self) -> str:
        return f"<_Pending {self.request.method} {self.forwarded!r}>"

    def _take(self) -> None:
        self._incoming.take(self)

    def cancel(self, reason: str) -> None:
        """It is not to be answered any more: the task that carries it on is cancelled."""
        self._incoming.carry_on(self).cancel(reason)


class Incoming:
    """The peer's exchanges in progress, by id. `on_done` is called when one of them is over."""

    def __init__(
        self,
        pipe: MessagePipe,
        answer: Answer,
        on_done: Callable[[], None],
        forward: Forward = forward_nothing,
    ) -> None:
        self._pipe = pipe
        self._offer = offer_to(pipe)
        self._answer = answer
        self._forward = forward
        self._on_done = on_done
        self._exchanges: dict[Id, Job | _Pending | trio.CancelScope] = {}
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
            try:
                forwarded = self._forward(request)
            except RpcError:  # the ordinary way meets it again
                forwarded = None
            except Exception as error:  # the wall around one request, which may have been sent already
                work = partial(self._deliver, request, _failed(request, error))
                self._exchanges[request.id] = self._clerks.give(nursery, work)
                return
            if forwarded is not None and forwarded.posted:
                self._exchanges[request.id] = _Pending(self, nursery, request, forwarded)
            else:
                work = partial(self._serve, request, forwarded)
                self._exchanges[request.id] = self._clerks.give(nursery, work)
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
            if isinstance(exchange, _Pending):
                self.carry_on(exchange)
        self._clerks.dismiss()

    def take(self, pending: _Pending) -> None:
        """There is something for a request that no task waits for: its answer, or else a reason for one."""
        request, forwarded = pending.request, pending.forwarded
        try:
            result = forwarded.take()
            data = None if result is None else encode_reply(request.id, result)
        except Exception as error:  # the wall around one request
            data = _failed(request, error)
        forwarded.tell(None)  # a circle of references would keep the answer until the collector comes
        if data is None:
            self.carry_on(pending)
        elif self._offer(data):
            self._end(request)
        else:
            work = partial(self._deliver, request, data)
            self._exchanges[request.id] = self._clerks.give(pending.nursery, work)

    def carry_on(self, pending: _Pending) -> Job:
        """From now on a task waits for the answer to a request that was passed on."""
        request, forwarded = pending.request, pending.forwarded
        forwarded.tell(None)
        job = self._clerks.give(pending.nursery, partial(self._serve, request, forwarded))
        self._exchanges[request.id] = job
        return job

    async def _deliver(self, request: Request, data: bytes) -> None:
        """The last part of `_serve`."""
        try:
            await self._send(data)
        finally:
            self._end(request)

    async def _serve(self, request: Request, forwarded: Forwarded | None) -> None:
        """One request, from its arrival to its answer. A cancelled one is not answered."""
        try:
            data = await self._encoded_answer(request, forwarded)
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

    async def _encoded_answer(self, request: Request, forwarded: Forwarded | None = None) -> bytes:
        async def notify(event: Event) -> None:
            await self._pipe.send(encode_notification(event.method, event.params))

        try:
            if forwarded is None:
                result = await self._answer(request, notify)
            else:
                result = await forwarded.carry_on(notify)
            return encode_reply(request.id, result)
        except Exception as error:  # the wall around one request
            return _failed(request, error)

    async def _send(self, data: bytes) -> None:
        """Send to a peer that may be gone; the reader notices that on its own."""
        with suppress(TransportError):
            await self._pipe.send(data)


def _failed(request: Request, error: Exception) -> bytes:
    """The answer to a request that has failed."""
    if not isinstance(error, RpcError):
        log.error("request failed", method=request.method, exc_info=error)
        error = RpcError(INTERNAL_ERROR, "Internal error")
    return encode_error(request.id, error)
