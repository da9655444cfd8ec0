"""Hands over what another replica has to answer: over HTTP the whole request, else the call in it.

A request names a session, a parked call or a task, and the id in front of that name shows its replica. A
session may have moved since: the store knows where to.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qs

import structlog
import trio

from mcpmux.clients.http_answer import HttpNotify, answer_error, respond
from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.clients.service import MuxService
from mcpmux.clients.session_records import MovedElsewhere
from mcpmux.cluster.letter import HandedCall, HandedRequest, Neighbour
from mcpmux.cluster.membership import RENEWALS, Membership
from mcpmux.cluster.port import MISDIRECTED, NOT_HERE, Outcome, ReplicaClient
from mcpmux.cluster.sessions import StoredSessions
from mcpmux.cluster.store import Store, StoreAway
from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.lru import Lru
from mcpmux.mux.rewrite import owner_of
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import Busy, lost_with_process
from mcpmux.protocol.envelope import (
    BadMessage,
    Message,
    Request,
    decode_message,
    encode_error,
    members_of,
    text_of,
)
from mcpmux.protocol.headers import METHOD_HEADER, SESSION_HEADER, SESSION_KEY
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.principal import ANYONE
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.transports.http.client import was_unsent
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.inline import in_task
from mcpmux.transports.sse import encode_event

log = structlog.get_logger()

MOVED_KEPT: Final = 10_000  # sessions that are not where their ids say
MOVED_BYTES: Final = 4 * 2**20  # of them: enough, as we chose both ids
ATTEMPTS: Final = 8  # with the pauses between them longer than a lease
PAUSE_SECONDS: Final = 1.0  # at most, until the store was asked again
ID: Final = 1  # of the only request on a connection between replicas


class AnswersForOthers:
    """Counts what is answered here for clients of other replicas."""

    def __init__(self) -> None:
        self._answering = 0
        self._change = trio.lowlevel.ParkingLot()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count what is done inside."""
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            self._change.unpark_all()

    async def drained(self) -> None:
        """Wait until no request of another replica is answered here. After `leave` no more come."""
        while self._answering:
            await self._change.park()


class Door(AnswersForOthers):
    """Stands in front of an HTTP endpoint: `handle` answers requests of clients, here or elsewhere.

    `deliver` answers those that other replicas have handed over.
    """

    def __init__(
        self,
        listener: int,
        endpoint: HttpEndpoint,
        sessions: StoredSessions,
        members: Membership,
        store: Store,
        client: ReplicaClient,
    ) -> None:
        super().__init__()
        self._listener = listener
        self._endpoint, self._sessions = endpoint, sessions
        self._members, self._store, self._client = members, store, client
        self._moved: Lru[str, str] = Lru(MOVED_KEPT, MOVED_BYTES)  # sessions -> ids of their owners
        self._streams: set[trio.CancelScope] = set()  # that clients opened, and other replicas write

    def handle(self, request: HttpRequest, reply: HttpReply) -> Awaitable[None]:
        """Answer an HTTP request here or elsewhere."""
        members = self._members
        # At each request: a process that was stopped for longer than its lease has missed changes.
        members.check_clock()
        # Requests for this replica, and those whose id is still right, need no question to the store.
        owner = owner_of_request(request.headers, request.query, request.body)
        if owner is None:
            return self._endpoint.handle(request, reply)
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            if owner in members.marks.own:
                return self._endpoint.handle(request, reply)
        elif session_id in self._endpoint.sessions and members.is_inside:
            # Without a lease the session may be another replica's by now: first a new lease is waited for.
            return self._endpoint.handle(request, reply)
        return self._find_and_answer(owner, session_id, request, reply)

    async def deliver(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer a request that another replica has handed over, or refuse it if it belongs elsewhere."""
        await in_task()
        with self.answering():
            self._members.check_clock()
            session_id = request.headers.get(SESSION_HEADER)
            try:
                # Without a lease another replica may have the session by now.
                if session_id in self._endpoint.sessions:
                    await self._sessions.require_lease()
                await self._endpoint.handle(request, reply)
            # It does not hand the request over again: the first replica asks the store, and no request goes
            # round in circles.
            except MovedElsewhere:
                await reply.send(MISDIRECTED, ((NOT_HERE, "1"),))
            except RpcError as error:
                await self._refuse(request, reply, error)

    def let_go(self) -> None:
        """End the streams that stay open, as this process stops: their clients resume them elsewhere."""
        for scope in self._streams:
            scope.cancel(reason="stopping")

    async def _find_and_answer(
        self, owner: str, session_id: str | None, request: HttpRequest, reply: HttpReply
    ) -> None:
        await in_task()
        handed = HandedRequest.of(self._listener, request)
        try:
            for _ in range(ATTEMPTS):
                there = await self._locate(owner, session_id)
                if there is None:
                    # The attempt before may have entered a view, which is named by the path.
                    request.path, request.principal = handed.path, ANYONE
                    try:
                        await self._endpoint.handle(request, reply)
                    except MovedElsewhere:
                        await self._members.changed(PAUSE_SECONDS)
                        continue
                    return
                outcome = await self._hand_over(there, handed, reply)
                if outcome is Outcome.ANSWERED:
                    return
                if session_id is not None:
                    self._moved.discard(session_id)
                    owner = ""  # the store knows
                # A request that is safe to repeat is repeated elsewhere. Any other gets an error which says
                # that it may have been carried out.
                if outcome is Outcome.LOST and (reply.started or not _is_repeatable(request)):
                    await self._end_lost(request, reply)
                    return
                if outcome is not Outcome.NOT_THERE:
                    # Not until the store was asked: with many requests that is too often to wait for a lease.
                    await trio.sleep(self._members.lease / RENEWALS)
            raise Busy("the replica that has this session cannot be reached", "cluster.lease")
        except StoreAway as away:
            await self._refuse(request, reply, away.refusal())
        except RpcError as error:
            await self._refuse(request, reply, error)

    async def _hand_over(self, there: Neighbour, handed: HandedRequest, reply: HttpReply) -> Outcome:
        # Only a GET stays open for as long as its client likes, so `let_go` ends no other.
        if handed.method != "GET":
            return await self._client.hand_over(there, handed, reply)
        with trio.CancelScope() as scope:
            self._streams.add(scope)
            try:
                return await self._client.hand_over(there, handed, reply)
            finally:
                self._streams.discard(scope)
        return Outcome.LOST  # as the client sees it

    async def _locate(self, owner: str, session_id: str | None) -> Neighbour | None:
        """Return the other replica that has what is named; None if it is to be answered here.

        Raises StoreAway, Busy.
        """
        members = self._members
        # Parked calls and tasks never move: the id in front of their names stays right.
        if session_id is None:
            return await members.find(owner)
        if session_id in self._endpoint.sessions and not members.is_left:
            await self._sessions.require_lease()
            return None
        there = members.neighbours.get(self._moved.get(session_id, owner))
        if there is not None:
            return there
        kept = await self._store.find(self._sessions.name_of(session_id))
        if kept is None:  # the endpoint answers with 404, and the client opens a new session
            return None
        if kept.owner not in members.marks.own and not await members.is_gone(kept.owner):
            self._moved[session_id] = kept.owner
            return members.neighbours.get(kept.owner)
        if members.is_left and members.others:
            return random.choice(members.others)  # any of them: the first that gets it goes on with it
        return None

    async def _end_lost(self, request: HttpRequest, reply: HttpReply) -> None:
        """Tell the client of a request that was lost on the way what may have become of it."""
        if request.method != "POST":  # a stream, of which the client asks for the rest
            await reply.finish()
            return
        error = lost_with_process(done=False if _is_repeatable(request) else None)
        if reply.started:
            await reply.finish(encode_event(encode_error(_id_in(request), error)))
        else:
            await self._refuse(request, reply, error)

    async def _refuse(self, request: HttpRequest, reply: HttpReply, error: RpcError) -> None:
        await answer_error(reply, error, _id_in(request))


class HandedCalls(AnswersForOthers):
    """Calls of clients whose connection stays here: WebSocket, TCP, Unix sockets, standard input and output.

    The other replica believes who the client is. It applies everything else itself: access rules, limits, and
    records of the exchange. `attach` has to follow before anything is answered.
    """

    def __init__(self, members: Membership, client: ReplicaClient) -> None:
        super().__init__()
        self._members, self._client = members, client
        # The process makes its service after its replica, whose id is in the names that the service makes.
        self._service: MuxService

    def attach(self, service: MuxService) -> None:
        """Let `service` answer calls of other replicas, and hand over its clients' calls here."""
        self._service = service
        service.elsewhere = self._hand_over

    async def _hand_over(self, owner: str, call: Call, notify: Notify) -> Fields | None:
        """See Elsewhere."""
        await in_task()
        members = self._members
        for _ in range(ATTEMPTS):
            try:
                there = await members.find(owner)
            except StoreAway as away:
                raise away.refusal() from None
            if there is None:
                return None
            try:
                return await self._client.exchange(there, call, notify)
            except (TransportError, RemoteProtocolError) as error:
                log.info("a call was not answered", replica=there.card.name, reason=str(error))
                if STATE in call.params and not was_unsent(error):  # a state can be used once
                    raise lost_with_process(done=None) from None
            await trio.sleep(members.lease / RENEWALS)
        raise Busy("the replica that has it cannot be reached", "cluster.lease")

    async def answer(self, handed: HandedCall, reply: HttpReply) -> None:
        """Answer a call of another replica's client."""
        await in_task()
        self._members.check_clock()
        with self.answering():
            await respond(Request(ID, handed.method), reply, self._work(handed.call(), reply), streams=True)

    async def _work(self, call: Call, reply: HttpReply) -> Fields:
        # A coroutine, as `answer` of the service may raise at once: `respond` takes what its work raises.
        return await self._service.answer(ID, call, HttpNotify(reply, True))


def _message_in(request: HttpRequest) -> Message | None:
    """Return the JSON-RPC message in a POST; None for anything else."""
    if request.method != "POST":
        return None
    try:
        return decode_message(request.body)
    except BadMessage:  # a batch, too
        return None


def _id_in(request: HttpRequest) -> Id | None:
    message = _message_in(request)
    return message.id if isinstance(message, Request) else None


def _is_repeatable(request: HttpRequest) -> bool:
    """Return whether a request is safe to repeat."""
    message = _message_in(request)
    if isinstance(message, Request):
        return message.method in m.READ_ONLY
    return request.method != "POST" or message is not None


def owner_of_request(headers: Mapping[str, str], query: str, body: bytes) -> str | None:
    """Return the process that an HTTP request is for; None when any process can answer it."""
    session = headers.get(SESSION_HEADER)
    if session is not None:
        return owner_of(session)
    if query and SESSION_KEY in query:
        return owner_of(next(iter(parse_qs(query).get(SESSION_KEY, ())), None))
    method = headers.get(METHOD_HEADER)  # if it differs from the message's method, any process refuses it
    may_name_task = method is None or method.startswith("tasks/")
    # Without the quotes, which are frequent; `find`, as `in` first tries to convert the bytes to a number.
    if body.find(b"requestState") < 0 and not (may_name_task and body.find(b"taskId") >= 0):
        return None
    params = members_of(members_of(body).get("params"))
    owner = owner_of(text_of(params.get("requestState")))
    return owner if owner is not None else owner_of(text_of(params.get("taskId")))
