"""Share sessions between workers: a store in the supervisor's memory, and connections handed over.

A worker is a member like a replica of a cluster, with the same rules for sessions, streams and rate limits.
Its lease ends when its process does, or when it hangs.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, cast

from mcpmux.app.workers.channel import ControlChannel
from mcpmux.cluster.letter import HandedRequest, Neighbour
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.port import Outcome
from mcpmux.cluster.replica import Node
from mcpmux.cluster.store import MemoryStore, OpenSeal, Store, StoreAway
from mcpmux.config import Limits
from mcpmux.errors import RpcError, TransportClosed
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.inline import in_task

STORE = "store"  # the name of the call to the supervisor
METHODS = frozenset(name for name in vars(Store) if not name.startswith("_"))
STORE_SECONDS = 1.0


class SupervisorStore:
    """The supervisor's store, as a worker uses it: every method of `Store` is a call to the supervisor."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)
        return partial(self._ask, method)

    async def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        try:
            return await self._control.ask(STORE, method, arguments, named, seconds=STORE_SECONDS)
        except TransportClosed as error:
            raise StoreAway(f"the supervisor: {error}") from None


class MemberStore:
    """The store for the calls of one worker, in the supervisor. `_member`: the id of the worker's lease."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._member: str | None = None

    async def answer(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the store's answer to a worker's call, None for an unknown method."""
        if method not in METHODS:
            return None
        if method == "renew":  # so that `end` knows the lease of a worker that was killed
            self._member = arguments[0]
        return await getattr(self._store, method)(*arguments, **named)

    async def end(self) -> None:
        """End the lease of a worker that has ended, so that the others may take its sessions over."""
        if self._member is not None:
            await self._store.leave(self._member)


async def pass_connection(to: Neighbour, _handed: HandedRequest, reply: HttpReply) -> Outcome:
    """Hand the connection of a request over to another worker, which answers it. See HandOver."""
    reply.pass_on(int(to.card.url))  # the address of a worker is its number
    return Outcome.ANSWERED


async def refuse_foreign(members: Membership, owner: str, call: Call, _notify: Notify) -> Fields | None:
    """Refuse a call about a parked call or a task of another worker. See Elsewhere.

    Return None if no worker has it. Raises RpcError otherwise.
    """
    # Only an HTTP connection can be handed over for one request; others carry a client's whole session.
    await in_task()
    there = None
    with suppress(StoreAway):
        there = await members.find(owner)
    if there is None:
        return None
    what = "call" if STATE in call.params else "task"
    problem = (
        f"{there.card.name} of this mcpmux has that {what}; use the connection on which it began, or HTTP"
    )
    raise RpcError(INVALID_PARAMS, f"Invalid params: {problem}")


def make_node(number: int, control: ControlChannel, limits: Limits) -> Node:
    """Return the node of worker `number`, a member among the other workers."""
    store, seal = cast(Store, SupervisorStore(control)), OpenSeal()
    members = Membership(store, seal, f"worker {number}", str(number), ids=f"{number}w", is_told_of=False)
    return Node(store, seal, members, pass_connection, limits.session_idle)
