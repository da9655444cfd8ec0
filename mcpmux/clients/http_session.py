"""Serve a legacy session over Streamable HTTP: its requests, its own stream, and the replay of both.

Promises: a tool call goes on when its client loses the connection, and its stream can be resumed with
`Last-Event-ID`, as can the session's own stream; the events kept for that are bounded. Other requests are
safe to repeat, so they just end with their connection.

The own stream: every event has an id and is kept before it is sent, so that a client whose connection broke
receives the rest. An event for many clients is encoded once for all of them; only the id differs. If a client
can be written to at once, the task that brings the event writes it, without a turn of the client's task.

Source: "Transports", 2025-03-26 to 2025-11-25; "Sending Messages to the Server" in 2025-03-26 for batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Final

import trio

from mcpmux.channels.channel import FAREWELL_SECONDS
from mcpmux.channels.duplex_channel import InlineExchange
from mcpmux.channels.pending import PendingRequest, PendingRequests
from mcpmux.channels.tap import Watch
from mcpmux.clients.http_answer import (
    JSON,
    HttpNotify,
    HttpOutlet,
    Say,
    failure,
    respond,
)
from mcpmux.clients.legacy_session import LegacySession, Session
from mcpmux.clients.session_records import EventKeeper, Recovered, StreamEvent
from mcpmux.errors import RpcError
from mcpmux.mux.replay import EPOCH, Ahead, Gone, KeptEvent, ReplayBounds, ReplayBuffer, SameEvent
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, encode_notice
from mcpmux.protocol.codes import IN_FLIGHT, INTERNAL_ERROR, INVALID_REQUEST, Busy, lost_with_process
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    encode_error,
    encode_notification,
    encode_reply,
    encode_request,
    id_of,
    members_of,
)
from mcpmux.protocol.framing import join_batch
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.protocol.revisions import V_2025_11_25
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.transports.body_budget import Holding
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.inline import Wake, in_task, woken
from mcpmux.transports.sse import KEEP_ALIVE_SECONDS, STREAM_HEADERS, encode_event, with_id
from mcpmux.transports.waiting import DeadlineSweeper

# A call without an answer after this time gets a stream at the next sweep, with an event id to resume from.
PRIMING_SECONDS = 0.05
RETRY_MILLISECONDS: Final = 1000  # for a client to come back after its stream has broken off

OWN_STREAM: Final = 0  # the stream number, with which its event ids begin
LATELY: Final = 64  # encoded events that are remembered, as many clients get the same ones
LATELY_BYTES: Final = 4096  # of one of them at most

_EVENT: Final = b"id: %d-%%d\n%%b" % OWN_STREAM
_QUESTION: Final = Event("dev.mcpmux/question", {})  # a place in the outbox for the waiting questions
_REPEATS: Final = frozenset({m.RESOURCE_UPDATED, m.RESOURCES_CHANGED, m.TOOLS_CHANGED, m.PROMPTS_CHANGED})
"""Notifications that mean "look again": the latest one replaces all before it."""


class ResumableCall(InlineExchange):
    """A tool call, which outlives its connection. `number`: its stream's number, None without a stream.

        started --its answer comes soon and alone-----> over, without a stream
                --an event comes, or some time passes-> it has a stream, which can be resumed
        with a stream --its answer comes--------------> over

    `wake` resumes the coroutine that waits for the first of: an event, the end, or the time `until` (trio's).
    `only_answer`: the answer of a call that never had a stream, None when it was cancelled. `last_event`: the
    answer of one that has a stream, once it has come.
    """

    def __init__(self, request: Request, call: Call, nursery: trio.Nursery, until: float) -> None:
        super().__init__(nursery)
        self.request = request
        self.call = call
        self.until = until
        self.number: int | None = None
        self.over = False
        self.only_answer: bytes | None = None
        self.last_event: KeptEvent | None = None
        self.holding: Holding | None = None  # the share of the body budget that its large body takes
        self.reader: trio.CancelScope | None = None  # around the sending of its stream
        self._arrival: trio.lowlevel.ParkingLot | None = None
        self.wake: Wake | None = None

    async def wait(self) -> None:
        """Wait until there is more in the stream, or the call is over."""
        if self._arrival is None:
            self._arrival = trio.lowlevel.ParkingLot()
        await self._arrival.park()

    def tell(self) -> None:
        """Wake the readers: the stream has grown, or has to be opened, or the call is over."""
        if self._arrival is not None:
            self._arrival.unpark_all()
        if self.wake is not None:
            self.wake()

    def end(self) -> None:
        """Mark the call as answered or cancelled, and wake its readers."""
        self.over = True
        self._running = None
        if self.holding is not None:
            self.holding.leave()
        self.tell()

    def cut_off(self) -> None:
        """Stop waiting for an answer without a stream. Called by the sweeper at `until`."""
        self.tell()


class HttpSession:
    """The session of one legacy client. `last_used`: trio's time of its last request."""

    def __init__(
        self,
        session: Session,
        nursery: trio.Nursery,
        deadlines: DeadlineSweeper,
        in_flight: int,
        keeper: EventKeeper | None = None,
    ) -> None:
        """`nursery` runs calls that outlive their connections. `deadlines` gives them streams in time.

        `in_flight`: the most requests at a time. `keeper` keeps events for processes that may take the
        session over.
        """
        self._in_flight_limit = in_flight
        self.session = session
        self.last_used = trio.current_time()
        self._nursery = nursery
        self._deadlines = deadlines
        self._buffer = ReplayBuffer(ReplayBounds())
        self._keeper = keeper
        self._own = OwnStream(self._buffer, session.outbox, keeper)
        self._in_flight: dict[Id, Callable[[str], None]] = {}  # functions that cancel a request for a reason
        self._asked = PendingRequests()
        self._calls: dict[int, ResumableCall] = {}  # running calls that have a stream, by its number
        self._next_stream = OWN_STREAM + 1
        self._recovered: LegacySession | None = None
        self._readers = 0
        session.ask_unasked = partial(self._ask, self._own.ask)
        self.watch: Watch | None = None

    def __repr__(self) -> str:
        return f"<HttpSession {self.session!r} {len(self._in_flight)} in flight, {self._buffer!r}>"

    def go_on(self, recovered: Recovered) -> None:
        """Continue the streams of the processes that had the session before.

        Their unanswered calls are answered with an error that says that they may have been carried out.
        """
        self._recovered = recovered.session
        now, unanswered = trio.current_time(), dict[int, Id]()
        first = recovered.epoch * EPOCH
        for event in recovered.events:
            # With each event of a call, as its first ones may not be kept any more.
            if event.request_id is not None:
                unanswered[event.stream] = event.request_id
            if event.number == 0:  # the beginning of a call
                self._buffer.open(event.stream)
            else:
                self._buffer.restore(event.stream, event.number, event.data, now)
            if event.is_last:
                unanswered.pop(event.stream, None)
                self._buffer.close(event.stream)
        for stream, request_id in unanswered.items():
            error = encode_event(encode_error(request_id, lost_with_process(done=None)))
            # Beyond every number of the lost process: it may have sent events that were never kept.
            self._buffer.skip_to(stream, first)
            answer = self._buffer.add(stream, error, now)
            self._buffer.close(stream)
            self._keep(StreamEvent(stream, answer.number, error, is_last=True))
        self._buffer.skip_to(OWN_STREAM, first)
        self._next_stream = first + 1

    def _keep(self, event: StreamEvent) -> None:
        if self._keeper is not None:
            self._keeper.keep(event)

    @property
    def idle(self) -> bool:
        """Whether no stream of the session is being read and no request is in flight."""
        return self._readers == 0 and not self._in_flight

    def close(self) -> None:
        """End the session with all its exchanges, streams and subscriptions."""
        for call_off in list(self._in_flight.values()):  # a copy: an exchange that ends removes itself
            call_off("the session has ended")
        self._asked.fail_all(RpcError(INVALID_REQUEST, "the client has gone"))
        self.session.outbox.close()
        self.session.close()
        if self.watch is not None:
            self.watch.tap.gone(self.watch.leg)

    def take_answer(self, answer: Reply | ErrorReply) -> None:
        """Take the client's answer to a question."""
        self._asked.take_answer(answer)

    def fail_question(self, answer: BadMessage) -> None:
        """Fail the question that an invalid answer belongs to."""
        self._asked.fail_unread(answer.id, RpcError(INTERNAL_ERROR, answer.as_answer))

    async def _ask(self, say: Say, method: str, params: Fields) -> Fields:
        """Send a request to the client by `say`, and return its result. Raises RpcError.

        Cancelling this tells the client that the answer is not wanted any more.
        """
        if isinstance(say, HttpNotify) and not say.streams:
            raise RpcError(INVALID_REQUEST, f"the client takes no event stream, so it gets no {method}")
        pending = self._asked.open(PendingRequest(Call(method, params, {})))
        try:
            await say(encode_request(pending.id, method, params or None))
            while pending.answer is None:
                await woken(pending)
            return pending.result()
        except trio.Cancelled as cancelled:
            taken_back = {"requestId": pending.id, "reason": "the answer is not wanted any more"}
            # Shielded, as this task is cancelled already; bounded, as the client may not read.
            with trio.move_on_after(FAREWELL_SECONDS, shield=True):
                await say(encode_notification(m.CANCELLED, taken_back))
            raise cancelled  # not a bare `raise`: mypyc loses the current exception over an await
        finally:
            self._asked.close(pending)

    def take_notification(self, notification: Notification) -> None:
        """Take a notification of the client, which may cancel a request."""
        if notification.method != m.CANCELLED:
            self.session.take_notification(notification)
            return
        request_id = id_of(members_of(notification.params).get("requestId"))
        call_off = self._in_flight.get(request_id) if request_id is not None else None
        if call_off is not None:
            call_off("the client cancelled the request")

    # Requests

    def post(self, request: Request, call: Call, reply: HttpReply, *, streams: bool) -> Awaitable[None]:
        """Answer one request, decoded as `call`. Raises RpcError when it is refused.

        `streams`: the client takes event streams.
        """
        # Only a tool call may change something, so only that is worth a resumable stream.
        if streams and request.method == m.TOOLS_CALL:
            # Before 2025-11-25 no event without data may open a stream, so an early one has no use.
            patience = PRIMING_SECONDS if self.session.revision >= V_2025_11_25 else KEEP_ALIVE_SECONDS
            resumable = ResumableCall(request, call, self._nursery, trio.current_time() + patience)
            self._admit(request, resumable.cancel)
            self._deadlines.watch(resumable)
            return self._start_and_follow(resumable, reply)
        self._admit(request, reply.call_off)
        return self._respond(request, call, reply, streams=streams)

    async def _respond(self, request: Request, call: Call, reply: HttpReply, *, streams: bool) -> None:
        notify = HttpNotify(reply, streams)
        try:
            work = self.session.answer(call, notify, partial(self._ask, notify))
            await respond(request, reply, work, streams=streams, legacy=True)
        finally:
            del self._in_flight[request.id]

    def _admit(self, request: Request, call_off: Callable[[str], None]) -> None:
        self.last_used = trio.current_time()
        # An id may not be used again in a session ("Requests"). One in flight is refused, as its answers
        # would be confused; the others are not remembered.
        if request.id in self._in_flight:
            raise RpcError(INVALID_REQUEST, f"Invalid request: id {request.id!r} is already in flight")
        if len(self._in_flight) >= self._in_flight_limit:
            raise Busy(f"more than {self._in_flight_limit} requests in flight", IN_FLIGHT, own=True)
        self._in_flight[request.id] = call_off

    async def _outcome(self, request: Request, call: Call, say: Say) -> bytes:
        """Return the encoded result or error of a request. `say` sends the messages before it."""

        async def notify(event: Event) -> None:
            await say(encode_notification(event.method, event.params))

        try:
            result = await self.session.answer(call, notify, partial(self._ask, say))
            return encode_reply(request.id, result)
        except Exception as error:
            return failure(request, error)[2]

    async def answer_batch(
        self, members: Sequence[Message | BadMessage], reply: HttpReply, *, streams: bool
    ) -> None:
        """Serve the members of a batch side by side, and send their answers; 202 if none has an answer.

        The answers are an array: a JSON body, or the last event of a stream when other messages come before.
        Members end with their connection: a batch cannot be resumed.
        """
        await in_task()
        reply.is_kept_alive = streams
        answers: list[bytes] = []
        say = partial(_say_in_turn, trio.Lock(), HttpNotify(reply, streams))

        async def work(request: Request, call: Call) -> None:
            if self.watch is not None:
                self.watch.begin(request.id)
            try:
                answers.append(await self._outcome(request, call, say))
            finally:
                del self._in_flight[request.id]

        async with trio.open_nursery() as nursery:
            for member in members:
                if isinstance(member, Request):
                    exchange = InlineExchange(nursery)
                    try:
                        call = Call.of(member.method, member.payload)
                        self._admit(member, exchange.cancel)
                    except RpcError as refusal:
                        answers.append(encode_error(member.id, refusal))
                    else:
                        # Its own context, as each member is a separate exchange for the tap.
                        exchange.start(work(member, call), copy_context(), at_once=False)
                elif isinstance(member, BadMessage) and member.is_answer:
                    self.fail_question(member)
                elif isinstance(member, BadMessage):
                    answers.append(encode_error(member.id, member))
                elif isinstance(member, Notification):
                    self.take_notification(member)
                else:
                    self.take_answer(member)
        data = join_batch(answers)
        if reply.started:
            await reply.finish(encode_event(data) if data is not None else b"")
        else:
            await _send_only(reply, data)

    def _open(self, call: ResumableCall) -> int:
        """Give a call a stream if it has none. Return the stream's number."""
        if call.number is None:
            call.number = self._next_stream
            self._next_stream += 1
            self._buffer.open(call.number)
            self._calls[call.number] = call
            self._keep(StreamEvent(call.number, 0, request_id=call.request.id))
        return call.number

    async def _work(self, call: ResumableCall) -> None:

        async def say(message: bytes) -> None:
            self._put(call, message)

        try:
            data = await self._outcome(call.request, call.call, say)
            if call.number is None:
                call.only_answer = data
            else:
                self._put(call, data, is_last=True)
        finally:
            self._deadlines.forget(call)
            del self._in_flight[call.request.id]
            if call.number is not None:
                del self._calls[call.number]
                self._buffer.close(call.number)
            call.end()

    def _put(self, call: ResumableCall, data: bytes, *, is_last: bool = False) -> None:
        kept = self._buffer.add(self._open(call), encode_event(data), trio.current_time())
        if self._keeper is not None:
            event = StreamEvent(kept.stream, kept.number, kept.data, is_last, call.request.id)
            self._keeper.keep(event)
        if is_last:
            call.last_event = kept
        call.tell()

    async def _start_and_follow(self, call: ResumableCall, reply: HttpReply) -> None:
        """Start a call, and send its stream as it grows; plain JSON if the answer comes soon and alone."""
        # The call outlives the request, whose large body must count for as long as the call has it.
        if (holding := reply.request.holding) is not None:
            call.holding = holding.join()
        call.start(self._work(call), copy_context())
        self._readers += 1
        try:
            if not call.over and call.number is None:
                await woken(call)  # at the latest at `until`: then the client needs an id to resume from
            if call.over and call.number is None:
                await _send_only(reply, call.only_answer)
                return
            first, opening = f"{self._open(call)}-0", b""
            await in_task()
            # An id that no other process could resume from must not be promised.
            can_resume = self._keeper is None or await self._keeper.kept()
            if self.session.revision >= V_2025_11_25 and can_resume:
                opening = encode_event(b"", event_id=first, retry=RETRY_MILLISECONDS)
            await reply.open(200, STREAM_HEADERS, opening)
            await self._send_after(call, first, reply)
        finally:
            self._readers -= 1

    async def _send_after(self, call: ResumableCall, event_id: str, reply: HttpReply) -> None:
        """Send a call's stream from behind an event, until it ends or the client resumes it elsewhere.

        A slow client misses events that are not kept any more, but never the answer.
        """
        # As with the own stream, a message goes to one stream only, and the client reads the newest.
        if call.reader is not None:
            call.reader.cancel(reason="the client resumes the stream")
        with trio.CancelScope() as call.reader:
            while True:
                try:
                    events = self._buffer.after(event_id, trio.current_time())[1]
                except Gone:
                    # The client cannot ask for the answer again, and other calls may have displaced it, too.
                    events = self._buffer.kept(self._open(call))
                    if not events and call.last_event is not None:
                        events = [call.last_event]
                for event in events:
                    event_id = event.event_id
                    await reply.write(with_id(event.data, event_id))
                    if event is call.last_event:
                        return
                if not events and call.over:
                    return
                if not events:
                    await call.wait()

    # Streams that the client opens itself

    async def get(self, last_event_id: str | None, reply: HttpReply) -> None:
        """Open the session's own stream, or resume any stream. Raises Gone."""
        self.last_used = trio.current_time()
        number = OWN_STREAM
        missed: list[KeptEvent] = []
        if last_event_id is not None:
            try:
                number, missed = self._buffer.after(last_event_id, trio.current_time())
            except Ahead as ahead:
                if ahead.stream != OWN_STREAM or self._recovered is None:
                    raise
                # The client is right: a store that failed over may have lost events of another process that
                # had the session meanwhile. Their contents are unknown, so the client reads everything again.
                self._buffer.skip_to(OWN_STREAM, ahead.number)
                self._recovered.catch_up()
        self._readers += 1
        try:
            await reply.open(200, STREAM_HEADERS, _join(missed) or b": open\n\n")
            last = missed[-1].event_id if missed else last_event_id
            if number == OWN_STREAM:
                await self._own.send(reply, last)
            elif number in self._calls:
                await self._send_after(self._calls[number], last or "", reply)
        finally:
            self._readers -= 1


def _join(events: Sequence[KeptEvent]) -> bytes:
    return b"".join([with_id(event.data, event.event_id) for event in events])


async def _send_only(reply: HttpReply, data: bytes | None) -> None:
    """Send an answer without a stream; 202 for None: the request was cancelled, or needed no answer."""
    if data is None:
        await reply.send(202, ())
    else:
        await reply.send(200, JSON, data)


class OwnStream:
    """The own stream of one session. Events wait in `outbox`, and are kept in `buffer` when they are sent."""

    __slots__ = ("_buffer", "_clock", "_keeper", "_outbox", "_questions", "_reader")

    def __init__(self, buffer: ReplayBuffer, outbox: ClientOutbox, keeper: EventKeeper | None = None) -> None:
        """`keeper` keeps events for other processes, but not notifications that mean "look again".

        A process that takes the session over sends those anyway.
        """
        self._buffer = buffer
        self._keeper = keeper
        self._outbox = outbox
        self._clock = trio.lowlevel.current_clock()
        self._questions: list[bytes] = []
        self._reader: trio.CancelScope | None = None
        buffer.open(OWN_STREAM)

    async def ask(self, message: bytes) -> None:
        """Send a request to the client as soon as it has its stream open."""
        self._questions.append(message)
        self._outbox.put(_QUESTION)

    async def send(self, reply: HttpReply, last_event_id: str | None = None) -> None:
        """Send events until the session ends, the client goes, or it opens this stream a second time.

        `last_event_id`: of the event behind which the client resumes.
        """
        # A message goes to one stream only ("Transports", 2025-03-26), and the client reads the newest.
        if self._reader is not None:
            self._reader.cancel(reason="the client opened its stream again")
        with trio.CancelScope() as scope:
            self._reader = scope
            # While a slow client took what it had missed, the reader before was still given events.
            while last_event_id is not None:
                try:
                    missed = self._buffer.after(last_event_id, self._clock.current_time())[1]
                except Gone:
                    return  # it reads too slowly: it has to read again what it needs
                if not missed:
                    break
                last_event_id = missed[-1].event_id
                await reply.write(_join(missed))
            outlet = HttpOutlet(reply, self.keep)
            while (event := await self._outbox.take(outlet)) is not None:
                await reply.write(self.keep(event))

    def keep(self, event: Event) -> bytes:
        """Keep an event of the outbox, and return it encoded. _QUESTION stands for all waiting questions."""
        if event.method in _REPEATS:
            # The hub puts one Event object into many outboxes in a row: its encoding is at hand.
            last, notice = _last
            if last is not event:
                notice = _say(event)
            kept = self._buffer.add(*notice, self._clock.current_time(), notice)
            return _EVENT % (kept.number, notice[1])
        if event is not _QUESTION:
            data = encode_event(encode_notice(event))
            kept = self._buffer.add(OWN_STREAM, data, self._clock.current_time())
            if self._keeper is not None:
                self._keeper.keep(StreamEvent(OWN_STREAM, kept.number, data))
            return _EVENT % (kept.number, data)
        events, questions, self._questions = b"", self._questions, []
        for question in questions:
            data = encode_event(question)
            # Not by the keeper: no other process waits for the answer.
            number = self._buffer.add(OWN_STREAM, data, self._clock.current_time()).number
            events += _EVENT % (number, data)
        return events


_last: tuple[Event, SameEvent] = (_QUESTION, (OWN_STREAM, b""))  # the event encoded last, by any session


@lru_cache(LATELY)
def _said(data: bytes) -> SameEvent:
    return OWN_STREAM, data


def _say(event: Event) -> SameEvent:
    """Return `event` encoded for own streams, without an id: one object for all equal events."""
    global _last
    data = encode_event(encode_notice(event))
    # One object for all sessions takes memory once, and equal keys of their buffers compare by identity.
    notice = _said(data) if len(data) <= LATELY_BYTES else (OWN_STREAM, data)
    _last = event, notice
    return notice


async def _say_in_turn(turn: trio.Lock, say: HttpNotify, message: bytes) -> None:
    async with turn:  # the members of a batch share one stream, and two writes at a time would mix
        await say(message)
