"""An HTTP/1.1 server: requests in, one handler call each, responses out in order.

Per connection there is one task and one cancel scope, per request neither: a request that arrives in
one receive and is answered by one send costs those two system calls and one turn of the scheduler.
What would need a timer or a watcher per request is done for all connections by one sweeper:
deadlines, and noticing that a client left while its request is being handled. What is malformed or
too large is refused here; what a request means is the handler's business.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial

import structlog
import trio
from trio.abc import Listener

from mcpmux.errors import LocalProtocolError, TransportClosed
from mcpmux.transports.handing import Handing, Note, ResumedWire
from mcpmux.transports.http.date import http_date
from mcpmux.transports.http.hand_over import encode_requests, hand_over
from mcpmux.transports.http.message import BODY_RATE, Fields, HttpLimits, HttpRequest, Refusal
from mcpmux.transports.http.reply import HttpReply, ServerState
from mcpmux.transports.http.request import BODY, IDLE, Phase, RequestParser
from mcpmux.transports.tls.certificate import holder_of
from mcpmux.transports.tls.handshake import NotTls, accept_tls
from mcpmux.transports.wire import Part, PlainWire, Wire

Handler = Callable[[HttpRequest, HttpReply], Awaitable[None]]
Refuse = Callable[[int, str], tuple[Fields, bytes]]

SWEEP_SECONDS = 0.1  # resolution of every deadline, and how soon a client's leaving is noticed
SWEEP_CONNECTIONS = 250  # at a time, as each costs a system call: a thousand take four sweeps
LINGER_SECONDS = 2.0  # how long a refused client may go on sending before it is cut off
LINGER_RECEIVES = 64  # and how much (4 MiB at most), so that it reads our answer, not a reset
REFUSED_CONNECTIONS = 64  # connections above the limit that get an answer; more are just closed

log = structlog.get_logger()

CONNECTION: ContextVar[str] = ContextVar("CONNECTION", default="")
"""The peer's address and port, in everything that one of its requests causes; "" elsewhere."""


async def serve_http(
    listeners: Sequence[Listener[trio.SocketStream]],
    handler: Handler,
    *,
    refuse: Refuse,
    stopping: trio.Event,
    limits: HttpLimits | None = None,
    tls: ssl.SSLContext | None = None,
    handing: Handing | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping` is set, then finish what runs and return. Closes the listeners.

    `handler` gets each request with its reply; it is cancelled when its client leaves, and a crash of
    it is logged and answered by 500. `refuse(status, sentence)` gives fields and body of the errors
    that are answered here. With `tls` it is https that is served. `handing`: to and from other workers.
    Cancelling is the hard stop: all connections are closed at once.
    """
    server = _Server(handler, refuse, limits or HttpLimits(), tls, handing)
    async with trio.open_nursery() as background:
        background.start_soon(server.sweep_forever, name="http sweeper")
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            serve = partial(
                trio.serve_listeners, server.serve_stream, list(listeners), handler_nursery=connections
            )
            await accepting.start(serve, name="http listeners")
            if handing is not None:
                accepting.start_soon(server.resume_forever, handing, connections, name="handed over")
            task_status.started()
            await stopping.wait()
            server.state.draining = True
            accepting.cancel_scope.cancel()
        background.cancel_scope.cancel()


class _Server:
    """All connections, and what they share."""

    def __init__(
        self,
        handler: Handler,
        refuse: Refuse,
        limits: HttpLimits,
        tls: ssl.SSLContext | None,
        handing: Handing | None,
    ) -> None:
        self.handing = handing
        self.tls = tls
        self.handler = handler
        self.refuse = refuse
        self.limits = limits
        self.state = ServerState(trio.current_time(), _date_field())
        self.connections: set[_Connection] = set()
        self._turn: list[_Connection] = []  # who is still to be looked after before anybody is again

    def __repr__(self) -> str:
        return f"_Server(connections={len(self.connections)}, draining={self.state.draining})"

    async def sweep_forever(self) -> None:
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self.state.now = trio.current_time()
            self.state.date_field = _date_field()
            for connection in self._next_turn():
                connection.sweep()

    def _next_turn(self) -> list[_Connection]:
        """Those that are looked after now: of many connections a part each time, all when we stop."""
        if self.state.draining:
            return list(self.connections)
        if not self._turn:
            self._turn = list(self.connections)
        turn, self._turn = self._turn[:SWEEP_CONNECTIONS], self._turn[SWEEP_CONNECTIONS:]
        return [connection for connection in turn if connection in self.connections]

    async def resume_forever(self, handing: Handing, connections: trio.Nursery) -> None:
        """Go on with what other workers hand over."""
        with handing.arrivals:
            async for stream, note in handing.arrivals:
                connections.start_soon(self.serve_stream, stream, note)

    async def serve_stream(self, stream: trio.SocketStream, note: Note | None = None) -> None:
        """The life of one connection, or the rest of it when there is a note.

        No error leaves it, and the socket is closed after it.
        """
        excess = len(self.connections) - self.limits.connections
        if excess >= REFUSED_CONNECTIONS:
            return
        connection = _Connection(self, stream, note)
        if excess >= 0:
            connection.refusal = Refusal(503, "too many connections")
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            connection.wire.close()


class _Connection:
    """One client's connection.

    `deadline` is when the sweeper cuts in; it is infinite while the handler works. `reply` is the one
    being made, if any. `refusal` is set by whoever ends the connection with an error for the client.
    """

    def __init__(self, server: _Server, stream: trio.SocketStream, note: Note | None) -> None:
        self.peer = note.peer if note is not None else _address(stream)
        self.wire: Wire = PlainWire(stream) if note is None else ResumedWire(stream, note.data)
        self._handshaking = server.tls is not None and note is None
        self.refusal: Refusal | None = None
        self.deadline = server.state.now + server.limits.head_seconds
        self._body_began = 0.0  # when the head of the request was in whose body comes now
        self._server = server
        self._state = server.state
        self._limits = server.limits
        self._parser = RequestParser(server.limits, self.peer)
        if note is not None:
            self._parser.holder = note.holder
        self._reply: HttpReply | None = None
        self._rest: memoryview | None = None  # of what was sent without waiting, and did not go at once
        self._scope = trio.CancelScope()
        self._unused = False  # we stop, and nothing of a request has come

    def __repr__(self) -> str:
        return f"_Connection({self.peer}, {self._parser.phase.name}, reply={self._reply})"

    async def run(self) -> None:
        CONNECTION.set(self.peer)
        try:
            with self._scope:
                tls = self._server.tls
                if self._handshaking and tls is not None and not await self._secure(tls):
                    return
                if self.refusal is None:
                    await self._converse()
        except* Exception as crash:
            self._note_crash(crash)
        if self.refusal is not None and not self._handshaking:
            await self._refuse(self.refusal)
        elif self._unused:
            await self._give_back()

    async def _secure(self, context: ssl.SSLContext) -> bool:
        """Put TLS on the wire. False when that is the end of the connection."""
        try:
            self.wire = tls = await accept_tls(self.wire, context, self.peer)
            self._parser.holder = holder_of(tls.peer_certificate())
        except NotTls as error:
            self.refusal = Refusal(400, str(error))
        except TransportClosed as error:
            log.info("TLS handshake failed", peer=self.peer, reason=str(error))
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
        elif (overdue or self._state.draining) and (self._handshaking or not self.wire.is_readable()):
            self._unused = not overdue and not self._handshaking
            self._scope.cancel(reason="idle")

    async def _converse(self) -> None:
        """Requests and answers in turn, until either side ends it. This is the hot path."""
        parser = self._parser
        while True:
            try:
                data = await self.wire.receive()
            except TransportClosed:
                return
            if not data:
                return
            phase: Phase | None = parser.phase
            parser.feed(data)
            while parser.requests:
                phase = None
                request = parser.requests.popleft()
                self.deadline = math.inf
                self._reply = reply = HttpReply(request, self.send, self._state, self)
                await self._server.handler(request, reply)
                if not reply.finished:
                    await self._finish(reply)
                self._reply = None
                if not request.keep_alive:
                    return
            if parser.refusal is not None:
                self.refusal = parser.refusal
                return
            if parser.phase is BODY or parser.phase is not phase:  # a longer head wins no time
                self._renew_deadline(phase)
            if parser.wants_continue:
                parser.wants_continue = False
                await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

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
        parser, handing = self._parser, self._server.handing
        if parser.phase is not IDLE or parser.refusal is not None or handing is None:
            self.refusal = Refusal(503, "send this request again, by itself: another process has its session")
            return
        data = encode_requests((reply.request, *parser.requests))
        try:
            await hand_over(handing, worker, self.wire, data, self.peer, parser.holder)
        except TransportClosed as error:
            self.refusal = Refusal(503, f"the process that has this session cannot be reached: {error}")

    async def _give_back(self) -> None:
        """We stop while others go on: a client that is about to ask something shall not notice."""
        handing = self._server.handing
        if handing is not None and isinstance(self.wire, PlainWire):
            with suppress(TransportClosed):
                await handing.pass_on(0, self.wire.socket, b"", self.peer, self._parser.holder)

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

    def _note_crash(self, crash: ExceptionGroup[Exception]) -> None:
        errors = [repr(error) for error in crash.exceptions]
        log.error("request handler failed", peer=self.peer, reply=repr(self._reply), errors=errors)
        log.debug("request handler failed here", exc_info=crash)
        if self._reply is None or not self._reply.started:
            self.refusal = Refusal(500, "internal error")

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer, then receive a bounded rest: closing on unread bytes would reset the answer away."""
        self._reply = None
        self.deadline = math.inf
        request = HttpRequest("", "", "", {}, b"", self.peer, http_1_0=False, keep_alive=False)
        fields, body = self._server.refuse(refusal.status, refusal.sentence)
        with trio.move_on_after(LINGER_SECONDS):
            try:
                await HttpReply(request, self.wire.send, self._state).send(refusal.status, fields, body)
                self.wire.send_eof()
                for _ in range(LINGER_RECEIVES):
                    if not await self.wire.receive():
                        return
            except TransportClosed:
                return


def _date_field() -> bytes:
    return b"Date: %b\r\n" % http_date(time.time()).encode()


def _address(stream: trio.SocketStream) -> str:
    try:
        host, port, *_ = stream.socket.getpeername()
    except (OSError, ValueError):
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
