"""HTTP clients as a tap sees them: which leg a request is on, and what is sent back.

A session is a leg; requests without one are on the leg of their connection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextvars import Context, copy_context
from typing import Any, Final

from mcpmux.runtime.tap import Tap, Watch
from mcpmux.transports.byte_stream import Part
from mcpmux.transports.http.message import Fields
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.sse import SseDecoder

# Legs that are remembered, of which most are over: a listener serves 800 at a time.
CONNECTION_LIMIT: Final = 1024
EVENT_LIMIT: Final = 2**40  # what mcpmux sends is bounded before it comes here


class ConnectionLegs:
    """The legs of clients without a session, by the address of their connection."""

    def __init__(self) -> None:
        self._legs: OrderedDict[str, Watch] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ConnectionLegs {len(self._legs)}>"

    def of(self, tap: Tap, address: str) -> Watch:
        """What watches the leg of the connection from `address`."""
        watch = self._legs.get(address)
        if watch is None:
            watch = self._legs[address] = Watch(tap, tap.client("http"))
            if len(self._legs) > CONNECTION_LIMIT:
                tap.gone(self._legs.popitem(last=False)[1].leg)
        else:
            self._legs.move_to_end(address)  # the first is the one that was silent for longest
        return watch

    def give_away(self, address: str) -> None:
        """What was on this connection so far was a session: the next leg there is a new one."""
        self._legs.pop(address, None)


class TappedReply(HttpReply):
    """A reply whose messages a tap sees: a body, or the events of a stream."""

    __slots__ = ("_context", "_decoder", "_reply", "_status", "watch")

    def __init__(self, reply: HttpReply, watch: Watch) -> None:
        self._reply = reply
        self._decoder: SseDecoder | None = None
        self._context: Context | None = None
        self._status: int | None = None  # of the stream
        self.watch = watch

    def __repr__(self) -> str:
        return f"<TappedReply {self._reply!r}>"

    @property
    def started(self) -> bool:
        return self._reply.started

    @property
    def finished(self) -> bool:
        return self._reply.finished

    def send(self, status: int, fields: Fields, body: bytes = b"") -> Coroutine[Any, Any, None]:
        if body:
            self.watch.tap.message_passed(self.watch.leg, "out", body, status)
        return self._reply.send(status, fields, body)

    async def send_parts(self, status: int, fields: Fields, body: Sequence[Part]) -> None:
        await self.send(status, fields, b"".join(body))

    async def open(self, status: int, fields: Fields, data: bytes = b"") -> None:
        self._status = status
        self._context = copy_context()  # of the exchange that all of the stream belongs to
        self._see(data)
        await self._reply.open(status, fields, data)

    async def write(self, data: bytes) -> None:
        self._see(data)
        await self._reply.write(data)

    def write_nowait(self, data: bytes) -> bool:
        """Whichever task this is, it is the stream's exchange that the tap is told."""
        if self._context is not None:
            self._context.run(self._see, data)
        return self._reply.write_nowait(data)

    async def flush(self) -> None:
        await self._reply.flush()

    async def finish(self, data: bytes = b"") -> None:
        self._see(data)
        await self._reply.finish(data)

    def call_off(self, reason: str) -> None:
        self._reply.call_off(reason)

    def _see(self, data: bytes) -> None:
        if self._decoder is None:  # only now is it known to be a stream
            self._decoder = SseDecoder(EVENT_LIMIT)
        for event in self._decoder.feed(data):
            if event.data:
                self.watch.sent(event.data, self._status)
