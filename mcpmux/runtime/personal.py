"""What a server says to one client only: how its task does, and that its user has been where it sent them.

Promises: it reaches the client that made the task, or was sent to the URL, and nobody else; putting never
waits. What comes before its task is known waits for it, within a bound. Clients that keep no session with us
(2026-07-28) are not told: they ask.

Source: `basic/utilities/tasks` and `client/elicitation`, 2025-11-25.
"""

from __future__ import annotations

import trio

from mcpmux.mux import rewrite
from mcpmux.mux.ownership import Ownership
from mcpmux.mux.rewrite import Space
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Event
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK_ID, related_task
from mcpmux.runtime.client_outbox import ClientOutbox

PERSONAL = frozenset({m.TASK_STATUS, m.ELICITATION_COMPLETE, m.PROGRESS})
UNCLAIMED_LIMIT = 64  # statuses of tasks whose making has not been answered yet
COMPLETED_LIMIT = 1000  # completed elicitations that are remembered for a client that comes back later

Key = tuple[str, str]


class Personal:
    """Who owns what among the clients, and how they are told."""

    def __init__(self) -> None:
        self.tasks: Ownership[Raw | None] = Ownership()
        self._elicitations: Ownership[None] = Ownership()
        self._outboxes: dict[object, ClientOutbox] = {}
        self._unclaimed: dict[Key, Event] = {}
        self._completed: dict[Key, None] = {}
        self._completion = trio.Event()

    def join(self, client: object, outbox: ClientOutbox) -> None:
        """A client that can be told things. `leave` must follow."""
        self._outboxes[client] = outbox

    def outbox_of_task(self, upstream: str, task_id: str) -> ClientOutbox | None:
        """Where the client of a task is told things, None when there is none."""
        found = self.tasks.find(upstream, task_id)
        return self._outboxes.get(found[0]) if found is not None else None

    def leave(self, client: object) -> None:
        """A client has gone."""
        self._outboxes.pop(client, None)
        self.tasks.leave(client)
        self._elicitations.leave(client)

    def own_task(self, upstream: str, space: Space, task_id: str, client: object, token: Raw | None) -> None:
        """`client` has made a task of an upstream; `token`: its progress token."""
        if client is None:
            return
        self.tasks.add(upstream, task_id, client, token)
        if (early := self._unclaimed.pop((upstream, task_id), None)) is not None:
            self._put(client, Event(early.method, rewrite.expose_task(early.params, space)))

    def own_elicitation(self, upstream: str, elicitation_id: str, client: object) -> None:
        """`client` has been told to send its user to a URL."""
        if client is not None:
            self._elicitations.add(upstream, elicitation_id, client, None)

    def hear(self, upstream: str, method: str, params: Fields, space: Space) -> None:
        """An upstream says something that is for one client: `method` is in PERSONAL."""
        if method == m.ELICITATION_COMPLETE:
            elicitation_id = text_of(params.get("elicitationId")) or ""
            owner = self._elicitations.find(upstream, elicitation_id)
            if owner is not None:
                self._put(owner[0], Event(method, params))
            if len(self._completed) >= COMPLETED_LIMIT:
                del self._completed[next(iter(self._completed))]
            self._completed[upstream, elicitation_id] = None
            self._completion.set()
            self._completion = trio.Event()
            return
        task_id = (text_of(params.get(TASK_ID)) if method == m.TASK_STATUS else related_task(params)) or ""
        found = self.tasks.find(upstream, task_id)
        if method == m.PROGRESS:  # of a task: it goes on under the token of the call that made it
            if found is not None and found[1] is not None:
                said = {**rewrite.expose_related(params, space), PROGRESS_TOKEN: found[1]}
                self._put(found[0], Event(method, said))
        elif found is not None:
            self._put(found[0], Event(method, rewrite.expose_task(params, space)))
        else:
            if len(self._unclaimed) >= UNCLAIMED_LIMIT:
                del self._unclaimed[next(iter(self._unclaimed))]
            self._unclaimed[upstream, task_id] = Event(method, params)

    async def completed(self, upstream: str, elicitation_ids: frozenset[str]) -> None:
        """Wait until the upstream has said that each of these is completed. The caller owns the deadline."""
        wanted = {(upstream, elicitation_id) for elicitation_id in elicitation_ids}
        while not wanted <= self._completed.keys():
            await self._completion.wait()

    def _put(self, client: object, event: Event) -> None:
        outbox = self._outboxes.get(client)
        if outbox is not None:
            outbox.put(event)
