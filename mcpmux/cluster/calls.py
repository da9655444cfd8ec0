"""Calls that another replica has to answer, as it has what they are about: a parked call, a task.

For clients whose connection stays here (WebSocket, TCP, Unix sockets, standard input and output); over HTTP
whole requests are handed over, see `door`. Who the client is, the other replica believes. Everything else is
its own affair: access rules, limits, and records of the exchange.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from mcpmux.clients.http_answer import HttpNotify, respond
from mcpmux.clients.service import MuxService
from mcpmux.cluster.card import Neighbour
from mcpmux.cluster.door import ATTEMPTS
from mcpmux.cluster.letter import HandedCall
from mcpmux.cluster.membership import RENEWALS, Membership
from mcpmux.cluster.port import ReplicaClient
from mcpmux.cluster.sessions import store_away
from mcpmux.cluster.store import StoreAway
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import Busy, lost_with_process
from mcpmux.protocol.envelope import Request
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.client import was_unsent
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.inline import in_task

log = structlog.get_logger()

ID: Final = 1  # of the only request on a connection


class HandedCalls:
    """`attach` has to follow before anything is answered."""

    def __init__(self, members: Membership, client: ReplicaClient) -> None:
        self._members, self._client = members, client
        self._service: MuxService
        self._answering = 0
        self._change = trio.lowlevel.ParkingLot()

    def attach(self, service: MuxService) -> None:
        """This answers calls of other replicas, and asks us about those of its own clients."""
        self._service = service
        service.elsewhere = self._hand_over

    async def _hand_over(self, owner: str, call: Call, notify: Notify) -> Fields | None:
        """See Elsewhere."""
        await in_task()
        members = self._members
        for _ in range(ATTEMPTS):
            there = await self._find(owner)
            if there is None:
                return None
            try:
                with members.relying_on(there):
                    return await self._client.exchange(there, call, notify)
            except (TransportError, RemoteProtocolError) as error:
                log.info("a call was not answered", replica=there.card.name, reason=str(error))
                if STATE in call.params and not was_unsent(error):  # with it nothing can be asked twice
                    raise lost_with_process(done=None) from None
            await trio.sleep(members.lease / RENEWALS)
        raise Busy("the replica that has it cannot be reached", "cluster.lease")

    async def _find(self, owner: str) -> Neighbour | None:
        """The other replica with that id. Raises Busy."""
        members = self._members
        if owner in members.marks.own:
            return None
        if owner not in members.neighbours:
            try:
                await members.is_gone(owner)  # or it has just come
            except StoreAway as away:
                raise store_away(away) from None
        return members.neighbours.get(owner)

    async def answer(self, handed: HandedCall, reply: HttpReply) -> None:
        """Answer a call of another replica's client."""
        await in_task()
        self._members.heed()
        self._answering += 1
        try:
            await respond(Request(ID, handed.method), reply, self._work(handed.call(), reply), streams=True)
        finally:
            self._answering -= 1
            self._change.unpark_all()

    async def _work(self, call: Call, reply: HttpReply) -> Fields:
        return await self._service.answer(ID, call, HttpNotify(reply, True))

    async def drained(self) -> None:
        """Wait until nothing is answered here for other replicas. To one that has left nothing more comes."""
        while self._answering:
            await self._change.park()
