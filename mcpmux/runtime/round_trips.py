"""States and task ids that clients of 2026-07-28 are given, and come back with.

A state is bound to the principal of its client, and both to the process that gave them, if there are several.

Source: `basic/patterns/mrtr`, 2026-07-28.
"""

from __future__ import annotations

from typing import Final

from mcpmux.mux.rewrite import ForeignMark, Marks
from mcpmux.mux.seal import ForeignState, StateSeal
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.runtime.access_control import no_task
from mcpmux.runtime.calls import unknown_state

_COMING_BACK: Final = ((STATE, unknown_state), (TASK_ID, no_task))
"""What clients of 2026-07-28 get and come back with, and what they hear if it is nothing of ours."""

NO_STATE: Final = ".no-state"
"""What is behind the mark of a question for which its server keeps no state."""


class RoundTrips:
    """Marks and seals what goes out, and takes it back."""

    def __init__(self, seal: StateSeal, marks: Marks) -> None:
        self._seal, self._marks = seal, marks

    def taken_back(self, call: Call) -> Call:
        """A modern client's call with the state and the task id as they were before `given_out`.

        Raises RpcError for another principal's, and another process's.
        """
        params, principal = call.params.copy(), call.principal.key
        for key, unknown in _COMING_BACK if self._marks.current else ():
            text = call.text(key)
            if text is not None:
                if key == STATE and text.endswith(NO_STATE):  # any process can go on, if its own has gone
                    del params[key]
                    continue
                try:
                    params[key] = raw(self._marks.own_part(text))
                except ForeignMark:
                    raise unknown() from None
        state = text_of(params[STATE]) if STATE in params else None
        if state is not None and principal:
            try:
                params[STATE] = raw(self._seal.open(principal, state))
            except ForeignState:
                raise unknown_state() from None
        return call.with_params(params)

    def given_out(self, call: Call, result: Fields) -> Fields:
        """A result that may have a state or a task id, which a modern client comes back with.

        The state is bound to its principal, and both to this process. A legacy client is asked itself by
        whoever serves it, and gets no state; its session is of this process anyway.
        """
        if call.legacy:
            return result
        given, principal, mark = result.copy(), call.principal.key, self._marks.current
        for key, _ in _COMING_BACK:
            text = text_of(given[key]) if key in given else None
            if text is not None and key == STATE and principal:
                text = self._seal.seal(principal, text)
            if text is not None:
                given[key] = raw(mark + text)
        if mark and "inputRequests" in given and STATE not in given:
            given[STATE] = raw(mark + NO_STATE)  # the session with its server is in this process
        return given
