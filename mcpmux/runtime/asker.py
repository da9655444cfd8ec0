"""Asking one upstream in its own words.

Promises: whatever it says in answer, notifications and errors included, is put into words that clients know.
Refuses to know who is asked, and whether the call may be made.
"""

from __future__ import annotations

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import URL_ELICITATION_REQUIRED
from mcpmux.protocol.input_requests import elicitation_ids
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.personal import Personal
from mcpmux.runtime.tasks.tasks import Tasks
from mcpmux.runtime.upstreams.posted import Posted
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.runtime.visits import arrange_visit


class Asker:
    """Asks upstreams, one at a time."""

    def __init__(self, tasks: Tasks, personal: Personal) -> None:
        self._tasks = tasks
        self._personal = personal

    def __repr__(self) -> str:
        return f"<Asker {self._tasks!r}>"

    async def ask(
        self, upstream: Upstream, call: Call, notify: Notify, posted: Posted | None = None
    ) -> Fields:
        """Ask an upstream in its own words, and put its answer into those that clients know.

        `posted`: what `Upstream.post` gave for the call, to go on with. Raises RpcError.
        """
        space = upstream.space

        async def expose(event: Event) -> None:
            await notify(Event(event.method, rewrite.expose_event(event.method, event.params, space)))

        try:
            if posted is None and call.method in m.ABOUT_TASKS:
                result = await self._tasks.exchange(upstream, call, expose)
            else:
                result = await upstream.exchange(call, expose, posted=posted)
        except RpcError as error:
            try:
                result = await self.after_error(upstream, call, expose, error)
            except RpcError as final:
                raise rewrite.expose_error(final, space) from None
        return rewrite.expose_result(call.method, self.noted(upstream, call, result), space)

    async def after_error(self, upstream: Upstream, call: Call, notify: Notify, error: RpcError) -> Fields:
        """What follows an upstream's `error`, which is raised unless it wants a URL visited."""
        if error.code != URL_ELICITATION_REQUIRED:
            raise error
        return await arrange_visit(self._personal, upstream, call, notify, error)

    def noted(self, upstream: Upstream, call: Call, result: Fields) -> Fields:
        """The result; a legacy client that it sends to URLs will be told when these visits are completed."""
        if "inputRequests" in result and call.legacy:
            for elicitation_id in elicitation_ids(result):
                self._personal.own_elicitation(upstream.key, elicitation_id, call.client)
        return result
