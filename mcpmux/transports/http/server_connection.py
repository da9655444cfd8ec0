"""One client's connection to an HTTP/1.1 server: requests and answers in turn, until either side ends it.

    SECURING   -- TLS is agreed -->                        RECEIVING
    RECEIVING  -- a whole request has come -->             ANSWERING
    RECEIVING  -- only the head of a large one has come -> JUDGING
    RECEIVING  -- the end, or what must be refused -->     ENDING
    RECEIVING  -- the server stops, no byte has come -->   UNUSED
    JUDGING    -- the body may come -->                    RECEIVING
    JUDGING    -- the judge has answered, or no room -->   ENDING
    ANSWERING  -- called off -->                           CALLED_OFF
    ANSWERING, CALLED_OFF  -- the answer is sent -->       RECEIVING   or ENDING, if that was the last answer
    any        -- late, or the client left -->             the task is cancelled

A request is received, and given to its handler, where the poller calls: the connection's task sleeps
meanwhile, and is woken when the handler, which runs inline until then, has to wait for something of trio. The
server calls `sweep` for deadlines, and to notice that the client left while its request is being handled.
Malformed and oversized requests are refused here; the meaning of a request is left to the handler. A body
that may be large is read only after a judge has seen its head, and if the budget for bodies has room for it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import structlog
import trio

from mcpmux.config import Limits
from mcpmux.errors import LocalProtocolError, TransportClosed
from mcpmux.transports.body_budget import BODY_RATE, SETTING, SMALL_BODY, BodyBudget, Holding, budget_client
from mcpmux.transports.byte_stream import PlainStream, address_of
from mcpmux.transports.http.message import HeaderFields, HttpRequest, Refusal, encode_response_head
from mcpmux.transports.http.reply import FINISHED, NEW, OPEN, HttpReply, ReplyWriter, readable
from mcpmux.transports.http.request_parser import BODY, IDLE, Phase, RequestParser
from mcpmux.transports.inline import Inline, Wake, woken
from mcpmux.transports.sse import KEEP_ALIVE_SECONDS
from mcpmux.transports.tls import ByteStream, CurrentContext, NotTls, accept_tls, holder_of, linger
from mcpmux.transports.waiting import ReadinessPoller
from mcpmux.transports.wall import walled

Handler = Callable[[HttpRequest, HttpReply], Awaitable[None]]
GiveBack = Callable[[int], Awaitable[None]]
"""Takes the descriptor of a connection, which the caller closes."""

Grants = Callable[[str], HeaderFields]
EncodeRefusal = Callable[[int, str, str], tuple[HeaderFields, bytes]]

LINGER_SECONDS: Final = 2.0  # for which a refused client may go on sending before it is cut off
LINGER_RECEIVES: Final = 1024  # and how much (64 MiB at most), so that it reads our answer, not a reset
HEAR_SECONDS: Final = 1.0  # for the head of a request that is refused in any case


@dataclass(eq=False)
class ServerState:
    """The common state of all connections of a server; see `serve_http`.

    `now`: trio's time without the time in which this process did not run, at most a sweep old, for deadlines.
    `date_field`: b"Date: …\\r\\n". `grants`: returns the fields by which pages of an origin may read every
    response. `judge`: gets a request whose large body is still to come, and answers if it is not to be read.
    `last_head`: status and fields of the last response, and both encoded.
    """

    handler: Handler
    refuse: EncodeRefusal
    limits: Limits
    now: float
    date_field: bytes
    bodies: BodyBudget
    poller: ReadinessPoller
    tls: CurrentContext | None = None
    give_back: GiveBack | None = None
    draining: bool = False
    grants: Grants | None = None
    judge: Handler | None = None
    last_head: tuple[int, HeaderFields, bytes] = (0, (), b"")


CALLED_OFF_STATUS: Final = 202  # of the empty answer to a request whose handler was called off

log = structlog.get_logger()

CONNECTION: Final[ContextVar[str]] = ContextVar("CONNECTION", default="")
"""The peer's address and port, in all tasks that its requests cause; "" elsewhere."""


class ConnectionState(Enum):
    """The state of a connection, see the module's table."""

    SECURING = auto()
    RECEIVING = auto()
    JUDGING = auto()
    ANSWERING = auto()
    CALLED_OFF = auto()
    UNUSED = auto()
    ENDING = auto()


# A global is found faster than an attribute of the class.
SECURING: Final = ConnectionState.SECURING
RECEIVING: Final = ConnectionState.RECEIVING
JUDGING: Final = ConnectionState.JUDGING
ANSWERING: Final = ConnectionState.ANSWERING
CALLED_OFF: Final = ConnectionState.CALLED_OFF
UNUSED: Final = ConnectionState.UNUSED
ENDING: Final = ConnectionState.ENDING


class ServerConnection:
    """One client's connection.

    `deadline`: the time at which the sweeper ends the connection, infinite while the handler works.
    `refusal`: the error with which the connection ends, if the client is to get one.
    """

    def __init__(self, server: ServerState, stream: trio.SocketStream) -> None:
        self.peer = address_of(stream)
        self.byte_stream: ByteStream = PlainStream(stream)
        self.state = RECEIVING if server.tls is None else SECURING
        self.refusal: Refusal | None = None
        self.deadline = server.now + server.limits.head_timeout
        self._rested = server.now  # time since which it has no request, if it has none
        self._body_began = 0.0  # time at which the head was complete of the body that is being received
        self._server = server
        self._parser = RequestParser(server.limits, self.peer)
        self._scope = trio.CancelScope()
        self._writer = ReplyWriter(server, self.byte_stream, self._scope)
        self._reply: HttpReply | None = None  # to the request that is being answered, or judged
        self._handling: Inline | None = None  # its handler
        self._attending: trio.CancelScope | None = None  # of the handler, while it has the task
        self._holding: Holding | None = None  # of its large body
        self._watched = False  # by the poller
        self._is_behind = False  # bytes behind the request that is being answered
        self.wake: Wake | None = None  # wakes the task, while that is asleep until it is needed

    def __repr__(self) -> str:
        return f"<ServerConnection {self.state.name} of {self.peer}>"

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
        give_back = self._server.give_back
        # During a handshake there is no TLS yet in which a refusal could be sent.
        if self.refusal is not None and self.state is not SECURING:
            headers = self._parser.headers if self._reply is None else self._reply.request.headers
            self._reply = None
            self.deadline = math.inf
            await self._send_last(self._encode_refusal(self.refusal, headers.get("origin")))
        elif self.state is UNUSED and give_back is not None and isinstance(self.byte_stream, PlainStream):
            # Other workers go on: a client that is about to send a request must not notice the stop.
            self._forget()
            with suppress(TransportClosed):
                await give_back(self.byte_stream.descriptor)

    async def _live(self) -> None:
        with self._scope:
            if (context := self._server.tls) is not None:
                try:
                    self.byte_stream = tls = await accept_tls(self.byte_stream, context(), self.peer)
                    self._writer.byte_stream = tls
                    self._parser.holder = holder_of(tls.peer_certificate())
                except NotTls as error:  # plain HTTP, and answered in plain HTTP
                    self.refusal = Refusal(400, str(error))
                except TransportClosed as closed:
                    log.info("TLS handshake failed", peer=self.peer, reason=str(closed))
                    return
                self.state = RECEIVING
            if self.refusal is not None:
                self.state = ENDING
                if self._server.grants is not None:
                    await self._hear_out(self.refusal)
            while self.state is not ENDING:
                # The handler is in no variable: the frame of a sleeping task would keep that of an earlier
                # request.
                is_asleep = self._handling is not None and self._handling.is_asleep
                if self.state is JUDGING:
                    await self._judge()
                elif self.state is CALLED_OFF or (self.state is ANSWERING and not is_asleep):
                    await self._attend()
                    self._go_on(None)
                else:
                    await self._sleep()

    async def _hear_out(self, refusal: Refusal) -> None:
        """Receive the head of a request that is refused anyway."""
        # It has the origin, without whose name a browser keeps the refusal from its page.
        parser, judge = self._parser, self._server.judge
        try:
            with trio.move_on_after(HEAR_SECONDS), suppress(TransportClosed):
                while parser.phase is not BODY and not parser.requests and parser.refusal is None:
                    if not (data := await self.byte_stream.receive()):
                        break
                    parser.feed(data)
        except BaseException:  # cancelled, as another refused connection takes its place: refuse at once
            self.refusal = None
            with suppress(TransportClosed):
                self.byte_stream.send_nowait(self._encode_refusal(refusal, parser.headers.get("origin")))
            raise
        # A preflight request is answered: only then does a page send the request that gets the refusal.
        if judge is None or not parser.requests or parser.requests[0].method != "OPTIONS":
            return
        request = parser.requests[0]
        request.keep_alive = False
        self._reply = reply = HttpReply(request, self._writer, self._server, self.call_off)
        await judge(request, reply)
        if reply.started:
            self.refusal = None
            await self._writer.flush()
            await self._send_last(b"")

    def _encode_refusal(self, refusal: Refusal, origin: str | None) -> bytes:
        """Return the response to a refused request. `origin`: of the request, if it was read."""
        fields, body = self._server.refuse(*refusal)
        if self._server.grants is not None and origin is not None:
            fields = readable(fields, self._server.grants(origin))
        head = encode_response_head(refusal.status, fields) + self._server.date_field
        return head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def _send_last(self, data: bytes) -> None:
        """Send the end of an answer, then receive and discard for a while."""
        # Otherwise a client that is still sending would get a reset before it has read the answer.
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
        """Close the socket and drop all references."""
        # Cycles would wait long for the garbage collector.
        self._give_back()
        self._forget()
        self.byte_stream.close()
        self._parser.close()
        self._reply = self._writer.rest = self._handling = None

    # Called by others: the server's sweeper, its rules for full servers, and code that handles requests

    def sweep(self) -> None:
        """Check the deadline, and whether the client is still there; called every SWEEP_SECONDS."""
        server = self._server
        overdue = server.now > min(self.deadline, self._writer.deadline)
        if self._reply is not None:
            # A client that only closes its sending side counts as gone, too. The poller tells of the end.
            # With TLS, looking for it would consume the data before.
            if overdue or (not self._watched and self.byte_stream.is_finished()):
                self.end("the client reads nothing" if overdue else "the client left")
            elif self._reply.is_quiet_since(server.now - KEEP_ALIVE_SECONDS):
                self._reply.say_alive()
        elif self._parser.phase is not IDLE:
            if overdue and self.state is RECEIVING:
                limit = "body_timeout" if self._parser.phase is BODY else "head_timeout"
                self.refusal = Refusal(408, f"the request did not arrive within `limits.{limit}`")
                self.end("the request did not arrive in time")
        elif (overdue or server.draining) and self.state is SECURING:
            self.end("idle")
        elif (overdue or server.draining) and not self.byte_stream.is_readable():
            self.state = ENDING if overdue or self.state is not RECEIVING else UNUSED
            self.end("idle")

    @property
    def resting_since(self) -> float | None:
        """The time since which there has been no byte of a request; None while there is a request."""
        busy = self._reply is not None or self._parser.phase is not IDLE or self.state is SECURING
        return None if busy or self.byte_stream.is_readable() else self._rested

    def end(self, reason: str) -> None:
        """End the connection: cancel its task, which ends the handler, too."""
        self._scope.cancel(reason=reason)

    def call_off(self, reason: str) -> None:
        """Cancel the handler that works now; a client without any answer yet gets CALLED_OFF_STATUS."""
        if self.state is ANSWERING:
            self.state = CALLED_OFF
            if self._attending is not None:
                self._attending.cancel(reason=reason)
            self._wake()

    # Where the poller calls, or a handler is woken: no function waits

    def _receive(self) -> None:
        """Receive, and begin what has come whole; wake the task for anything else. Called by the poller."""
        # While the task is awake, no bytes are received, so a peer that sends too fast has to wait. The task
        # watches again when it sleeps.
        if self.wake is None and self._watched:
            self._forget()
            return
        parser = self._parser
        phase = parser.phase
        try:
            data = self.byte_stream.receive_nowait()
        except TransportClosed:
            data = b""
        if data is None:
            return
        if data:
            parser.feed(data)
        if self.state is not RECEIVING:
            self._is_behind = True
            self._forget()  # what comes behind waits, and so does the end: the sweeper sees it
        elif not data:
            self.state = ENDING
            self._wake()
        elif not self._go_on(phase):
            self._wake()

    def _go_on(self, before: Phase | None) -> bool:
        """Begin what has come, as far as that needs no task; return False if something needs it.

        `before`: the parser's phase before the last bytes; None if requests were answered since.
        """
        parser = self._parser
        while self.state is RECEIVING and parser.requests:
            before = None
            self.state = ANSWERING
            self.deadline = math.inf  # the limits of a handler are its own
            request = parser.requests.pop(0)
            self._reply = reply = HttpReply(request, self._writer, self._server, self.call_off)
            reply.context = context = self._context.copy()
            try:
                work = context.run(self._server.handler, request, reply)
            except Exception as crash:  # it may fail before it returns an awaitable
                work = _crash(crash)
            self._handling = handling = Inline(work, context, self._handled)
            if not handling.start() and not self._is_done(handling, reply):
                return False
        if self.state is ANSWERING:
            # Answers go out in the order of their requests, so what comes behind this one waits for its
            # answer.
            self._is_behind = bool(parser.requests) or parser.refusal is not None or parser.phase is not IDLE
            if self._is_behind:
                self._forget()
            return True
        if self.state is not RECEIVING:
            return False
        if parser.refusal is not None:
            self.refusal, self.state = parser.refusal, ENDING
            return False
        phase = parser.phase
        if before is None or phase is BODY or phase is not before:
            # More bytes of a head win no time, or a client could send one byte at a time for ever.
            self._renew_deadline(before)
        if phase is BODY and before is not BODY and (parser.is_large or parser.wants_continue):
            self.state = JUDGING
            return False
        if phase is BODY and parser.is_large and not self._take_body():
            self.state = ENDING
            return False
        return True

    def _is_done(self, handling: Inline, reply: HttpReply) -> bool:
        """Return whether a request is done with; if so, get ready for the next one."""
        if not handling.is_over or handling.error is not None or reply.stage is not FINISHED:
            return False
        if self._writer.rest is not None or self.state is CALLED_OFF or not reply.request.keep_alive:
            return False
        self._handling = self._reply = None
        if self._holding is not None:
            self._give_back()
        self._rested = now = self._server.now
        self.deadline = now + self._server.limits.connection_idle
        self.state = RECEIVING
        return True

    def _handled(self) -> None:
        """Finish a request whose handler has slept and is over now, or wake the task for it.

        Called by the code that has woken the handler.
        """
        handling, reply = self._handling, self._reply
        if handling is None or reply is None:
            return
        if self._is_done(handling, reply):
            if self._watched:
                return
            self._go_on(None)  # what has come behind it
        self._wake()

    def _take_body(self) -> bool:
        """Count the body that is being received; return False, setting `refusal`, if it does not fit."""
        size, holding, request = self._parser.body_size, self._holding, self._parser.coming
        if size <= SMALL_BODY or request is None or (holding is not None and size <= holding.size):
            return True
        if holding is None:
            holding = Holding(self._server.bodies, budget_client(request.principal, self.peer))
            request.holding = self._holding = holding
        if not holding.hold(size):
            self.refusal = Refusal(503, holding.bodies.full, SETTING)
            return False
        return True

    def _renew_deadline(self, before: Phase | None) -> None:
        phase, limits, now = self._parser.phase, self._server.limits, self._server.now
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

    def _wake(self) -> None:
        if self.wake is not None:
            self._server.poller.give_way()
            self.wake()

    def _forget(self) -> None:
        if self._watched:
            self._watched = False
            self._server.poller.forget(self.byte_stream.descriptor)

    # In the connection's task

    async def _sleep(self) -> None:
        """Let the poller receive, until something needs the task."""
        is_early = self.byte_stream.early
        if self.state is RECEIVING and is_early:
            self._forget()  # the socket is silent about bytes that TLS has received already
            await trio.lowlevel.checkpoint()
            self._receive()
            return
        if not self._watched and (self.state is RECEIVING or not (is_early or self._is_behind)):
            self._watched = True
            self._server.poller.watch(self.byte_stream.descriptor, self._receive)
        await woken(self)

    async def _attend(self) -> None:
        """Run the handler until it is over, and end the answer that it has left open, or not begun."""
        handling, reply = self._handling, self._reply
        assert handling is not None and reply is not None
        with trio.CancelScope() as self._attending:
            if self.state is CALLED_OFF:
                self._attending.cancel(reason="called off")
            await handling
        self._handling = self._attending = None
        if reply.stage is OPEN:
            await reply.finish()
        elif reply.stage is NEW and self.state is CALLED_OFF:
            await reply.send(CALLED_OFF_STATUS, ())
        elif reply.stage is NEW:
            raise LocalProtocolError("the handler returned without an answer")
        await self._writer.flush()
        self._reply = None
        self._give_back()
        self.state = RECEIVING if reply.request.keep_alive and not self._scope.cancel_called else ENDING

    async def _judge(self) -> None:
        """Let the judge see a request's head. Its answer ends the connection, or its body is received."""
        judge, request = self._server.judge, self._parser.coming
        if judge is not None and request is not None:
            # An answer closes the connection: the body, which is not read, would pass for the next request.
            stays, request.keep_alive = request.keep_alive, False
            self.deadline = math.inf
            self._reply = reply = HttpReply(request, self._writer, self._server, self.call_off)
            await judge(request, reply)
            await self._writer.flush()
            self._reply = None
            if reply.started:
                self.state = ENDING
                await self._send_last(b"")
                return
            request.keep_alive = stays
            self._renew_deadline(None)
        if not self._take_body():
            self.state = ENDING
            return
        if self._parser.wants_continue:
            self._parser.wants_continue = False
            await self._writer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.state = RECEIVING

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
