"""Translate a legacy server's request that its user visit URLs before it does what was asked.

| client | what it gets |
| --- | --- |
| legacy | the error -32042 unchanged; `notifications/elicitation/complete` when the server sends it |
| modern with `elicitation.url` | `input_required` with a URL elicitation for each, by `elicitationId` |
| modern without it | -32021, naming `elicitation.url` |

A modern client's repeated call contains which elicitations it accepted. There is no state: the ids are the
keys, and the call is simply sent again. Among several processes a mark is sent instead of a state, as the
session with the server is in one of them. When the server still wants the visit, the user may not have got
there yet: mcpmux waits for `notifications/elicitation/complete` for VISIT_SECONDS, sends the call once more,
and asks the client again if the server still wants the visit. A refused visit ends the call with an error.

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
    """Answers calls whose servers want URLs visited, and notes which client was sent where."""

    def __init__(self, personal: Personal) -> None:
        self._personal = personal

    async def after_error(self, upstream: Upstream, call: Call, notify: Notify, error: RpcError) -> Fields:
        """Return the answer to a call that failed with `error` because the upstream wants URLs visited.

        Raises `error` itself if it is any other, or the client is legacy.
        """
        if error.code != URL_ELICITATION_REQUIRED:
            raise error
        visits = visits_in(error)
        if call.legacy:
            for elicitation_id in visits:
                self._personal.own_elicitation(upstream.key, elicitation_id, call.client)
            raise error
        await in_task()
        if accepted := accepted_visits(call):
            # The user may still be on the page: give the server time to report the end of the visit.
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
        """Note the URL elicitations in `result`, so that the client is notified of their completion."""
        for elicitation_id in elicitation_ids(result):
            self._personal.own_elicitation(upstream.key, elicitation_id, call.client)
