"""One client's connection to an HTTP/1.1 server: requests and answers in turn, until either side ends it.

There is one task and one cancel scope for it, and neither for a request: a request that arrives in one
receive and is answered by one send costs those two system calls and one turn of the scheduler. Somebody has
to `sweep` it, for its deadlines and for noticing that the client left while its request is being handled.
An answer that is put off needs none: the task waits for the next request, whoever has the answer sends it,
and only what has to be waited for is left to the task. With a `reception` not even that: a request whose head
is known is given to the handler where it is received, and the task sleeps on when the answer is put off.
What is malformed or too large is refused here; what a request means is the handler's business.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Final

import structlog
import trio

from mcpmux.errors import LocalProtocolError, TransportClosed
from mcpmux.transports.handing import Note
from mcpmux.transports.http.attention import Attention
from mcpmux.transports.http.hand_over import encode_requests, give_back, hand_over
from mcpmux.transports.http.message import BODY_RATE, Refusal
from mcpmux.transports.http.put_off import OVER, PutOff, give_up
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.request import BODY, IDLE, Phase, RequestParser
from mcpmux.transports.http.server_request import HttpRequest
from mcpmux.transports.http.shared import Shared, refuse_client
from mcpmux.transports.tls.context import holder_of
from mcpmux.transports.tls.wire import NotTls, accept_tls
from mcpmux.transports.wall import walled
from mcpmux.transports.wire import Part, PlainWire, Wire, address_of

CALLED_OFF: Final = 202  # the status of an answer that is none, to a request that was taken back

log = structlog.get_logger()

CONNECTION: Final[ContextVar[str]] = ContextVar("CONNECTION", default="")
"""The peer's address and port, in everything that one of its requests causes; "" elsewhere."""


class ServerConnection:
    """One client's connection.

    `deadline` is when the sweeper cuts in; it is infinite while the handler works. `reply` is the one
    being made, if any. `refusal` is set by whoever ends the connection with an error for the client.
    """

    def __init__(self, shared: Shared, stream: trio.SocketStream, note: Note | None) -> None:
        self.peer = note.peer if note is not None else address_of(stream)
        self.wire: Wire = PlainWire(stream, note.data if note is not None else b"")
        self._handshaking = shared.tls is not None and note is None
        self.refusal: Refusal | None = None
        self.deadline = shared.state.now + shared.limits.head_seconds
        self._rested = shared.state.now  # since when it has no request, if it has none
        self._body_began = 0.0  # when the head of the request was in whose body comes now
        self._shared = shared
        self._state = shared.state
        self._limits = shared.limits
        self._parser = RequestParser(shared.limits, self.peer)
        if note is not None:
            self._parser.holder = note.holder
        self._reply: HttpReply | None = None
        self._rest: memoryview | None = None  # of what was sent without waiting, and did not go at once
        self._scope = trio.CancelScope()
        self._unused = False  # we stop, and nothing of a request has come
        self._called_off = False  # the handler was cancelled, and the connection goes on
        self._is_cut = False  # half an answer was sent, so that it cannot
        self._put_off: PutOff | None = None  # an answer that comes when its handler is over
        self._wanted = False  # such an answer needs the task, whose wait was cancelled for it
        self._attention: Attention | None = None
        self._begun: tuple[HttpReply, Awaitable[None]] | None = None  # while the task slept

    def __repr__(self) -> str:
        return f"ServerConnection({self.peer}, {self._parser.phase.name}, reply={self._reply})"

    async def run(self) -> None:
        CONNECTION.set(self.peer)
        self._context = trio.lowlevel.current_task().context  # handlers and answers find what they have set
        try:
            await walled(self._live(), Exception, self._note_crash)
        finally:
            if self._put_off is not None and (self._reply is None or not self._reply.finished):
                await give_up(self._put_off)
        if self.refusal is not None and not self._handshaking:
            self._reply = None
            self.deadline = math.inf
            await refuse_client(self.wire, self.refusal, self._shared, self.peer)
        elif self._unused:
            await give_back(self._shared.handing, self.wire, self.peer, self._parser.holder)

    async def _live(self) -> None:
        with self._scope:
            tls = self._shared.tls
            if self._handshaking and tls is not None and not await self._secure(tls()):
                return
            if self.refusal is None:
                await self._converse(IDLE)
        while (self._called_off or self._wanted) and not self._is_cut:
            await self._go_on()

    def close(self) -> None:
        """Give back the socket, and what was cut off: in circles it would wait long for the collector."""
        if self._attention is not None:
            self._attention.close()
        self.wire.close()
        self._parser.close()
        self._reply = self._rest = self._put_off = self._attention = None

    async def _secure(self, context: ssl.SSLContext) -> bool:
        """Put TLS on the wire. False when that is the end of the connection."""
        try:
            self.wire = tls = await accept_tls(self.wire, context, self.peer)
            self._parser.holder = holder_of(tls.peer_certificate())
        except NotTls as error:
            self.refusal = Refusal(400, str(error))
        except TransportClosed as closed:
            log.info("TLS handshake failed", peer=self.peer, reason=str(closed))
            return False
        self._handshaking = False
        return True

    def sweep(self) -> None:
        """Look after deadlines and the client's presence; called every SWEEP_SECONDS."""
        overdue = self._state.now > self.deadline
        if self._reply is not None:
            if overdue or self.wire.is_finished():
                self._scope.cancel(reason="the client reads nothing" if overdue else "the client left")
        elif self._parser.phase is not IDLE:
            if overdue:
                self.refusal = Refusal(408, "the request did not arrive in time")
                self._scope.cancel(reason="the request did not arrive in time")
        elif (overdue or self._state.draining) and (self._handshaking or not self._has_come()):
            self._unused = not overdue and not self._handshaking
            self._scope.cancel(reason="idle")

    def _has_come(self) -> bool:
        """Whether there is something of a request, which its task has not seen yet."""
        return (self._attention is not None and self._attention.has_data) or self.wire.is_readable()

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return self.peer.rpartition(":")[0]

    @property
    def resting_since(self) -> float | None:
        """Since when there has been no request, nor anything of one; None while there is."""
        busy = self._reply is not None or self._parser.phase is not IDLE or self._handshaking
        return None if busy or self._has_come() else self._rested

    def make_room(self) -> None:
        """It has rested long enough: another client gets its place."""
        self._scope.cancel(reason="another client gets its place")

    def call_off(self, reason: str) -> None:
        """Cancel the handler that works now; a client that has heard nothing yet gets CALLED_OFF."""
        self._called_off = True
        self._scope.cancel(reason=reason)

    def put_off(self, answer: PutOff) -> None:
        """The handler is about to return without an answer, which comes later."""
        self._put_off = answer
        answer.tell(self._take_answer)

    def _take_answer(self) -> None:
        """There is something for an answer that was put off. Called by any task."""
        put_off, reply = self._put_off, self._reply
        if put_off is None or reply is None:
            return
        put_off.tell(None)  # a circle of references would keep the answer until the collector comes
        try:
            taken = self._context.copy().run(put_off.take)
        except Exception as mistake:  # of ours: nothing more can be said here
            log.error("an answer could not be sent", peer=self.peer, exc_info=mistake)
            self._put_off, self._is_cut = None, True
            self._scope.cancel(reason="an answer could not be sent")
            return
        if not taken or self._rest is not None or not reply.request.keep_alive:
            self._wanted = True
            self._scope.cancel(reason="an answer has to be waited for")
            if self._shared.reception is not None:
                self._shared.reception.give_way()
        else:
            self._put_off = self._reply = None
            self._rest_now()

    async def _settle(self, put_off: PutOff) -> bool:
        """Wait for the answer that was put off; whether the connection goes on after it."""
        reply, self._put_off = self._reply, None
        assert reply is not None
        put_off.tell(None)
        await put_off.carry_on()
        if not reply.finished:
            await self._finish(reply)
        self._reply = None
        if not reply.request.keep_alive:
            self._called_off = False
            return False
        return not self._called_off

    async def _go_on(self) -> None:
        """With the next request, after the end of one that was called off; or with an answer put off."""
        called_off, put_off, reply = self._called_off, self._put_off, self._reply
        self._called_off = self._wanted = False
        if put_off is not None and (called_off or (reply is not None and reply.finished)):
            self._put_off = None
            if reply is not None and not reply.finished:
                self._scope = scope = trio.CancelScope()  # not entered: it hears of a client that leaves
                await give_up(put_off)
                if self._is_cut or (scope.cancel_called and not self._called_off):
                    return
                self._called_off = self._wanted = False  # called off twice
        self._scope = trio.CancelScope()
        with self._scope:
            if put_off is not None and self._put_off is put_off:
                if not await self._settle(put_off):
                    return
            elif reply is not None:
                if not reply.started:
                    await reply.send(CALLED_OFF, ())
                elif not reply.finished:
                    await reply.finish()
                await self.flush()
                self._reply = None
                if not reply.request.keep_alive:
                    return
            del reply, put_off
            await self._converse(None)

    async def _converse(self, phase: Phase | None) -> None:
        """Requests and answers in turn, until either side ends it. This is the hot path.

        `phase`: of the request that comes, before what was received last; None when some were answered since.
        """
        parser = self._parser
        while True:
            while (begun := self._next_begun()) is not None:
                phase = None
                reply, work = begun
                await work
                if not reply.finished:
                    if self._put_off is None:
                        await self._finish(reply)
                    elif parser.requests or parser.refusal is not None or parser.phase is not IDLE:
                        if not await self._settle(self._put_off):
                            return
                    else:
                        del begun, work, reply
                        break
                self._reply = None
                if not reply.request.keep_alive:
                    self._called_off = False
                    return
                if self._called_off:
                    return  # too late for this one, and not meant for the next
                del begun, work, reply  # the next may be long in coming
            if self._put_off is None:
                if parser.refusal is not None:
                    self.refusal = parser.refusal
                    return
                if phase is None and parser.phase is IDLE:
                    self._rest_now()
                elif parser.phase is BODY or parser.phase is not phase:  # a longer head wins no time
                    self._renew_deadline(phase)
                if parser.wants_continue:
                    parser.wants_continue = False
                    await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            phase = parser.phase
            data = await self._receive()
            if self._has_begun:
                continue
            if data:
                parser.feed(data)
            # What comes behind a request waits for its answer; so does the end, till the client is seen gone.
            if (late := self._put_off) is not None:
                if self._scope.cancel_called or not await self._settle(late):
                    return
                phase = None
            if not data:
                return

    def _next_begun(self) -> tuple[HttpReply, Awaitable[None]] | None:
        """The next request, given to the handler; None when none has come."""
        begun, self._begun = self._begun, None
        if begun is None and self._parser.requests:
            begun = self._begin(self._parser.requests.popleft())
        return begun

    @property
    def _has_begun(self) -> bool:
        """Whether the handler was given a request while the task slept."""
        return self._begun is not None

    def _begin(self, request: HttpRequest) -> tuple[HttpReply, Awaitable[None]]:
        """Give the handler a request: its reply, and what is still to be awaited of it."""
        self.deadline = math.inf
        self._reply = reply = HttpReply(request, self.send, self._state, self)
        try:
            return reply, self._shared.handler(request, reply)
        except Exception as crash:
            return reply, _crash(crash)

    def _take(self, data: bytes) -> bool:
        """Received while the task sleeps: whether it may sleep on."""
        if self._put_off is not None or (request := self._parser.read_whole(data)) is None:
            return False
        begun = self._context.run(self._begin, request)
        if begun[1] is OVER:
            return True
        self._begun = begun
        return False

    async def _receive(self) -> bytes:
        """What has come that was not taken; b"" is the end, or stands for what has `_begun`."""
        if self._attention is None:
            reception, wire = self._shared.reception, self.wire
            if reception is None or not isinstance(wire, PlainWire):
                try:
                    return await wire.receive()
                except TransportClosed:
                    return b""
            self._attention = Attention(reception, wire, self._take)
        return await self._attention.receive()

    async def _finish(self, reply: HttpReply) -> None:
        """End what a returning handler left open."""
        if reply.passed_to is not None:
            await self._pass_on(reply, reply.passed_to)
            return
        if not reply.started:
            raise LocalProtocolError("the handler returned without an answer")
        await reply.finish()

    async def _pass_on(self, reply: HttpReply, worker: int) -> None:
        """Hand the connection over, with this request and all that came behind it."""
        reply.request.keep_alive = False  # for us it ends here
        parser, handing = self._parser, self._shared.handing
        if parser.phase is not IDLE or parser.refusal is not None or handing is None:
            self.refusal = Refusal(503, "send this request again, by itself: another process has its session")
            return
        data = encode_requests((reply.request, *parser.requests))
        try:
            await hand_over(handing, worker, self.wire, data, self.peer, parser.holder)
        except TransportClosed as error:
            self.refusal = Refusal(503, f"the process that has this session cannot be reached: {error}")

    def _rest_now(self) -> None:
        """There is no request any more."""
        self._rested = now = self._state.now
        self.deadline = now + self._limits.idle_seconds

    def _renew_deadline(self, before: Phase | None) -> None:
        phase, limits = self._parser.phase, self._limits
        if phase is IDLE:
            self.deadline = self._state.now + limits.idle_seconds
        elif phase is BODY:
            if before is not BODY:
                self._body_began = self._state.now
            least = self._body_began + limits.body_seconds + self._parser.body_bytes / BODY_RATE
            self.deadline = min(self._state.now + limits.body_seconds, least)
        else:
            self.deadline = self._state.now + limits.head_seconds

    async def send(self, data: bytes) -> None:
        """Send all of it. A peer that is gone, or reads nothing for too long, cancels the connection.

        What a cancelled call has left goes before the next.
        """
        if self._rest is not None:
            await self.flush()
        try:
            sent = self.wire.send_nowait(data)
        except TransportClosed:
            await self._lose_client()
            return
        if sent < len(data):
            self._rest = memoryview(data)[sent:]
            await self.flush()

    async def send_parts(self, parts: Sequence[Part]) -> None:
        """Send all of them, one after the other, as `send` does. Cancelled, it ends the connection."""
        if self._rest is not None:
            await self.flush()
        try:
            sent = self.wire.send_parts_nowait(parts)
        except TransportClosed:
            await self._lose_client()
            return
        try:
            for part in parts:
                if sent < len(part):
                    self._rest = memoryview(part)[sent:]
                    await self.flush()
                sent = max(0, sent - len(part))
        except BaseException:
            self._is_cut = True
            self._scope.cancel(reason="half an answer was sent")
            raise

    def send_nowait(self, data: bytes) -> bool:
        """Take all of it, and send what goes without waiting; False when `flush` has to send the rest."""
        if self._rest is not None:
            raise LocalProtocolError("what was sent before has not been flushed")
        try:
            sent = self.wire.send_nowait(data)
        except TransportClosed:
            self._scope.cancel(reason="the client left")
            return True
        if sent < len(data):
            self._rest = memoryview(data)[sent:]
        return self._rest is None

    async def flush(self) -> None:
        """Send what is left of what was sent, as `send` does."""
        before = self.deadline
        try:
            while self._rest is not None:
                self.deadline = self._state.now + self._limits.write_seconds
                self._rest = await self.wire.send_some(self._rest) or None
        except TransportClosed:
            self._rest = None
            await self._lose_client()
        finally:
            self.deadline = before

    async def _lose_client(self) -> None:
        self._scope.cancel(reason="the client left")
        await trio.lowlevel.checkpoint_if_cancelled()

    def _note_crash(self, crashes: Sequence[BaseException]) -> None:
        errors = [repr(error) for error in crashes]
        log.error("request handler failed", peer=self.peer, reply=repr(self._reply), errors=errors)
        for crash in crashes:
            log.debug("request handler failed here", exc_info=crash)
        if self._reply is None or not self._reply.started:
            self.refusal = Refusal(500, "internal error")


async def _crash(crash: Exception) -> None:
    raise crash
