"""Exchanges with one upstream over Streamable HTTP, in both eras: one POST each.

    POSTed --JSON, whole-----------------------> answered
           --an event stream without an event--> silent --its first event is the answer-------> answered
           --anything else---------------------> carried: a task reads on
    cannot be POSTed at once ------------------> carried from the beginning

Promises: the answer may come as JSON or as an event stream, over as many connections as a legacy server makes
of it; cancelling an exchange closes its response, and tells a legacy server. A call in which a legacy server
asks something can be parked: its response is read on meanwhile.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

import structlog
import trio

from mcpmux.channels.channel import FAREWELL_SECONDS, Channel, answer_server, ignore_event
from mcpmux.channels.duplex_channel import DuplexChannel
from mcpmux.channels.http_peer import (
    REFUSALS,
    STREAM_BYTES,
    HttpErrorReply,
    HttpPeer,
    HttpPlace,
    HttpStatusError,
    PendingHttpRequest,
    SessionExpired,
    answer_in,
    as_answer,
    batch_in,
    is_compressed,
    may_mean_forgotten,
    message_in,
    nonsense,
    pause_before_stream,
    retry_seconds,
)
from mcpmux.channels.pending import PendingRequest, own_id
from mcpmux.channels.tap import EXCHANGE, said_in_answer
from mcpmux.errors import (
    LocalProtocolError,
    McpmuxError,
    RemoteProtocolError,
    RpcError,
    TransportClosed,
    TransportError,
    forget_frames,
)
from mcpmux.mux.breaker import Comeback
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Call, Event, Notify
from mcpmux.protocol.codes import (
    BUSY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    TOO_MANY_REQUESTS,
    UNAVAILABLE,
)
from mcpmux.protocol.envelope import (
    LARGE_BYTES,
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    decode_fields,
    decode_reply,
    encode_error,
    encode_notification,
    encode_reply,
    first_byte,
    id_of,
    is_batch,
)
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import ASKS
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import related_task
from mcpmux.transports.http.client import HttpResponse, was_unsent
from mcpmux.transports.sse import SseDecoder
from mcpmux.transports.waiting import Deadline

log = structlog.get_logger()

OpenOlder = Callable[[], Awaitable[DuplexChannel | None]]
"""Opens a channel to the same server over HTTP+SSE; returns None if the server does not speak that."""

LISTEN_SECONDS: Final = 2.0  # for the server to open its own stream
REFUSED_SECONDS = 5.0  # before a server is asked again that refused its own stream
TOOL_PAGES: Final = 100  # of a server's tools that are searched for annotations before a call is repeated

_NOT_STREAMABLE: Final = (400, 404, 405)
"""Statuses with which a server of HTTP+SSE answers an `initialize` POSTed to its event stream's URL."""

_NOT_IMPLEMENTED: Final = 501

_ANSWERS_OF_MODERN: Final = frozenset(
    {METHOD_NOT_FOUND, INVALID_PARAMS, HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY}
)

# Calls that a task sends: the answer to `initialize` also has headers that matter, such as the session's id;
# the stream of a listen begins with its acknowledgement, so that a task reads on in any case.
_SENT_BY_TASK: Final = frozenset({m.INITIALIZE, m.LISTEN})

_MAY_ASK: Final = m.ASKED_DURING - {m.RESOURCES_READ}
"""Requests in which a server may ask something. No legacy server does in `resources/read`, the hot path."""


class HttpChannel(Channel):
    """One upstream over HTTP. Made by `open_streamable`.

    `exchange` may also raise SessionExpired and HttpStatusError.
    """

    source = "a response"
    takes_headers = True
    pending_kind = PendingHttpRequest

    def __init__(self, place: HttpPlace, nursery: trio.Nursery, older: OpenOlder | None) -> None:
        self.peer = peer = HttpPeer(place)
        super().__init__(peer.tell, place.hear, peer.closed)
        self._open_older = older
        self._nursery = nursery
        self._over: TransportError | None = None
        self.hearing = False  # whether the server's own stream is open
        self.questions.may_ask = _MAY_ASK
        self._learning: list[Call] = []  # calls that are repeated with other headers

    @property
    def close_reason(self) -> TransportError:
        return self.peer.close_reason or TransportClosed("its session was closed")

    def give_up(self, reason: TransportError) -> None:
        self.peer.lose(reason)

    async def older(self) -> DuplexChannel | None:
        """Open the server over HTTP+SSE, if it refused `initialize` like one and has an event stream there.

        Raises RemoteProtocolError when it has one that must not be used.
        """
        if self._open_older is None or self.peer.initialize_status not in _NOT_STREAMABLE:
            return None
        channel = await self._open_older()
        if channel is not None:
            channel.questions.find_client = self.questions.find_client
            channel.asks_progress = self.asks_progress
        return channel

    def settle(self, facts: ServerFacts) -> None:
        super().settle(facts)
        self.peer.settle(facts)
        self.session = self.peer.session

    def _after_error(
        self, call: Call, notify: Notify, deadline: Deadline | None, error: RpcError
    ) -> Awaitable[Fields] | None:
        # The tool's annotations have changed since they were learned, or were never learned here. A legacy
        # server may mean anything by that code, and has perhaps carried the call out.
        missed = error.code == HEADER_MISMATCH and not self.peer.legacy
        missed = missed and call.method == m.TOOLS_CALL and call not in self._learning
        return self._learn_and_repeat(call, notify, deadline) if missed else None

    async def _learn_and_repeat(self, call: Call, notify: Notify, deadline: Deadline | None) -> Fields:
        """List the server's tools anew to learn which headers it misses, then repeat the call."""
        self._learning.append(call)  # so that it is repeated once only
        cursor: Raw | None = None
        try:
            for _ in range(TOOL_PAGES):  # bounded, as a server's cursors may go in circles
                params = {} if cursor is None else {"cursor": cursor}
                result = await self.exchange(Call(m.TOOLS_LIST, params, call.meta), ignore_event, deadline)
                self.peer.tools.learn(result)
                cursor = result.get("nextCursor")
                if cursor is None or first_byte(cursor) != b'"':
                    break
            return await self.exchange(call, notify, deadline)
        finally:
            self._learning.remove(call)

    def learn_tools(self, result: Fields) -> Fields:
        """Learn which arguments go into headers; leave out tools with invalid annotations, and log them."""
        # "Custom Headers from Tool Parameters" in Streamable HTTP of 2026-07-28: such a tool must not be
        # listed.
        for tool, reason in self.peer.tools.learn(result):
            log.warning("tool left out: its header annotations are invalid", tool=tool, reason=reason)
        return result

    # One request

    def _send_now(self, pending: PendingRequest) -> bool:
        assert isinstance(pending, PendingHttpRequest)
        if self._over is not None:
            raise self._over.anew()
        peer = self.peer
        if peer.watched:
            pending.context = copy_context()  # holds the exchange's number, for the tap
        if peer.close_reason is None and pending.call.method not in _SENT_BY_TASK:
            hear = partial(self._take, pending)
            pending.sent = peer.post(pending.call, pending.id, hear, asks_progress=self.asks_progress)
        if pending.sent is None:
            self._carry(pending)
        return True

    def _take(self, pending: PendingHttpRequest) -> None:
        """Take received bytes of a call that was POSTed, or the end of its connection. Never waits."""
        sent, peer = pending.sent, self.peer
        if sent is None:
            return
        answer: Reply | ErrorReply | None = None
        try:
            pending.is_silent = False  # a stream that was silent may have broken off
            # Batches are read by a task: one event may have several messages, with questions among them.
            come = None if peer.batches else sent.take_nowait()
            if isinstance(come, HttpResponse):
                answer = self._take_event(pending, come)
            elif come:
                pending.whole = come  # for the task that reads on, if this is no answer
                answer = answer_in(come, pending)
                if peer.watched:
                    peer.note(come, 200, said_in_answer(answer, pending.call.method))
                if answer is not None:
                    sent.release()
        except Exception as error:
            # The wall around one answer: an error must not reach the poller, which calls this.
            pending.sent = None
            sent.release()
            failure = error if isinstance(error, McpmuxError) else None
            if failure is None:
                log.error("an answer could not be taken", exc_info=error)
            pending.settle(failure or LocalProtocolError("the answer could not be taken"))
            return
        if answer is not None:
            pending.sent = None
            pending.settle(answer)
        elif not pending.is_silent:
            self._carry(pending)

    def _take_event(self, pending: PendingHttpRequest, response: HttpResponse) -> Reply | ErrorReply | None:
        """Return the answer if it is the only event of a stream so far; wait on if there is no event yet."""
        peer, decoder = self.peer, pending.decoder
        if decoder is None:
            decoder = pending.decoder = SseDecoder(peer.message_limit)
        chunk = response.receive_nowait(min(STREAM_BYTES, peer.message_limit))
        if chunk is None:  # much has come: decoding it here would hold up all other connections
            return None
        pending.begun = begun = [event.data for event in decoder.feed(chunk) if event.data]
        if not begun and not response.is_complete:
            pending.is_silent = True
            response.hear_more(partial(self._take, pending))
        if len(begun) != 1:
            return None
        answer = answer_in(begun[0], pending)
        if answer is not None:
            if peer.watched:
                peer.note(begun[0], 200, said_in_answer(answer, pending.call.method))
            # The end of the stream may take a moment; the answer does not wait for it.
            response.release(ends=True)
        return answer

    def _carry(self, pending: PendingHttpRequest) -> None:
        """Start a task that reads the response of a call, after sending the call if that was not done."""
        scope = pending.carrier = trio.CancelScope()
        name = f"carry {pending.call.method}"
        start = partial(self._nursery.start_soon, self._carry_on, pending, scope, name=name)
        if pending.context is None:
            start()
        else:
            pending.context.run(start)

    async def _carry_on(self, pending: PendingHttpRequest, scope: trio.CancelScope) -> None:
        """Send a call, if that was not done, and read until its answer; cancelled, tell the server."""
        try:
            with scope:
                if pending.sent is None and scope.cancel_called:
                    return  # cancelled before it was sent
                try:
                    pending.settle(await self._read_answer(pending))
                except (trio.Cancelled, TransportClosed) as end:
                    if pending.answer is None and not pending.unsent:
                        await self._say_cancelled(pending)
                    raise end
        except McpmuxError as error:
            forget_frames(error)  # they would keep the body alive
            pending.settle(error)
        finally:
            pending.carrier = None
            pending.whole, pending.decoder, pending.begun = None, None, ()

    async def _read_answer(self, pending: PendingHttpRequest) -> Reply | ErrorReply:
        """Return the answer, over as many connections as its stream takes: a legacy server may resume it."""
        peer, sent, pending.sent = self.peer, pending.sent, None
        try:
            response = await peer.ask(pending.call, self._encoded(pending), sent)
        except BaseException as error:
            pending.unsent = was_unsent(error)
            raise
        resumed = False
        while True:
            try:
                if resumed and not response.is_stream:
                    raise TransportClosed("the response stream ended without an answer and is not resumed")
                read = self._read_stream if response.is_stream else self._read
                answer = await read(response, pending)
                if answer is not None:
                    if response.is_stream and not resumed:
                        response.release(ends=True)
                    return answer
            finally:
                response.release()
            broken = pending.decoder
            assert broken is not None  # `_read_stream` has made it
            # The server decides when: it may close streams on purpose, to be asked again later.
            await trio.sleep(retry_seconds(broken))
            response = await peer.open_stream(broken.last_event_id)
            pending.decoder, resumed = broken.continued(), True

    # The answer in a response: JSON, a batch, or an event stream. Messages before it are taken first, each to
    # where it belongs; messages behind it belong to no request. All raise TransportError and Overdue.

    async def _read(self, response: HttpResponse, pending: PendingHttpRequest) -> Reply | ErrorReply:
        """Return the answer in a response that is no event stream.

        May also raise SessionExpired and HttpStatusError.
        """
        peer, status = self.peer, response.status
        if status == 404 and peer.session is not None:
            self.doubtful = True
            raise SessionExpired("the server has forgotten the session")
        body = b"" if pending.whole is None and is_compressed(response) else pending.whole
        if body is None:
            received = await response.read_body()
            # A large answer is passed on without being copied, unless a tap sees the bytes.
            if status == 200 and len(received) > LARGE_BYTES and not peer.watched:
                reply = decode_reply(received)
                if reply is not None and reply.id == pending.id:
                    return reply
                await trio.lowlevel.checkpoint()  # the lines below take as long again
            body = bytes(received)
            del received
        if not pending.whole:  # `_take` has noted it
            peer.note(body, status)
        message: Message | BadMessage | None
        if peer.batches and is_batch(body):
            message = await self._take_up_to(batch_in(body), pending)
        else:
            message = message_in(body)
        if status >= 400:
            usual = isinstance(message, ErrorReply) and message.code in _ANSWERS_OF_MODERN
            if status in REFUSALS and (peer.legacy or not usual):
                self.doubtful = True
            if status in (TOO_MANY_REQUESTS, UNAVAILABLE):  # the status counts, even with an error object
                error = peer.status_error(response, body)
                error.is_busy = error.is_busy or (isinstance(message, ErrorReply) and message.code == BUSY)
                raise error
        answer = as_answer(message, pending)
        if isinstance(answer, ErrorReply) and status >= 400:
            raise HttpErrorReply(status, peer.masked(answer))
        if answer is not None:
            return answer
        if status != 200:
            raise peer.status_error(response, body)
        raise nonsense(response, peer.hidden(body), message, peer.without_secrets)

    async def _read_stream(
        self, response: HttpResponse, pending: PendingHttpRequest
    ) -> Reply | ErrorReply | None:
        """Return the answer in an event stream; None if it breaks off before and can be resumed."""
        peer = self.peer
        begun, pending.begun = pending.begun, ()
        decoder = pending.decoder
        if decoder is None:
            decoder = pending.decoder = SseDecoder(peer.message_limit)
        try:
            answer = await self._take_events(response, decoder, pending, begun)
        except TransportClosed:  # the stream can be resumed behind the last event with an id
            if not decoder.last_event_id:
                raise
            answer = None
        if answer is None and not (decoder.last_event_id and peer.legacy):
            raise TransportClosed("the response stream ended without an answer")
        return answer

    async def _take_events(
        self,
        response: HttpResponse,
        decoder: SseDecoder,
        pending: PendingHttpRequest | None,
        begun: Sequence[bytes] = (),
    ) -> Reply | ErrorReply | None:
        """Take the messages of an event stream up to the answer, and return that; None at the stream's end.

        `pending`: as for `_take_up_to`. `begun`: the data of the events that were read before.
        """
        status, events = response.status, begun
        while True:
            for data in events:
                answer = await self._take_up_to(self.peer.messages_of(data, status), pending)
                if answer is not None:
                    return answer
            chunk = await response.receive_some()
            if not chunk:
                return None
            events = [event.data for event in decoder.feed(chunk)]

    async def _take_up_to(
        self, messages: Iterable[Message | BadMessage], pending: PendingHttpRequest | None
    ) -> Reply | ErrorReply | None:
        """Take messages up to the answer, and return that; None if it is not among them.

        `pending`: the request whose stream they came on; None for the server's own stream, which has no
        answers. Raises RemoteProtocolError when the answer cannot be read.
        """
        for message in messages:
            if isinstance(message, Notification):
                self._take_notification(message, pending)
            elif isinstance(message, Request):
                await self._take_question(message, pending)
            elif isinstance(message, BadMessage):
                self._log_refused(message)
                is_meant = pending is not None and (message.id is None or own_id(message.id) == pending.id)
                if is_meant and message.may_answer:
                    raise RemoteProtocolError(message.as_answer)
            elif pending is not None and as_answer(message, pending) is not None:
                return message
            else:
                self._log_unmatched(message)
        return None

    async def _take_question(self, request: Request, pending: PendingHttpRequest | None) -> None:
        if request.method not in ASKS:  # mcpmux answers such a request, in a separate POST
            try:
                data = encode_reply(request.id, await answer_server(request, ignore_event))
            except RpcError as error:
                data = encode_error(request.id, error)
            await self.peer.tell(data)
            return
        addressee = pending if pending is not None and pending.call.method in self.questions.may_ask else None
        # A question outside of a client's call waits for a person, which must not hold up the stream.
        if addressee is not None and addressee.call.method != m.RESOURCES_SUBSCRIBE:
            await self.questions.take(request, addressee)
        else:
            self._nursery.start_soon(self.questions.take, request, addressee, name="server's question")

    def _take_notification(self, message: Notification, pending: PendingHttpRequest | None) -> None:
        method = message.method
        # A server must not speak in mcpmux's own name, in which channels report about themselves.
        if method.startswith(m.OWN):
            return
        # Changes belong to no request: the hub decodes their parameters, so they need not be decoded here.
        is_of_listen = pending is not None and pending.call.method == m.LISTEN
        if method in m.UNASKED or (is_of_listen and method not in (m.CANCELLED, m.ACKNOWLEDGED)):
            self._hear(message)
            return
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        if method == m.CANCELLED:
            self.questions.withdraw(id_of(params.get("requestId")))
        elif method == m.PROGRESS and related_task(params) is not None:
            self._hear(message)  # progress of a task goes on after the answer to its call
        elif pending is None:
            if method == m.PROGRESS:  # which some servers send on their own stream
                self.pending_requests.take_event(id_of(params.get(PROGRESS_TOKEN)), Event(method, params))
            elif method == m.LOG_MESSAGE:  # SDKs send here what they log outside of a request's stream
                self._take_log(message, params)
            elif method != m.ACKNOWLEDGED:  # which is of no use without its request
                self._hear(message)
        else:
            pending.push(Event(method, params))

    def _abandon(self, pending: PendingRequest) -> None:
        assert isinstance(pending, PendingHttpRequest)
        # Only closing the response cancels a modern call ("Streamable HTTP", 2026-07-28).
        if pending.carrier is not None:  # the task tells the server, if the call was sent
            pending.carrier.cancel(reason="nobody waits for it")
        elif pending.sent is not None:
            pending.sent.release()
            pending.sent = None
            if self._over is None:
                self._nursery.start_soon(self._say_cancelled, pending)

    def fail_calls(self) -> None:
        """Cancel and fail all waiting calls, as the channel ends."""
        # First: calls that fail below may be repeated at once, and must not be sent here again.
        self._over = self.close_reason
        for pending in self.pending_requests:
            self._abandon(pending)
        self.pending_requests.fail_all(self._over)

    async def _say_cancelled(self, pending: PendingHttpRequest) -> None:
        """Notify a legacy server of a cancelled call; a modern one sees it by the closed response."""
        if not self.peer.legacy or self.closed.is_set():
            return
        params = {"requestId": pending.id, "reason": "the client gave up"}
        with trio.move_on_after(FAREWELL_SECONDS, shield=True), suppress(TransportError):
            await self.peer.tell(encode_notification(m.CANCELLED, params))

    async def listen(self) -> None:
        """Open the stream of a legacy server for notifications outside of requests, if it offers one."""
        listening = trio.Event()
        self._nursery.start_soon(self._hear_own_stream, listening, name="http listen")
        # Some servers send no headers before there is an event: the session must not wait for one.
        with trio.move_on_after(LISTEN_SECONDS):
            await listening.wait()

    async def _hear_own_stream(self, listening: trio.Event) -> None:
        """Read the server's own stream, opening it again whenever it breaks off, if the server offers one.

        `listening` is set at the first answer. Notifications of mcpmux report the events: `HEARING` that
        `hearing` has changed, `MISSED` that messages may be lost because the stream was not open, `FORGOTTEN`
        that it is refused now, so that the server may have forgotten the session.
        """
        EXCHANGE.set(0)  # this task outlives the exchange for which the session was opened
        peer = self.peer
        decoder = SseDecoder(peer.message_limit)
        missed = offered = False
        comeback = Comeback()
        while not peer.closed.is_set():
            least, began, decoder = 0.0, trio.current_time(), decoder.continued()
            try:
                response = await peer.open_stream(decoder.last_event_id)
                try:
                    status = response.status
                    listening.set()
                    # No stream now, but perhaps later.
                    comes = status == TOO_MANY_REQUESTS or (status >= 500 and status != _NOT_IMPLEMENTED)
                    if comes or (offered and status >= 400):
                        raise peer.status_error(response, b"")
                    if not response.is_stream:  # the server offers none, for which 405 is usual
                        return
                    self.hearing = offered = True
                    self._hear(Notification(m.HEARING))
                    # With the id of its last event, the server sends what was missed.
                    if missed and not decoder.last_event_id:
                        self._hear(Notification(m.MISSED))
                    await self._take_events(response, decoder, None)
                finally:
                    response.release()
            except TransportError as error:
                log.debug("the server's stream broke off", reason=str(error))
                if isinstance(error, HttpStatusError):
                    least = max(REFUSED_SECONDS, error.retry_after or 0.0)
                    if offered and may_mean_forgotten(error):
                        self._hear(Notification(m.FORGOTTEN))
            finally:
                if self.hearing:
                    self.hearing = False
                    self._hear(Notification(m.HEARING))
            missed = True
            now = trio.current_time()
            held = math.inf if decoder.has_spoken else now - began
            await trio.sleep(max(least, pause_before_stream(decoder, comeback, now, held, random.random())))

    async def notify(self, method: str, params: Fields | None = None) -> None:
        await self.peer.tell(encode_notification(method, params))
