"""One client's connection to an HTTP/1.1 server: requests and answers in turn, until either side ends it.

There is one task and one cancel scope for it, and neither for a request: a request that arrives in one
receive and is answered by one send costs those two system calls and one turn of the scheduler. Somebody has
to `sweep` it, for its deadlines and for noticing that the client left while its request is being handled.
Handlers run inline: the task waits for the next request while they sleep, and attends to them when they need
a task. With a `poller` a request whose head is known is given to its handler where it is received.
What is malformed or too large is refused here; what a request means is the handler's business.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

import structlog
import trio

from mcpmux.errors import LocalProtocolError, TransportClosed
from mcpmux.transports.byte_stream import ByteStream, Part, PlainStream, address_of
from mcpmux.transports.handing import Note
from mcpmux.transports.http.hand_over import encode_requests, give_back, hand_over
from mcpmux.transports.http.limits import BODY_RATE, Refusal
from mcpmux.transports.http.reply import FINISHED, HttpReply
from mcpmux.transports.http.request import BODY, IDLE, HttpRequest, Phase, RequestParser
from mcpmux.transports.http.shared import Shared, refuse_client
from mcpmux.transports.inline import Inline, in_task
from mcpmux.transports.readiness import Registration
from mcpmux.transports.tls.context import holder_of
from mcpmux.transports.tls.stream import NotTls, accept_tls
from mcpmux.transports.wall import walled

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
        self.byte_stream: ByteStream = PlainStream(stream, note.data if note is not None else b"")
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
        self._handling: Inline | None = None  # the handler of the request that is being answered
        self._wanted = False  # the handler needs the task, whose wait was cancelled for it
        self._registration: Registration | None = None
        self._has_begun = False  # the handler was given a request while the task slept, and needs it

    def __repr__(self) -> str:
        return f"ServerConnection({self.peer}, {self._parser.phase.name}, reply={self._reply})"

    async def run(self) -> None:
        CONNECTION.set(self.peer)
        self._context = trio.lowlevel.current_task().context  # handlers and answers find what they have set
        try:
            await walled(self._live(), Exception, self._note_crash)
        finally:
            if self._handling is not None and not self._handling.is_over:
                await walled(_give_up(self._handling), Exception, self._note_crash)
        if self.refusal is not None and not self._handshaking:
            self._reply = None
            self.deadline = math.inf
            await refuse_client(self.byte_stream, self.refusal, self._shared, self.peer)
        elif self._unused:
            await give_back(self._shared.handing, self.byte_stream, self.peer, self._parser.holder)

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
        if self._registration is not None:
            self._registration.close()
        self.byte_stream.close()
        self._parser.close()
        self._reply = self._rest = self._handling = self._registration = None

    async def _secure(self, context: ssl.SSLContext) -> bool:
        """Put TLS on the stream. False when that is the end of the connection."""
        try:
            self.byte_stream = tls = await accept_tls(self.byte_stream, context, self.peer)
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
            if overdue or self.byte_stream.is_finished():
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
        return (
            self._registration is not None and self._registration.has_data
        ) or self.byte_stream.is_readable()

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

    def _begin(self, request: HttpRequest) -> bool:
        """Give the handler a request; whether it sleeps, or is done with it, so that it needs no task."""
        self.deadline = math.inf
        self._reply = reply = HttpReply(request, self.send, self._state, self)
        context = self._context.copy()
        try:
            work = context.run(self._shared.handler, request, reply)
        except Exception as crash:
            work = _crash(crash)
        self._handling = handling = Inline(work, context, self._handled)
        return handling.start() or self._is_done(handling, reply)

    def _is_done(self, handling: Inline, reply: HttpReply) -> bool:
        """Whether nothing is left to do for a request that was given to the handler."""
        if not handling.is_over or handling.error is not None or reply.stage is not FINISHED:
            return False
        if self._rest is not None or self._called_off or not reply.request.keep_alive:
            return False
        self._handling = self._reply = None
        self._rested = now = self._state.now
        self.deadline = now + self._limits.idle_seconds
        return True

    def _handled(self) -> None:
        """The handler has slept, and is over now or needs the task. Called by whoever has woken it."""
        handling, reply = self._handling, self._reply
        if handling is None or reply is None or self._is_done(handling, reply):
            return
        self._wanted = True
        self._scope.cancel(reason="the handler needs the task")
        if self._shared.poller is not None:
            self._shared.poller.give_way()

    async def _settle(self, handling: Inline) -> bool:
        """Attend to the handler until it is over; whether the connection goes on after it."""
        reply = self._reply
        assert reply is not None
        await handling.attend()
        if not reply.finished:
            await self._finish(reply)
        self._handling = self._reply = None
        if not reply.request.keep_alive:
            self._called_off = False
            return False
        return not self._called_off  # too late for this one, and not meant for the next

    async def _go_on(self) -> None:
        """With the next request, after one that was called off; or with a handler that needs the task."""
        called_off, handling, reply = self._called_off, self._handling, self._reply
        self._called_off = self._wanted = False
        if called_off and handling is not None:
            self._handling = None
            if not handling.is_over:
                self._scope = scope = trio.CancelScope()  # not entered: it hears of a client that leaves
                await _give_up(handling)
                if self._is_cut or (scope.cancel_called and not self._called_off):
                    return
                self._called_off = self._wanted = False  # called off twice
            handling = None
        self._scope = trio.CancelScope()
        with self._scope:
            if handling is not None:
                if not await self._settle(handling):
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
            del reply, handling
            await self._converse(None)

    async def _converse(self, phase: Phase | None) -> None:
        """Requests and answers in turn, until either side ends it. This is the hot path.

        `phase`: of the request that comes, before what was received last; None when some were answered since.
        """
        parser = self._parser
        while True:
            while self._handling is not None or parser.requests:
                phase = None
                handling = self._handling
                if handling is None:
                    if self._begin(parser.requests.popleft()) and self._handling is None:
                        continue
                    handling = self._handling
                assert handling is not None
                if handling.is_asleep and not (parser.requests or parser.refusal or parser.phase is not IDLE):
                    del handling
                    break  # what comes next is waited for meanwhile
                if not await self._settle(handling):
                    return
                del handling  # the next may be long in coming
            if self._handling is None:
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
                self._has_begun = False
                continue
            if data:
                parser.feed(data)
            # What comes behind a request waits for its answer; so does the end, till the client is seen gone.
            if (late := self._handling) is not None:
                if self._scope.cancel_called or not await self._settle(late):
                    return
                phase = None
            if not data:
                return

    def _take(self, data: bytes) -> bool:
        """Received while the task sleeps: whether it may sleep on."""
        if self._handling is not None or (request := self._parser.read_whole(data)) is None:
            return False
        if self._begin(request):
            return True
        self._has_begun = True
        return False

    async def _receive(self) -> bytes:
        """What has come that was not taken; b"" is the end, or the handler `_has_begun` meanwhile."""
        if self._registration is None:
            poller, byte_stream = self._shared.poller, self.byte_stream
            if poller is None or not isinstance(byte_stream, PlainStream):
                try:
                    return await byte_stream.receive()
                except TransportClosed:
                    return b""
            self._registration = Registration(poller, byte_stream, self._take)
        return await self._registration.receive()

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
            await hand_over(handing, worker, self.byte_stream, data, self.peer, parser.holder)
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
            sent = self.byte_stream.send_nowait(data)
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
            sent = self.byte_stream.send_parts_nowait(parts)
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
            sent = self.byte_stream.send_nowait(data)
        except TransportClosed:
            self._scope.cancel(reason="the client left")
            return True
        if sent < len(data):
            self._rest = memoryview(data)[sent:]
        return self._rest is None

    async def flush(self) -> None:
        """Send what is left of what was sent, as `send` does."""
        if self._rest is None:
            return
        await in_task()
        before = self.deadline
        try:
            while self._rest is not None:
                self.deadline = self._state.now + self._limits.write_seconds
                self._rest = await self.byte_stream.send_some(self._rest) or None
        except TransportClosed:
            self._rest = None
            await self._lose_client()
        finally:
            self.deadline = before

    async def _lose_client(self) -> None:
        self._scope.cancel(reason="the client left")
        await in_task()
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


async def _give_up(handling: Inline) -> None:
    """Nobody wants that answer any more: the handler is cancelled."""
    with trio.CancelScope() as scope:
        scope.cancel(reason="the answer is not wanted any more")
        await handling.attend()
