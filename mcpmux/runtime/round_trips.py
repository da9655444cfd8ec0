"""States and task ids that clients of 2026-07-28 are given, and come back with.

A state is bound to the principal of its client. Where several processes serve the same clients, a mark stands
in front that says which of them can go on:

| what it is about | mark |
| --- | --- |
| a server of 2026-07-28 that all of them reach over HTTP: no request depends on another | ANYWHERE |
| anything else: a parked call, a task in a session with its server | the id of the one that gave it out |

Whose a task is, and which tool has made it, is known where it was made. With ANYWHERE its id says it, sealed.

Source: `basic/patterns/mrtr`, 2026-07-28; the Tasks extension (SEP-2663).
"""

from __future__ import annotations

from typing import Final

import msgspec

from mcpmux.mux.access import lost_task, no_task
from mcpmux.mux.rewrite import ForeignMark, Marks, owner_of
from mcpmux.mux.seal import ForeignState, StateSeal, TaskSeal
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call
from mcpmux.protocol.codes import lost_state, unknown_state
from mcpmux.protocol.envelope import encode, raw, text_of
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.protocol.tasks import TASK_ID, extension_missing, knows_extension
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.resolver import Resolver
from mcpmux.upstreams.registry import is_one_for_all
from mcpmux.upstreams.upstream import Upstream

_COMING_BACK: Final = ((STATE, unknown_state, lost_state), (TASK_ID, no_task, lost_task))
"""What clients of 2026-07-28 get and come back with, and what they hear if it is nothing of ours, or lost."""

ANYWHERE: Final = "."
"""Begins like the mark of a process without an id, of which there is none."""

NO_STATE: Final = ".no-state"
"""What is behind the mark of a question for which its server keeps no state."""

_decode_task: Final = msgspec.json.Decoder(tuple[str, str | None]).decode


class RoundTrips:
    """Marks and seals what goes out, and takes it back."""

    def __init__(self, key: bytes, marks: Marks, resolver: Resolver, access: AccessControl) -> None:
        """`key`: see `mux/seal`."""
        self._state_seal, self._task_seal = StateSeal(key), TaskSeal(key)
        self._marks, self._resolver, self._access = marks, resolver, access

    def taken_back(self, call: Call) -> Call:
        """A modern client's call with the state and the task id as they were before `given_out`.

        Raises RpcError for another principal's, and another process's.
        """
        params, principal = call.params.copy(), call.principal.key
        for key, unknown, lost in _COMING_BACK if self._marks.current else ():
            text = call.text(key)
            if text is None:
                continue
            if key == TASK_ID and not knows_extension(call.meta.get(CLIENT_CAPABILITIES)):
                raise extension_missing()  # before anything is said of the task
            if key == STATE and text.endswith(NO_STATE):  # any process can go on, if its own has gone
                del params[key]
            elif text.startswith(ANYWHERE):
                own = text[len(ANYWHERE) :]
                params[key] = raw(own if key == STATE else self._read_task(own, principal))
            else:
                try:
                    params[key] = raw(self._marks.own_part(text))
                except ForeignMark:
                    raise (unknown if owner_of(text) is None else lost)() from None
        state = text_of(params[STATE]) if STATE in params else None
        if state is not None and principal:
            try:
                params[STATE] = raw(self._state_seal.open(principal, state))
            except ForeignState:
                raise unknown_state() from None
        return call.with_params(params)

    def given_out(self, call: Call, upstream: Upstream, result: Fields) -> Fields:
        """A result that may have a state or a task id, which a modern client comes back with.

        A legacy client is asked itself by whoever serves it, and gets no state; its session is of this
        process anyway.
        """
        if call.legacy:
            return result
        given, principal, mark = result.copy(), call.principal.key, self._marks.current
        is_anywhere = mark != "" and _is_anywhere(upstream)
        if is_anywhere:
            mark = ANYWHERE
        state = text_of(given[STATE]) if STATE in given else None
        if state is not None:
            given[STATE] = raw(mark + (self._state_seal.seal(principal, state) if principal else state))
        task_id = text_of(given[TASK_ID]) if TASK_ID in given else None
        if task_id is not None:
            given[TASK_ID] = raw(mark + (self._write_task(task_id, principal) if is_anywhere else task_id))
        if mark and not is_anywhere and "inputRequests" in given and STATE not in given:
            given[STATE] = raw(mark + NO_STATE)  # the session with its server is in this process
        return given

    def _write_task(self, exposed: str, principal: str) -> str:
        found = self._resolver.namespace.resolve_task(exposed)
        tool = self._access.tool_of(*found) if found is not None else None
        return self._task_seal.seal(principal, encode((exposed, tool)).decode())

    def _read_task(self, sealed: str, principal: str) -> str:
        """The exposed id of a task, of which this process knows as much as the one that wrote it from now on.

        Raises RpcError.
        """
        try:
            exposed, tool = _decode_task(self._task_seal.open(principal, sealed))
        except ForeignState:
            raise no_task() from None
        found = self._resolver.namespace.resolve_task(exposed)
        if found is not None:
            self._access.tasks.note(*found, principal, tool)
        return exposed


def _is_anywhere(upstream: Upstream) -> bool:
    facts = upstream.facts
    return facts is not None and is_modern(facts.revision) and is_one_for_all(upstream.config)
