"""One client's connection to an HTTP/1.1 server: requests and answers in turn, until either side ends it.

A connection has one task and one cancel scope, a request neither: a request that arrives in one receive and
is answered by one send costs those two system calls and one turn of the scheduler. The server calls `sweep`
for its deadlines, and to notice that the client left while its request is being handled. Handlers run inline:
the task waits for the next request while they sleep, and attends to them when they need a task. With a
`poller`, a request whose head is known goes to its handler where it is received. Malformed and oversized
requests are refused here; the meaning of a request is left to the handler. A body that may be large is read
only after a judge has seen its head, and if the budget for bodies has room for it.

A response is either complete in a single `send`, or streamed by `open`, `write` and `finish`:

    NEW  -- send -->   FINISHED
    NEW  -- open -->   OPEN
    OPEN -- write -->  OPEN
    OPEN -- write_nowait --> OPEN   `flush` comes next if it returns False
    OPEN -- finish --> FINISHED   the server finishes what a returning handler left open
    NEW, OPEN -- nothing is sent for KEEP_ALIVE_SECONDS --> OPEN   with a comment, after `keep_alive`

Any other order is a LocalProtocolError. Sending never fails because of the peer: a peer that is gone cancels
the handler.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import structlog
import trio

from mcpmux.config import Limits
from mcpmux.errors import LocalProtocolError, TransportClosed
from mcpmux.protocol.envelope import Part
from mcpmux.protocol.headers import ALLOW_ORIGIN
from mcpmux.transports.body_budget import BODY_RATE, SETTING, SMALL_BODY, BodyBudget, Holding, budget_client
from mcpmux.transports.byte_stream import PlainStream, address_of
from mcpmux.transports.http.message import (
    BODY,
    IDLE,
    JOIN_BYTES,
    LAST_CHUNK,
    HeaderFields,
    HttpRequest,
    Phase,
    Refusal,
    RequestParser,
    encode_chunk,
    encode_response_head,
    has_no_body,
)
from mcpmux.transports.inline import AT_ONCE, Inline, in_task
from mcpmux.transports.sse import KEEP_ALIVE, KEEP_ALIVE_SECONDS, STREAM_HEADERS
from mcpmux.transports.tls import ByteStream, CurrentContext, NotTls, accept_tls, holder_of, linger
from mcpmux.transports.waiting import ReadinessPoller
from mcpmux.transports.wall import walled


class Stage(Enum):
    """The state of a response, see the module's table."""

    NEW = auto()
    OPEN = auto()
    FINISHED = auto()


NEW: Final = Stage.NEW
OPEN: Final = Stage.OPEN
FINISHED: Final = Stage.FINISHED


class ReplyTap(Protocol):
    """Sees the bytes that a reply sends. It must not wait."""

    def see_body(self, status: int, body: bytes) -> None: ...
    def see_stream(self, status: int, data: bytes) -> None: ...
    def see_more(self, data: bytes) -> None: ...


class HttpReply:
    """The answer to one request. To be used by one task at a time.

    `tap`, if there is one, sees all of a body, or each part of a stream when it is sent.
    """

    __slots__ = (
        *("_chunked", "_connection", "_quiet_since", "_state", "context", "is_kept_alive"),
        *("request", "stage", "tap"),
    )

    def __init__(self, request: HttpRequest, connection: ServerConnection, state: ServerState) -> None:
        self.request = request
        self._connection = connection
        self._state = state
        self.stage = NEW
        self.is_kept_alive = False  # if True, comments keep proxies from taking the connection for dead
        self._quiet_since = state.now
        self.context: Context | None = None  # in which the handler works
        self._chunked = False
        self.tap: ReplyTap | None = None

    def __repr__(self) -> str:
        return f"HttpReply({self.stage.name}, to={self.request.method} {self.request.path})"

    @property
    def started(self) -> bool:
        """True once a byte of the response may have left."""
        return self.stage is not NEW

    def send(self, status: int, fields: HeaderFields, body: bytes = b"") -> Awaitable[None]:
        """Send the whole response. `fields` are without framing: Content-Length and the like are added.

        The result must be awaited next.
        """
        if self.stage is not NEW:  # a call of `_advance` less for most responses
            self._advance(NEW, FINISHED)
        self.stage = FINISHED
        if self.tap is not None:
            self.tap.see_body(status, body)
        head = self._encode_head(status, fields)
        if status != 200 and has_no_body(status):
            return self._connection.send(head + b"\r\n")
        length = len(body)
        # A response to HEAD has the Content-Length of the body that GET would get (RFC 9110 section 9.3.2).
        if self.request.method == "HEAD":
            body = b""
        if len(body) <= JOIN_BYTES:
            return self._connection.send(b"%bContent-Length: %d\r\n\r\n%b" % (head, length, body))
        return self._connection.send_parts([b"%bContent-Length: %d\r\n\r\n" % (head, length), body])

    async def send_parts(self, status: int, fields: HeaderFields, body: Sequence[Part]) -> None:
        """Send the whole response as `send` does, without copying the parts of its body together."""
        if has_no_body(status) or self.request.method == "HEAD":
            raise LocalProtocolError("a response without a body has no parts")
        self._advance(NEW, FINISHED)
        if self.tap is not None:
            self.tap.see_body(status, b"".join(body))
        size = sum(map(len, body))
        head = b"%bContent-Length: %d\r\n\r\n" % (self._encode_head(status, fields), size)
        await self._connection.send_parts([head, *body])

    async def open(self, status: int, fields: HeaderFields, data: bytes = b"") -> None:
        """Start a streamed response; its head and the first `data` are sent together."""
        await self._connection.send(self._begin(status, fields, data))

    def _begin(self, status: int, fields: HeaderFields, data: bytes) -> bytes:
        if self.request.method == "HEAD":
            raise LocalProtocolError("a response to HEAD cannot be streamed")
        self._advance(NEW, OPEN)
        self._quiet_since = self._state.now
        if self.tap is not None:
            self.tap.see_stream(status, data)
        self._chunked = not self.request.http_1_0
        if not self._chunked:  # then only the end of the connection ends the body
            self.request.keep_alive = False
        head = self._encode_head(status, fields)
        if self._chunked:
            head += b"Transfer-Encoding: chunked\r\n"
        return head + b"\r\n" + self._encode_part(data)

    def is_quiet_since(self, time: float) -> bool:
        """Return whether the connection is to be kept alive and no byte was sent since `time`."""
        return self.is_kept_alive and self._quiet_since <= time

    def say_alive(self) -> None:
        """Send a comment, which begins an event stream if no byte was sent before.

        Another task calls it while the handler is not sending.
        """
        if self.stage is NEW and self.context is not None:  # a tap reads from it whose exchange this is
            self._connection.send_nowait(self.context.run(self._begin, 200, STREAM_HEADERS, KEEP_ALIVE))
        elif self.stage is OPEN:
            self.write_nowait(KEEP_ALIVE)

    async def write(self, data: bytes) -> None:
        """Send more of a streamed response."""
        self._advance(OPEN, OPEN)
        self._quiet_since = self._state.now
        if self.tap is not None:
            self.tap.see_more(data)
        if data:
            await self._connection.send(self._encode_part(data))

    def write_nowait(self, data: bytes) -> bool:
        """Take more of a streamed response, and send as much as possible without waiting.

        Return False if a part is left: `flush` sends it, and must be called before the next write. May be
        called by any task, while the one that uses the reply is not writing.
        """
        if self.stage is not OPEN:
            self._advance(OPEN, OPEN)
        self._quiet_since = self._state.now
        if self.tap is not None:
            self.tap.see_more(data)
        if not data:
            return True
        # The same as `encode_chunk`, with a call less: one event may go to many clients at once.
        return self._connection.send_nowait(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def flush(self) -> Awaitable[None]:
        """Send what `write_nowait` has left, if anything."""
        return self._connection.flush()

    async def finish(self, data: bytes = b"") -> None:
        """End a streamed response; the last `data` and the end are sent together."""
        self._advance(OPEN, FINISHED)
        if self.tap is not None:
            self.tap.see_more(data)
        end = LAST_CHUNK if self._chunked else b""
        await self._connection.send(self._encode_part(data) + end)

    def call_off(self, reason: str) -> None:
        """Cancel the handler; the server sends an empty answer for it, and the connection goes on.

        Another task calls it while the handler works, so that the handler needs no cancel scope.
        """
        self._connection.call_off(reason)

    def _advance(self, before: Stage, after: Stage) -> None:
        if self.stage is not before:
            raise LocalProtocolError(f"the response is {self.stage.name}, not {before.name}")
        self.stage = after

    def _encode_head(self, status: int, fields: HeaderFields) -> bytes:
        request, state = self.request, self._state
        if state.draining:
            request.keep_alive = False
        if state.grants is not None and (origin := request.headers.get("origin")) is not None:
            fields = _readable(fields, state.grants(origin))
        head = encode_response_head(status, fields)
        if not request.keep_alive:
            head += b"Connection: close\r\n"
        elif request.http_1_0:
            head += b"Connection: keep-alive\r\n"
        return head + state.date_field

    def _encode_part(self, data: bytes) -> bytes:
        return encode_chunk(data) if self._chunked else data


def _readable(fields: HeaderFields, grant: HeaderFields) -> HeaderFields:
    """Add the fields that let a page read a response, unless the response has them already."""
    # A browser refuses a response that names the permitted origin twice.
    return fields if any(name == ALLOW_ORIGIN for name, _ in fields) else fields + grant


Handler = Callable[[HttpRequest, HttpReply], Awaitable[None]]
GiveBack = Callable[[int], Awaitable[None]]
"""Takes the descriptor of a connection, which the caller closes."""

Grants = Callable[[str], HeaderFields]
Refuse = Callable[[int, str, str], tuple[HeaderFields, bytes]]

LINGER_SECONDS: Final = 2.0  # for which a refused client may go on sending before it is cut off
LINGER_RECEIVES: Final = 1024  # and how much (64 MiB at most), so that it reads our answer, not a reset


HEAR_SECONDS: Final = 1.0  # for the head of a request that is refused in any case


@dataclass(eq=False)
class ServerState:
    """The common state of all connections of a server; see `serve_http`.

    `now`: trio's time without the time in which this process did not run, at most a sweep old, for deadlines.
    `date_field`: b"Date: …\\r\\n". `grants`: returns the fields by which pages of an origin may read every
    response. `judge`: gets a request whose large body is still to come, and answers if it is not to be read.
    """

    handler: Handler
    refuse: Refuse
    limits: Limits
    now: float
    date_field: bytes
    bodies: BodyBudget
    tls: CurrentContext | None = None
    give_back: GiveBack | None = None
    poller: ReadinessPoller | None = None
    draining: bool = False
    grants: Grants | None = None
    judge: Handler | None = None


CALLED_OFF: Final = 202  # the status of the empty answer to a request whose handler was called off

log = structlog.get_logger()

CONNECTION: Final[ContextVar[str]] = ContextVar("CONNECTION", default="")
"""The peer's address and port, in all tasks that its requests cause; "" elsewhere."""


class ServerConnection:
    """One client's connection.

    `deadline`: the time at which the sweeper ends the connection, infinite while the handler works.
    `refusal`: the error with which the connection ends, if the client is to get one.
    """

    def __init__(self, state: ServerState, stream: trio.SocketStream) -> None:
        self.peer = address_of(stream)
        self.byte_stream: ByteStream = PlainStream(stream)
        self._handshaking = state.tls is not None
        self.refusal: Refusal | None = None
        self.deadline = state.now + state.limits.head_timeout
        self._rested = state.now  # time since which it has no request, if it has none
        self._body_began = 0.0  # time at which the head was complete of the body that is being received
        self._state = state
        self._limits = state.limits
        self._parser = RequestParser(state.limits, self.peer)
        self._reply: HttpReply | None = None
        self._rest: memoryview | None = None  # of the data that was sent, not taken by the kernel yet
        self._scope = trio.CancelScope()
        self._unused = False  # the server stops, and no byte of a request has come
        self._called_off = False  # the handler was cancelled, and the connection goes on
        self._is_cut = False  # half an answer was sent, so that the connection cannot go on
        self._handling: Inline | None = None  # the handler of the request that is being answered
        self._wanted = False  # the handler needs the task, whose wait was cancelled for it
        self._poller = None if self._handshaking else state.poller
        self._task: trio.lowlevel.Task | None = None  # asleep until something is received for it
        self._received = b""  # bytes that the task has not seen yet
        self._watched = False  # by the poller
        self._has_begun = False  # the handler was given a request while the task slept, and needs it
        self._holding: Holding | None = None  # of a large body

    async def run(self) -> None:
        """Serve the client until either side ends the connection. `close` must follow."""
        CONNECTION.set(self.peer)
        self._context = trio.lowlevel.current_task().context  # handlers and answers find what they have set
        try:
            await walled(self._live(), Exception, self._note_crash)
        finally:
            # Its cleanup may have to wait, and it must not outlive the connection.
            if self._handling is not None and not self._handling.is_over:
                await walled(_give_up(self._handling), Exception, self._note_crash)
        # During a handshake there is no TLS yet in which a refusal could be sent.
        if self.refusal is not None and not self._handshaking:
            headers = self._parser.headers if self._reply is None else self._reply.request.headers
            self._reply = None
            self.deadline = math.inf
            await self._refuse(self.refusal, headers.get("origin"))
        elif self._unused and self._state.give_back is not None and isinstance(self.byte_stream, PlainStream):
            # Other workers go on: a client that is about to send a request must not notice the stop.
            self._forget()
            with suppress(TransportClosed):
                await self._state.give_back(self.byte_stream.descriptor)

    async def _live(self) -> None:
        with self._scope:
            tls = self._state.tls
            if self._handshaking and tls is not None and not await self._secure(tls()):
                return
            if self.refusal is None:
                await self._converse(IDLE)
            elif self._state.grants is not None:
                await self._hear_out(self.refusal)
        # Both cancel `_scope` only to wake the task: it goes on with another scope.
        while (self._called_off or self._wanted) and not self._is_cut:
            await self._go_on()

    async def _hear_out(self, refusal: Refusal) -> None:
        """Receive the head of a request that is refused anyway, as a page reads only what names its origin.

        A preflight request is answered: only then does a page send the request that gets the refusal.
        """
        parser, judge = self._parser, self._state.judge
        try:
            with trio.move_on_after(HEAR_SECONDS), suppress(TransportClosed):
                while parser.phase is not BODY and not parser.requests and parser.refusal is None:
                    if not (data := await self.byte_stream.receive()):
                        break
                    parser.feed(data)
        except BaseException:  # cancelled, as another refused connection takes its place: refuse at once
            self.refusal, self._unused = None, False
            with suppress(TransportClosed):
                self.byte_stream.send_nowait(self._encode_refusal(refusal, parser.headers.get("origin")))
            raise
        if judge is None or not parser.requests or parser.requests[0].method != "OPTIONS":
            return
        request = parser.requests[0]
        request.keep_alive = False
        self._reply = reply = HttpReply(request, self, self._state)
        await judge(request, reply)
        if reply.started:
            self.refusal = None
            await self.flush()
            await self._send_last(b"")

    async def _refuse(self, refusal: Refusal, origin: str | None) -> None:
        """Send a refusal, and give the client time to read it. `origin`: of the request, if it was read."""
        await self._send_last(self._encode_refusal(refusal, origin))

    def _encode_refusal(self, refusal: Refusal, origin: str | None) -> bytes:
        fields, body = self._state.refuse(*refusal)
        if self._state.grants is not None and origin is not None:
            fields = _readable(fields, self._state.grants(origin))
        head = encode_response_head(refusal.status, fields) + self._state.date_field
        return head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def _send_last(self, data: bytes) -> None:
        """Send the end of an answer, then receive and discard for a while.

        Otherwise a client that is still sending would get a reset before it has read the answer.
        """
        self._parser.forget_body()  # it may be large, and the client may take its time
        self._give_back()
        self._forget()  # from here on this task receives
        with trio.move_on_after(LINGER_SECONDS), suppress(TransportClosed):
            if data:
                await self.byte_stream.send(data)
            await linger(self.byte_stream, LINGER_RECEIVES)

    def _give_back(self) -> None:
        """Return the bytes of an answered request's body to the budget."""
        if self._holding is not None:
            self._holding.leave()
            self._holding = None

    def close(self) -> None:
        """Close the socket and drop all references: cycles would wait long for the garbage collector."""
        self._give_back()
        self._forget()
        self.byte_stream.close()
        self._parser.close()
        self._reply = self._rest = self._handling = None

    async def _secure(self, context: ssl.SSLContext) -> bool:
        """Do the TLS handshake; return False if it ends the connection."""
        try:
            self.byte_stream = tls = await accept_tls(self.byte_stream, context, self.peer)
            self._parser.holder = holder_of(tls.peer_certificate())
        except NotTls as error:  # plain HTTP, and answered in plain HTTP
            self.refusal = Refusal(400, str(error))
        except TransportClosed as closed:
            log.info("TLS handshake failed", peer=self.peer, reason=str(closed))
            return False
        self._handshaking = False
        self._poller = self._state.poller
        return True

    def sweep(self) -> None:
        """Check the deadline, and whether the client is still there; called every SWEEP_SECONDS."""
        overdue = self._state.now > self.deadline
        if self._reply is not None:
            # A client that only closes its sending side counts as gone, too. A sleeping task is woken by the
            # end. With TLS, looking for it would consume the data before.
            if overdue or (self._task is None and self.byte_stream.is_finished()):
                self._scope.cancel(reason="the client reads nothing" if overdue else "the client left")
            elif self._reply.is_quiet_since(self._state.now - KEEP_ALIVE_SECONDS) and self._rest is None:
                self._reply.say_alive()
        elif self._parser.phase is not IDLE:
            if overdue:
                limit = "body_timeout" if self._parser.phase is BODY else "head_timeout"
                self.refusal = Refusal(408, f"the request did not arrive within `limits.{limit}`")
                self._scope.cancel(reason="the request did not arrive in time")
        elif (overdue or self._state.draining) and (self._handshaking or not self._has_come()):
            self._unused = not overdue and not self._handshaking
            self._scope.cancel(reason="idle")

    def _has_come(self) -> bool:
        """Return whether bytes have arrived that the task has not seen yet."""
        return bool(self._received) or self.byte_stream.is_readable()

    @property
    def resting_since(self) -> float | None:
        """The time since which there has been no byte of a request; None while there is a request."""
        busy = self._reply is not None or self._parser.phase is not IDLE or self._handshaking
        return None if busy or self._has_come() else self._rested

    def make_room(self) -> None:
        """End the connection, which rests, so that another client gets its place."""
        self._scope.cancel(reason="another client gets its place")

    def call_off(self, reason: str) -> None:
        """Cancel the handler that works now; a client without any answer yet gets CALLED_OFF."""
        self._called_off = True
        self._scope.cancel(reason=reason)

    def _begin(self, request: HttpRequest) -> bool:
        """Start the handler of a request; return whether it needs no task, asleep or done."""
        self.deadline = math.inf
        self._reply = reply = HttpReply(request, self, self._state)
        reply.context = context = self._context.copy()
        try:
            work = context.run(self._state.handler, request, reply)
        except Exception as crash:  # it may fail before it returns an awaitable
            work = _crash(crash)
        self._handling = handling = Inline(work, context, self._handled)
        return handling.start() or self._is_done(handling, reply)

    def _is_done(self, handling: Inline, reply: HttpReply) -> bool:
        """Return whether a request is done with; if so, get ready for the next one."""
        if not handling.is_over or handling.error is not None or reply.stage is not FINISHED:
            return False
        if self._rest is not None or self._called_off or not reply.request.keep_alive:
            return False
        self._handling = self._reply = None
        if self._holding is not None:
            self._give_back()
        self._rested = now = self._state.now
        self.deadline = now + self._limits.connection_idle
        return True

    def _handled(self) -> None:
        """Finish a request whose handler has slept and is over now, or wake the task for it.

        Called by the code that has woken the handler.
        """
        handling, reply = self._handling, self._reply
        if handling is None or reply is None or self._is_done(handling, reply):
            return
        # The task waits for the next request, with the poller or without it: cancelling ends either wait.
        self._wanted = True
        self._scope.cancel(reason="the handler needs the task")
        if self._state.poller is not None:
            self._state.poller.give_way()

    async def _settle(self, handling: Inline) -> bool:
        """Run the handler in this task until it is over; return whether the connection goes on."""
        reply = self._reply
        assert reply is not None
        await handling
        if reply.stage is NEW:
            raise LocalProtocolError("the handler returned without an answer")
        if reply.stage is OPEN:
            await reply.finish()
        self._handling = self._reply = None
        self._give_back()
        if not reply.request.keep_alive:
            self._called_off = False
            return False
        return not self._called_off  # too late for this one, and not meant for the next

    async def _go_on(self) -> None:
        """Go on after a request that was called off, or with a handler that needs the task."""
        called_off, handling, reply = self._called_off, self._handling, self._reply
        self._called_off = self._wanted = False
        if called_off and handling is not None:
            self._handling = None
            if not handling.is_over:
                # Not entered: it only records that the client left while the handler cleans up.
                self._scope = scope = trio.CancelScope()
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
                elif reply.stage is not FINISHED:
                    await reply.finish()
                await self.flush()
                self._reply = None
                self._give_back()
                if not reply.request.keep_alive:
                    return
            del reply, handling
            await self._converse(None)

    async def _converse(self, phase: Phase | None) -> None:
        """Receive and answer requests in turn, until either side ends the connection. This is the hot path.

        `phase`: of the parser before the last receive; None if requests were answered since.
        """
        parser = self._parser
        while True:
            while self._handling is not None or parser.requests:
                phase = None
                handling = self._handling
                if handling is None:
                    if self._begin(parser.requests.pop(0)) and self._handling is None:
                        continue
                    handling = self._handling
                assert handling is not None
                # With the next request here already, at least in part, its answer has to wait for this one.
                if handling.is_asleep and not (parser.requests or parser.refusal or parser.phase is not IDLE):
                    del handling
                    break  # receive the next request meanwhile
                if not await self._settle(handling):
                    return
                del handling  # the next may come much later
            if self._handling is None:
                if parser.refusal is not None:
                    self.refusal = parser.refusal
                    return
                if phase is None or parser.phase is BODY or parser.phase is not phase:
                    # More bytes of a head win no time, or a client could send one byte at a time for ever.
                    self._renew_deadline(phase)
                if parser.phase is BODY and (parser.is_large or parser.wants_continue):
                    if phase is not BODY and not await self._judge():
                        return
                    if not self._take_body():
                        return
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
            # Requests are answered in order. The end waits too: the sweeper sees it, and cancels the handler.
            if (late := self._handling) is not None:
                if self._scope.cancel_called or not await self._settle(late):
                    return
                phase = None
            if not data:
                return

    async def _judge(self) -> bool:
        """Let the judge see a request's head; return False if it has answered: that ends the connection."""
        judge, request = self._state.judge, self._parser.coming
        if judge is None or request is None:
            return True
        # An answer closes the connection: the body, which is not read, would pass for the next request.
        stays, request.keep_alive = request.keep_alive, False
        self.deadline = math.inf
        self._reply = reply = HttpReply(request, self, self._state)
        await judge(request, reply)
        await self.flush()
        self._reply = None
        if reply.started:
            self.deadline = math.inf
            await self._send_last(b"")
            return False
        request.keep_alive = stays
        self._renew_deadline(None)
        return True

    def _take_body(self) -> bool:
        """Count the body that is being received; return False, setting `refusal`, if it does not fit."""
        size, holding, request = self._parser.body_size, self._holding, self._parser.coming
        if size <= SMALL_BODY or request is None or (holding is not None and size <= holding.size):
            return True
        if holding is None:
            holding = Holding(self._state.bodies, budget_client(request.principal, self.peer))
            request.holding = self._holding = holding
        if not holding.hold(size):
            self.refusal = Refusal(503, holding.bodies.full, SETTING)
            return False
        return True

    async def _receive(self) -> bytes:
        """Return the next bytes; b"" at the end, or when `_has_begun` says that a handler needs the task."""
        poller = self._poller
        if poller is None or self.byte_stream.early:
            try:
                return await self.byte_stream.receive()
            except TransportClosed:
                return b""
        if not self._watched:
            self._watched = True
            poller.watch(self.byte_stream.descriptor, self._hear)
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)
        data, self._received = self._received, b""
        return data

    def _leave(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _hear(self) -> None:
        """Receive, and pass a whole request to the handler, anything else to the task. Called by the poller.

        While the task is awake, no bytes are received, so a peer that sends too fast has to wait.
        """
        if self._task is None:  # the task watches again when it sleeps
            self._forget()
            return
        try:
            data = self.byte_stream.receive_nowait()
        except TransportClosed:
            data = b""
        if data is None:
            return
        if data and self._handling is None and (request := self._parser.read_whole(data)) is not None:
            if self._begin(request):
                return
            self._has_begun = True
        task, self._task = self._task, None
        if task is not None:  # otherwise the handler has cancelled it, or woken it
            self._received = data
            if self._poller is not None:
                self._poller.give_way()
            trio.lowlevel.reschedule(task)

    def _forget(self) -> None:
        if self._watched and self._poller is not None:
            self._watched = False
            self._poller.forget(self.byte_stream.descriptor)

    def _renew_deadline(self, before: Phase | None) -> None:
        phase, limits, now = self._parser.phase, self._limits, self._state.now
        if phase is IDLE:
            self._rested = now
            self.deadline = now + limits.connection_idle
        elif phase is BODY:
            if before is not BODY:
                self._body_began = now
            # A body that keeps up BODY_RATE gets its patience anew, a slower one loses time.
            least = self._body_began + self._parser.body_bytes / BODY_RATE
            self.deadline = min(now, least) + limits.body_timeout
        else:
            self.deadline = now + limits.head_timeout

    def send(self, data: bytes) -> Awaitable[None]:
        """Send all of `data`. A peer that is gone, or reads nothing for too long, cancels the connection.

        The rest of a cancelled call is sent before the next. The result must be awaited at once.
        """
        if self._rest is not None:
            return self._send_behind(data)
        try:
            sent = self.byte_stream.send_nowait(data)
        except TransportClosed:
            return self._lose_client()
        if sent == len(data):
            return AT_ONCE
        self._rest = memoryview(data)[sent:]
        return self.flush()

    async def _send_behind(self, data: bytes) -> None:
        await self.flush()
        await self.send(data)

    async def send_parts(self, parts: Sequence[Part]) -> None:
        """Send all `parts`, one after the other, as `send` does. Cancelling ends the connection."""
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
        """Take all of `data`, and send some without waiting; return False if `flush` must send the rest."""
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
        """Send the rest of earlier data, as `send` does."""
        if self._rest is None:
            return
        await in_task()
        deadline = self.deadline
        try:
            while self._rest is not None:
                # Renewed whenever the peer has read something: only a stalled one is cut off.
                self.deadline = self._state.now + self._limits.client_stall
                await self.byte_stream.wait_sendable()
                sent = self.byte_stream.send_nowait(self._rest)
                self._rest = self._rest[sent:] or None
        except TransportClosed:
            self._rest = None
            await self._lose_client()
        finally:
            self.deadline = deadline

    async def _lose_client(self) -> None:
        self._scope.cancel(reason="the client left")
        # The handler ends here, by cancelling, and needs no code for errors of sending.
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
    with trio.CancelScope() as scope:
        scope.cancel(reason="the answer is not wanted any more")
        await handling
