"""URLs that a legacy server wants its user to visit before it does what was asked.

| client | what it gets |
| --- | --- |
| legacy | the error -32042 as it is; `notifications/elicitation/complete` when the server sends it |
| modern, offers `elicitation.url` | `input_required` with a URL elicitation for each, by `elicitationId` |
| modern, offers it not | -32021, naming `elicitation.url` |

A modern client's repeated call says which it accepted. There is no state: the ids are the keys, and the
call is simply sent again. Among several processes there is a mark in its place, as the session with the
server is in one of them. When the server still wants the visit, it may be that the user is not there yet:
we wait for `notifications/elicitation/complete` for VISIT_SECONDS, send the call once more, and ask the
client again when that was not enough. A refused visit ends the call with an error that says so.

Source: `client/elicitation` of 2025-11-25 (URLElicitationRequiredError) and of 2026-07-28.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Notify
from mcpmux.protocol.codes import INTERNAL_ERROR, MISSING_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED
from mcpmux.protocol.input_requests import accepted_visits, elicitation_ids, offers, url_questions, visits_in
from mcpmux.protocol.method import ELICIT
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.notification_hub import Personal
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.upstream import Upstream

VISIT_SECONDS: Final = 30.0  # for a user who has just accepted; a longer visit is asked about again


class UrlVisits:
    """What servers want visited, and by whose users."""

    def __init__(self, personal: Personal) -> None:
        self._personal = personal

    async def after_error(self, upstream: Upstream, call: Call, notify: Notify, error: RpcError) -> Fields:
        """What follows an upstream's `error`, which is raised unless it wants a URL visited."""
        if error.code != URL_ELICITATION_REQUIRED:
            raise error
        visits = visits_in(error)
        if call.legacy:
            for elicitation_id in visits:
                self._personal.own_elicitation(upstream.key, elicitation_id, call.client)
            raise error
        await in_task()
        if accepted := accepted_visits(call):
            with trio.move_on_after(VISIT_SECONDS) as patience:
                await self._personal.completed(upstream.key, accepted)
            if not patience.cancelled_caught:
                try:
                    return await upstream.exchange(call, notify)
                except RpcError as again:
                    if again.code != URL_ELICITATION_REQUIRED:
                        raise
                    visits = visits_in(again)
        if not visits:
            raise RpcError(
                INTERNAL_ERROR, f"the upstream wants a URL visited and names none: {error.message}"
            )
        if not all(offers(call.meta.get(CLIENT_CAPABILITIES), ELICIT, visit) for visit in visits.values()):
            needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
            missing = "Missing required client capability: elicitation.url"
            raise RpcError(MISSING_CLIENT_CAPABILITY, missing, needed)
        return url_questions(visits)

    def note(self, upstream: Upstream, call: Call, result: Fields) -> None:
        """A legacy client is asked by `result` to send its user to URLs: it hears when the user was there."""
        for elicitation_id in elicitation_ids(result):
            self._personal.own_elicitation(upstream.key, elicitation_id, call.client)
