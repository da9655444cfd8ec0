"""Asking one upstream in its own words.

Promises: whatever it says in answer, notifications and errors included, is put into words that clients know.
Refuses to know who is asked, and whether the call may be made.
"""

from __future__ import annotations

from typing import Any

import trio

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, MISSING_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED
from mcpmux.protocol.input_requests import accepted_visits, elicitation_ids, offers, url_questions, visits_in
from mcpmux.protocol.method import ELICIT
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.personal import Personal
from mcpmux.runtime.tasks import Tasks
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.transports.inline import in_task

# URLs that a legacy server wants its user to visit before it does what was asked.
#
# | client | what it gets |
# | --- | --- |
# | legacy | the error -32042 as it is; `notifications/elicitation/complete` when the server sends it |
# | modern, offers `elicitation.url` | `input_required` with a URL elicitation for each, by `elicitationId` |
# | modern, offers it not | -32021, naming `elicitation.url` |
#
# A modern client's repeated call says which it accepted. There is no `requestState`: the ids are the keys,
# and the call is simply sent again. When the server still wants the visit, it may be that the user is not
# there yet: we wait for `notifications/elicitation/complete` for VISIT_SECONDS, send the call once more,
# and ask the client again when that was not enough. A refused visit ends the call with an error that says
# so.
#
# Source: `client/elicitation` of 2025-11-25 (URLElicitationRequiredError) and of 2026-07-28.

VISIT_SECONDS = 30.0  # for a user who has just accepted; a longer visit is asked about again


async def arrange_visit(
    personal: Personal, upstream: Upstream, call: Call, notify: Notify, error: RpcError
) -> Fields:
    """The answer to a call that a legacy server answered with -32042, in `error`. Raises RpcError."""
    visits = visits_in(error)
    if call.legacy:
        for elicitation_id in visits:
            personal.own_elicitation(upstream.key, elicitation_id, call.client)
        raise error
    await in_task()
    if accepted := accepted_visits(call):
        with trio.move_on_after(VISIT_SECONDS) as patience:
            await personal.completed(upstream.key, accepted)
        if not patience.cancelled_caught:
            try:
                return await upstream.exchange(call, notify)
            except RpcError as again:
                if again.code != URL_ELICITATION_REQUIRED:
                    raise
                visits = visits_in(again)
    if not visits:
        raise RpcError(INTERNAL_ERROR, f"the upstream wants a URL visited and names none: {error.message}")
    if not all(offers(call.meta.get(CLIENT_CAPABILITIES), ELICIT, visit) for visit in visits.values()):
        needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        missing = "Missing required client capability: elicitation.url"
        raise RpcError(MISSING_CLIENT_CAPABILITY, missing, needed)
    return url_questions(visits)


class Asker:
    """Asks upstreams, one at a time."""

    def __init__(self, tasks: Tasks, personal: Personal) -> None:
        self._tasks = tasks
        self._personal = personal

    def __repr__(self) -> str:
        return f"<Asker {self._tasks!r}>"

    async def ask(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        """Ask an upstream in its own words, and put its answer into those that clients know.

        Raises RpcError.
        """

        async def expose(event: Event) -> None:
            await notify(
                Event(event.method, rewrite.expose_event(event.method, event.params, upstream.space))
            )

        try:
            if call.method in m.ABOUT_TASKS and not (
                call.method == m.TOOLS_CALL and self._tasks.makes_none(upstream, call)
            ):
                result = await self._tasks.exchange(upstream, call, expose)
            else:
                result = await upstream.exchange(call, expose)
        except RpcError as error:
            try:
                result = await self.after_error(upstream, call, expose, error)
            except RpcError as final:
                raise rewrite.expose_error(final, upstream.space) from None
        if call.legacy and "inputRequests" in result:
            result = self.noted(upstream, call, result)
        return rewrite.expose_result(call.method, result, upstream.space)

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
