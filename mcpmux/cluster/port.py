"""The port at which replicas hand requests to each other, and tell each other what has changed.

Everything is a POST with a letter: what it is about, for which replica, when it was written and a number that
is used once, signed with the cluster's key and not encrypted. The answer to a request that was handed over is
the answer itself, as it comes; cancelling is closing the connection.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from typing import Final

import attrs
import msgspec
import structlog
import trio

from mcpmux.cluster.letter import (
    INSPECTOR,
    Content,
    HandedCall,
    HandedRequest,
    Letter,
    ListenWanted,
    Neighbour,
    News,
    ReplicaState,
    StateWanted,
)
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.store import Seal
from mcpmux.config import ClientTls, Limits
from mcpmux.errors import ConnectFailed, RemoteProtocolError, TransportClosed, TransportError
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    decode_fields,
    decode_message,
)
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.body_budget import SMALL_BODY
from mcpmux.transports.http.client import EVENT_STREAM, HttpPool, HttpResponse, was_unsent
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.route import HttpOrigin, PoolLimits, Route
from mcpmux.transports.http.sse_streams import EventStream
from mcpmux.transports.sse import SseDecoder
from mcpmux.transports.tls import TlsContexts

log = structlog.get_logger()

PATH: Final = "/replica"
SIGNATURE: Final = "mcpmux-signature"
SENDER: Final = "mcpmux-sender"  # of a large letter: when it was written, and a signature of its head
NOT_HERE: Final = "mcpmux-not-here"  # a field of an answer: the session is another replica's by now
REFUSED: Final = "mcpmux-refused"  # a field of an answer to a letter that was refused
MISDIRECTED: Final = 421  # RFC 9110 section 15.5.20
FRESH_SECONDS: Final = 30.0  # that clocks may differ, and a letter may be under way
ASK_SECONDS: Final = 2.0  # for another replica to describe itself; a person waits for it
NONCES_KEPT: Final = 200_000  # of that time; who gets more forgets some of them too early
OLD: Final = f"it is old: clocks differ by more than {FRESH_SECONDS:g} s"
LETTER_BYTES: Final = 2**20  # of a letter besides the body of a request
OWN_FIELDS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})
"""Of a response, which every server makes itself."""

UNIX: Final = "unix:"  # of the URL of a worker, before the path of its socket
HERE: Final = HttpOrigin(False, "localhost", 80)  # of requests at such a socket
STREAMS: Final = 100_000  # requests that are with one other replica at a time: connections are the bound

_decode_letter = msgspec.msgpack.Decoder(Letter).decode

TakeRequest = Callable[[HandedRequest, HttpReply], Awaitable[None]]
TakeCall = Callable[[HandedCall, HttpReply], Awaitable[None]]
TakeListen = Callable[[ListenWanted, HttpReply], Awaitable[None]]


class ReplicaPort:
    """Reads letters. `deliver` answers requests, `answer` calls; `hear` applies news before it returns.

    `describe` returns the state of this replica; `tell` answers listens. `handed_in`: requests and calls of
    others so far.
    """

    def __init__(
        self,
        seal: Seal,
        members: Membership,
        deliver: TakeRequest,
        answer: TakeCall,
        hear: Callable[[News], None],
        describe: Callable[[], ReplicaState],
        tell: TakeListen,
    ) -> None:
        self._seal, self._members = seal, members
        self._deliver, self._answer = deliver, answer
        self._hear, self._describe, self._tell = hear, describe, tell
        self.handed_in = 0
        self._read: OrderedDict[str, float] = OrderedDict()
        self._refused = 0

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one POST."""
        letter = self._letter_in(request)
        if isinstance(letter, str):
            await self._refuse(letter, request, reply)
        elif isinstance(letter.content, News):
            self._hear(letter.content)
            await reply.send(204, ())
        elif isinstance(letter.content, StateWanted):
            state = msgspec.json.encode(self._describe())
            await reply.send(200, (("Content-Type", "application/json"),), state)
        elif isinstance(letter.content, ListenWanted):
            await self._tell(letter.content, reply)
        elif isinstance(letter.content, HandedCall):
            self.handed_in += 1
            await self._answer(letter.content, reply)
        else:
            self.handed_in += 1
            await self._deliver(letter.content, reply)

    async def judge(self, request: HttpRequest, reply: HttpReply) -> None:
        """Refuse a large letter before it is read, unless its head shows that a replica writes it."""
        # The whole letter is signed, too, but it would have to be kept before that can be checked: without
        # this anyone could have 64 MiB kept on each connection.
        at, _, signature = request.headers.get(SENDER, "").partition(" ")
        length = request.headers.get("content-length", "")
        if not any(
            self._seal.is_signed(_head_of(own, at, length), signature) for own in self._members.marks.own
        ):
            await self._refuse("its head is not signed with the `cursor_key` of this cluster", request, reply)
        # It is signed, so it is a number.
        elif abs(float(at) - time.time()) > FRESH_SECONDS:
            await self._refuse(OLD, request, reply)

    async def _refuse(self, reason: str, request: HttpRequest, reply: HttpReply) -> None:
        self._refused += 1
        if self._refused.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: a flood must not flood the log
            count = self._refused
            log.warning("letter refused", reason=reason, peer=request.peer, refused_so_far=count)
        await reply.send(403, (("Content-Type", "text/plain"), (REFUSED, "1")), reason.encode())

    def _letter_in(self, request: HttpRequest) -> Letter | str:
        """Return the letter in a request, or why it is refused."""
        if request.method != "POST" or request.path != PATH:
            return "this port is for replicas of mcpmux"
        # Before the letter is decoded: only bytes that a holder of the key has written reach the decoder.
        if not self._seal.is_signed(request.body, request.headers.get(SIGNATURE, "")):
            return "it is not signed with the `cursor_key` of this cluster"
        try:
            letter = _decode_letter(request.body)
        except msgspec.DecodeError:
            return "it is of another version of mcpmux"
        now = time.time()
        # An attacker can record a signed letter, and send it to another replica, later, or again. These three
        # checks refuse each of these.
        if letter.to not in self._members.marks.own:
            return "it is for another replica"
        if abs(letter.at - now) > FRESH_SECONDS:
            return OLD
        read = self._read
        if letter.nonce in read:
            return "it was read before"
        # Twice the time: the clock of the writer may be that much ahead, and its letter is fresh for longer
        # then.
        while read and (len(read) >= NONCES_KEPT or next(iter(read.values())) < now - 2 * FRESH_SECONDS):
            read.popitem(last=False)
        read[letter.nonce] = now
        return letter


class Outcome(Enum):
    """The ways in which a request ends that was handed over."""

    ANSWERED = auto()
    NOT_THERE = auto()  # not carried out: that replica has no such session, call or task (any more)
    UNSENT = auto()  # it has not got it
    LOST = auto()  # it may have done something, and its answer is not complete


class ReplicaClient:
    """Writes letters. `close` it in the end. `handed_over`: what others have answered for us so far."""

    def __init__(self, seal: Seal, certificates: TlsContexts, peers: ClientTls, limits: Limits) -> None:
        """`peers`: how other replicas are verified, and what they are shown."""
        self._seal, self._certificates, self._peers = seal, certificates, peers
        self._limits = PoolLimits(
            head_bytes=limits.max_head_bytes,
            head_fields=limits.max_header_fields,
            body_bytes=limits.max_message_bytes + LETTER_BYTES,
            connections=STREAMS,
        )
        self._pools: dict[str, HttpPool] = {}
        self._waits: dict[str, tuple[Neighbour, set[trio.CancelScope]]] = {}  # by the ids of replicas
        self.handed_over = 0

    def awaited_beyond(self, members: Collection[str]) -> list[Neighbour]:
        """Return the replicas whose answers clients here wait for, but which are not among `members`."""
        return [replica for replica, _ in self._waits.values() if replica.replica not in members]

    def give_up(self, gone: Neighbour) -> None:
        """End the requests and calls that wait for a replica: one that hangs closes no connection."""
        _, scopes = self._waits.get(gone.replica, (gone, ()))
        for scope in scopes:
            scope.cancel(reason="that replica has gone")

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def keep(self, urls: Collection[str]) -> None:
        """Close the connections to all replicas but these."""
        for url in self._pools.keys() - urls:
            self._pools.pop(url).close()

    async def tell(self, to: Neighbour, news: News) -> None:
        """Send news, and wait until they are applied. Raises TransportError, RemoteProtocolError."""
        async with self._asked(to, news, 204):
            pass

    async def ask_state(self, to: Neighbour) -> ReplicaState:
        """Return how another replica is. Raises TransportError, RemoteProtocolError."""
        async with self._asked(to, StateWanted(), 200) as response:
            return msgspec.json.decode(await response.read(), type=ReplicaState)

    async def listen(self, to: Neighbour, wanted: ListenWanted, silence: float, notify: Notify) -> None:
        """Pass on the updates of resources that another replica sends, until it ends.

        Raises TransportError, also after `silence` seconds without data, and RemoteProtocolError.
        """
        with trio.move_on_after(silence) as patience:
            async with self._asked(to, wanted, 200) as response:
                decoder = SseDecoder(self._limits.body_bytes)
                while part := await response.receive_some():
                    # Any bytes will do: the owner sends comments for as long as it has nothing to tell.
                    patience.deadline = trio.current_time() + silence
                    for event in decoder.feed(part):
                        await notify(_event_in(event.data))
            return
        raise TransportClosed(f"it said nothing for {silence:g} s")

    async def hand_over(self, to: Neighbour, handed: HandedRequest, reply: HttpReply) -> Outcome:
        """Have another replica answer a request. A reply that was begun is not finished if it is LOST."""
        try:
            async with self._asked(to, handed) as response:
                if response.status == MISDIRECTED and NOT_HERE in response.headers:
                    await response.read()
                    return Outcome.NOT_THERE
                self.handed_over += 1
                fields = tuple(
                    (name, value) for name, value in response.headers.items() if name not in OWN_FIELDS
                )
                if response.headers.get("content-type", "").partition(";")[0] != EVENT_STREAM:
                    # Read to its end first: one that breaks off can still be repeated elsewhere.
                    body = await response.read()
                    await reply.send(response.status, fields, body)
                    return Outcome.ANSWERED
                # Without comments of this process, which could come into an event: the other one sends them.
                await reply.open(response.status, fields, await response.receive_some())
                while part := await response.receive_some():
                    await reply.write(part)
                await reply.finish()
        except (TransportError, RemoteProtocolError) as error:
            log.info("a request was not handed over", replica=to.card.name, reason=str(error))
            return Outcome.UNSENT if was_unsent(error) else Outcome.LOST
        return Outcome.ANSWERED

    async def ask_inspectors(
        self, others: Sequence[Neighbour], method: str, path: str, body: bytes
    ) -> dict[Neighbour, tuple[int, bytes]]:
        """Have the inspectors of other replicas answer a request: (status, body) of each that does.

        Takes no longer than ASK_SECONDS.
        """
        json = {"content-type": "application/json"}
        handed = HandedRequest(INSPECTOR, method, path, "", json, body, "", "")
        answers: dict[Neighbour, tuple[int, bytes]] = {}

        async def ask(other: Neighbour) -> None:
            with trio.move_on_after(ASK_SECONDS), suppress(TransportError, RemoteProtocolError):
                async with self._asked(other, handed) as response:
                    answers[other] = response.status, await response.read()

        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(ask, other)
        # In the order of names, not in that of the answers.
        return dict(sorted(answers.items(), key=lambda answer: (answer[0].card.name, answer[0].replica)))

    async def exchange(self, to: Neighbour, call: Call, notify: Notify) -> Fields:
        """Have another replica answer a call.

        Raises RpcError, which is its answer, and TransportError or RemoteProtocolError when there is none.
        """
        async with self._asked(to, HandedCall.of(call)) as response:
            self.handed_over += 1
            if response.headers.get("content-type", "").partition(";")[0] != EVENT_STREAM:
                return _result_in(await response.read())
            events = EventStream(response, SseDecoder(self._limits.body_bytes))
            while isinstance(message := _message_in((event := await events.next()).data), Notification):
                await notify(Event(message.method, decode_fields(message.params)))
            return _result_in(event.data)

    @asynccontextmanager
    async def _asked(
        self, to: Neighbour, content: Content, status: int | None = None
    ) -> AsyncIterator[HttpResponse]:
        """Send a letter, and yield its answer.

        Raises TransportError: ConnectFailed when the letter is refused. Raises RemoteProtocolError, also for
        another `status`.
        """
        response, wait = None, self._waits.setdefault(to.replica, (to, set()))
        with trio.CancelScope() as scope:
            wait[1].add(scope)
            try:
                response = await self._post(to, content)
                if REFUSED in response.headers:  # such as by another replica, which has its address now
                    raise ConnectFailed(f"it refuses: {(await response.read())[:200].decode()}")
                if status not in (None, response.status):
                    raise RemoteProtocolError(f"it refuses: {(await response.read())[:200].decode()}")
                yield response
            except (UnicodeDecodeError, msgspec.DecodeError):
                raise RemoteProtocolError("it does not answer as a replica does") from None
            finally:
                wait[1].discard(scope)
                if not wait[1] and self._waits.get(to.replica) is wait:
                    del self._waits[to.replica]
                if response is not None:
                    response.release()
        if scope.cancelled_caught:  # see `give_up`
            raise TransportClosed("that replica has gone")

    async def _post(self, to: Neighbour, content: Content) -> HttpResponse:
        # To the id in force: a letter that another replica gets, which has the address now, is refused there.
        letter = Letter(to.replica, time.time(), secrets.token_hex(8), content)
        body = msgspec.msgpack.encode(letter)
        url = to.card.url
        if url not in self._pools and url.startswith(UNIX):
            self._pools[url] = HttpPool(HERE, limits=self._limits, route=Route(HERE, unix=url[len(UNIX) :]))
        if url not in self._pools:
            try:
                origin = HttpOrigin.from_url(url)
                tls = await self._certificates.open("cluster.peers", self._peers) if origin.secure else None
            except ValueError as error:
                raise ConnectFailed(str(error)) from None
            route = Route(origin, tls, self._peers.server_name)
            if url not in self._pools:  # another letter may have opened it while the certificates were read
                self._pools[url] = HttpPool(origin, limits=self._limits, route=route)
        signatures: tuple[tuple[str, str], ...] = ((SIGNATURE, self._seal.sign(body)),)
        if len(body) > SMALL_BODY:  # see `judge`
            at = repr(letter.at)
            signature = self._seal.sign(_head_of(to.replica, at, str(len(body))))
            signatures = (*signatures, (SENDER, f"{at} {signature}"))
        # Sent once: a letter that is repeated is refused, as its nonce was read.
        return await self._pools[url].send("POST", PATH, (), body, idempotent=False, more=signatures)


def _head_of(to: str, at: str, length: str) -> bytes:
    """Return the bytes to sign for the head of a large letter. No letter is encoded like that."""
    return f"head {to} {at} {length}".encode()


def _message_in(data: bytes) -> Message:
    """Return the message in an answer. Raises RemoteProtocolError."""
    try:
        return decode_message(data)
    except BadMessage:
        raise RemoteProtocolError("it does not answer as a replica does") from None


def _result_in(data: bytes) -> Fields:
    """Return the result in an answer. Raises RpcError, RemoteProtocolError."""
    message = _message_in(data)
    if isinstance(message, ErrorReply):
        raise message.as_error()
    if isinstance(message, Reply):
        return decode_fields(message.result)
    raise RemoteProtocolError("it does not answer as a replica does")


def _event_in(data: bytes) -> Event:
    """Return the notification in an event. Raises RemoteProtocolError."""
    message = _message_in(data)
    if isinstance(message, Notification):
        return Event(message.method, decode_fields(message.params))
    raise RemoteProtocolError("it does not tell of updates as a replica does")


def port_limits(limits: Limits) -> Limits:
    """Return the limits of the port, which carries what came in at listeners with `limits`."""
    return attrs.evolve(
        limits,
        max_message_bytes=limits.max_message_bytes + LETTER_BYTES + limits.max_head_bytes,
        max_connections=STREAMS,
    )
