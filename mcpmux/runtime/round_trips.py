"""Mark what clients have to bring back, and have users visit URLs: the calls that take several round trips.

Clients of 2026-07-28 get states and task ids that are marked and sealed, and opened when they come back. A
state is bound to the principal of its client. Where several processes serve the same clients, a mark is put
in front, by which the right process gets the next call:

| what the state or task id belongs to | mark |
| --- | --- |
| a server of 2026-07-28 that all processes reach over HTTP: no request depends on another | ANYWHERE |
| anything else: a parked call, a task in a session with its server | the id of the process that gave it out |

A legacy server may ask that its user visit URLs before it does what was asked:

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

Source: `basic/patterns/mrtr`, 2026-07-28; the Tasks extension (SEP-2663); `client/elicitation` of 2025-11-25
(URLElicitationRequiredError) and of 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import trio

from mcpmux.errors import RpcError
from mcpmux.mux.access import lost_task, no_task
from mcpmux.mux.rewrite import ForeignMark, Marks, owner_of
from mcpmux.mux.seal import ForeignState, StateSeal, TaskSeal
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Exchange, Notify, check_complete
from mcpmux.protocol.codes import (
    INTERNAL_ERROR,
    MISSING_CLIENT_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    lost_state,
    unknown_state,
)
from mcpmux.protocol.envelope import encode, raw, text_of
from mcpmux.protocol.input_requests import (
    STATE,
    Wish,
    accepted_visits,
    elicitation_ids,
    offers,
    repeated,
    url_questions,
    visits_in,
    wishes_in,
)
from mcpmux.protocol.method import ELICIT
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import TASK_ID, extension_missing, knows_extension
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.notification_hub import Personal
from mcpmux.runtime.resolver import Resolver
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.registry import is_one_for_all
from mcpmux.upstreams.upstream import Upstream

_COMING_BACK: Final = ((STATE, unknown_state, lost_state), (TASK_ID, no_task, lost_task))
"""Members that clients send back, each with the errors for an unknown value and for one of a lost process."""

ANYWHERE: Final = "."
"""The mark that any process accepts. No process has it: it looks like one with an empty id."""

NO_STATE: Final = ".no-state"
"""The text behind the mark of a question without a state of the server."""

_decode_task: Final = msgspec.json.Decoder(tuple[str, str | None]).decode


ROUNDS_LIMIT: Final = 1000  # of questions in one call; an agent that samples in each step has hundreds
AGAIN_SECONDS: Final = 0.5  # before a call is repeated without answers, as such a server is busy

Respond = Callable[[Fields, dict[str, Wish]], Awaitable[Fields]]
"""Returns the client's responses to the questions in a result."""


async def end_rounds(
    result: Fields, exchange: Exchange, call: Call, notify: Notify, respond: Respond
) -> Fields:
    """Repeat a call with its client's responses until the server asks no more. Return the last result.

    `result`: the first one, which is not complete. Raises RpcError, also for a result of an unknown type.
    """
    rounds = 0
    while (wishes := wishes_in(result)) is not None:
        rounds += 1
        # A server that always answers with a state alone would have the call repeated for ever.
        if rounds > ROUNDS_LIMIT:
            problem = f"the upstream has asked for input {ROUNDS_LIMIT} times and does not end"
            raise RpcError(INTERNAL_ERROR, problem)
        await in_task()
        if not wishes:  # it just wants the call again: no answer takes time then
            await trio.sleep(AGAIN_SECONDS)
        call = repeated(call, result, await respond(result, wishes))
        result = await exchange(call, notify)
    check_complete(result)
    return result


class RoundTrips:
    """Marks and seals states and task ids in results, and opens them in calls."""

    def __init__(self, key: bytes, marks: Marks, resolver: Resolver, access: AccessControl) -> None:
        """`key`: see `mux/seal`."""
        self.use_key(key)
        self._marks, self._resolver, self._access = marks, resolver, access

    def use_key(self, key: bytes) -> None:
        """Seal with a key from now on. Seals of another are refused."""
        self._state_seal, self._task_seal = StateSeal(key), TaskSeal(key)

    def taken_back(self, call: Call) -> Call:
        """Return a modern client's call with the state and the task id as they were before `given_out`.

        Raises RpcError for those of another principal or process.
        """
        params, principal = call.params.copy(), call.principal.key
        # A process that serves alone has no mark, and puts none in front.
        for key, unknown, lost in _COMING_BACK if self._marks.current else ():
            text = call.text(key)
            if text is None:
                continue
            if key == TASK_ID and not knows_extension(call.meta.get(CLIENT_CAPABILITIES)):
                raise extension_missing()  # first, so that the answer does not reveal the task
            if text.startswith(ANYWHERE):
                own = text[len(ANYWHERE) :]
                params[key] = raw(own if key == STATE else self._read_task(own, principal))
            elif key == STATE and text == f"{owner_of(text)}.{NO_STATE}":
                del params[key]  # any process can continue, if its own has gone
            else:
                try:
                    params[key] = raw(self._marks.own_part(text))
                except ForeignMark:
                    raise (unknown if owner_of(text) is None else lost)() from None
        # A principal without name and view has no key that a state could be bound to.
        state = text_of(params[STATE]) if STATE in params else None
        if state is not None and principal:
            try:
                params[STATE] = raw(self._state_seal.open(principal, state))
            except ForeignState:
                raise unknown_state() from None
        return call.with_params(params)

    def given_out(self, call: Call, upstream: Upstream, result: Fields) -> Fields:
        """Return a result with its state and task id marked and sealed for a modern client."""
        # The session of a legacy client asks the questions itself, in this process: it sends no state back.
        if call.legacy:
            return result
        sealed, principal, mark = result.copy(), call.principal.key, self._marks.current
        is_anywhere = False
        # In 2026-07-28 no request depends on another, so any process may send the next one.
        if mark and upstream.status.is_modern and is_one_for_all(upstream.config):
            mark, is_anywhere = ANYWHERE, True
        state = text_of(sealed[STATE]) if STATE in sealed else None
        if state is not None:
            sealed[STATE] = raw(mark + (self._state_seal.seal(principal, state) if principal else state))
        task_id = text_of(sealed[TASK_ID]) if TASK_ID in sealed else None
        if task_id is not None and is_anywhere:
            # Its owner and tool are known only where it was made: the id takes them to other processes.
            resolved = self._resolver.namespace.resolve_task(task_id)
            tool = self._access.tool_of(*resolved) if resolved is not None else None
            task_id = self._task_seal.seal(principal, encode((task_id, tool)).decode())
        if task_id is not None:
            sealed[TASK_ID] = raw(mark + task_id)
        if mark and not is_anywhere and "inputRequests" in sealed and STATE not in sealed:
            sealed[STATE] = raw(mark + NO_STATE)  # the session with its server is in this process
        return sealed

    def own_state(self, call: Call, state: str) -> str:
        """Return a state of this process itself as the client of a call gets it."""
        if call.legacy:
            return state
        principal = call.principal.key
        return self._marks.current + (self._state_seal.seal(principal, state) if principal else state)

    def _read_task(self, sealed: str, principal: str) -> str:
        """Return the exposed id of a sealed task, and note its owner and tool in this process.

        Raises RpcError for another principal's task.
        """
        try:
            exposed, tool = _decode_task(self._task_seal.open(principal, sealed))
        except ForeignState:
            raise no_task() from None
        resolved = self._resolver.namespace.resolve_task(exposed)
        if resolved is not None:
            self._access.tasks.note(*resolved, principal, tool)
        return exposed


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
