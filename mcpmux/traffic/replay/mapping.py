"""What a run made up for its client to give back, and what stands for it in another run. Pure.

| made up | given back |
| --- | --- |
| `nextCursor` of a list | `cursor` of the same list |
| `requestState` | `requestState` |
| names in `inputRequests` | names in `inputResponses` |
| `taskId` of a result, its `task`, its `tasks` | `taskId`, and the related task in `_meta` |

Ids of messages, progress tokens, subscriptions and sessions belong to the connection, which makes its own.
"""

from __future__ import annotations

from typing import Any

from mcpmux.protocol.envelope import decode_fields, raw, text_of, value_of
from mcpmux.protocol.input_requests import RELATED_TASK, RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK_ID

CURSOR = "cursor"


class Unmapped(Exception):
    """A request gives something back that this run did not get."""


class Mapping:
    """What was made up in the captured run, and in this one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str | None] = {}
        self._wishes: dict[str, dict[str, str]] = {}

    def __repr__(self) -> str:
        return f"<Mapping of {len(self._known)}>"

    def learn(self, method: str, params: Fields, captured: Any, now: Any) -> None:
        """The captured result of a request, and what it is now; anything but an object has nothing in it.

        `params`: of the captured request.
        """
        if not isinstance(captured, dict):
            return
        now = now if isinstance(now, dict) else {}
        self._put(f"{CURSOR} of {method}", captured.get("nextCursor"), now.get("nextCursor"))
        self._put(STATE, captured.get(STATE), now.get(STATE))
        self._put_task(captured, now)
        self._put_task(captured.get("task"), now.get("task"))
        tasks, others = captured.get("tasks"), now.get("tasks")
        if isinstance(tasks, list) and isinstance(others, list):
            for task, other in zip(tasks, others, strict=False):
                self._put_task(task, other)
        wishes, others = captured.get("inputRequests"), now.get("inputRequests")
        if isinstance(wishes, dict):
            names = dict(zip(wishes, others if isinstance(others, dict) else (), strict=False))
            self._wishes[_about(method, params, captured.get(STATE))] = names

    def _put_task(self, captured: Any, now: Any) -> None:
        if isinstance(captured, dict):
            self._put(TASK_ID, captured.get(TASK_ID), now.get(TASK_ID) if isinstance(now, dict) else None)

    def _put(self, kind: str, captured: Any, now: Any) -> None:
        if isinstance(captured, str):
            key = (kind, captured)
            self._known[key] = now if isinstance(now, str) else self._known.get(key)

    def apply(self, method: str, params: Fields, meta: Fields, *, succeeded: bool) -> tuple[Fields, Fields]:
        """A captured request's parameters and `_meta` as this run needs them.

        What the captured run did not give is left as it is if the request failed then, too (`succeeded`).
        Raises Unmapped.
        """
        changed = dict(params)
        for kind, key in ((f"{CURSOR} of {method}", CURSOR), (STATE, STATE), (TASK_ID, TASK_ID)):
            value = text_of(params.get(key))
            if value is not None:
                changed[key] = raw(self._find(kind, value, succeeded))
        if RESPONSES in params:
            names = self._wishes.get(_about(method, params, text_of(params.get(STATE))), {})
            responses = _fields(params[RESPONSES])
            changed[RESPONSES] = raw({names.get(name, name): value for name, value in responses.items()})
        task = text_of(_fields(meta.get(RELATED_TASK)).get(TASK_ID))
        if task is not None:
            related = {**_fields(meta[RELATED_TASK]), TASK_ID: raw(self._find(TASK_ID, task, succeeded))}
            meta = {**meta, RELATED_TASK: raw(related)}
        return changed, meta

    def _find(self, kind: str, value: str, succeeded: bool) -> str:
        if (kind, value) not in self._known:
            if succeeded:
                raise Unmapped(f"its {kind} is from before the capture")
            return value
        now = self._known[kind, value]
        if now is None:
            raise Unmapped(f"the server gave no {kind} this time")
        return now


def _about(method: str, params: Fields, state: Any) -> str:
    """Which round of questions it is."""
    if isinstance(state, str):
        return f"{STATE} {state}"
    return f"{method} {value_of(params.get('name'))} {value_of(params.get('uri'))}"


def _fields(value: Raw | None) -> Fields:
    try:
        return decode_fields(value)
    except ValueError:
        return {}
