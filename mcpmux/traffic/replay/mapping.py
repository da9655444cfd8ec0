"""Map the captured run to this one: values that servers make up, and answers to questions. Pure.

A server makes up values that its client gives back:

| made up | given back |
| --- | --- |
| `nextCursor` of a list | `cursor` of the same list |
| `requestState` | `requestState` |
| names in `inputRequests` | names in `inputResponses` |
| `taskId` of a result, its `task`, its `tasks` | `taskId`, and the related task in `_meta` |

Ids of messages, progress tokens, subscriptions and sessions belong to the connection, which makes its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import ErrorReply, Reply, members_of, raw, text_of, value_of
from mcpmux.protocol.input_requests import RELATED_TASK, RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.traffic.reading.dialogue import Answer, CapturedQuestion, CapturedRequest, Dialogue

CURSOR = "cursor"


class Unmapped(Exception):
    """A request gives back a value that this run did not get."""


class ValueMapping:
    """The values made up in the captured run, and those of this one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str | None] = {}
        self._wishes: dict[str, dict[str, str]] = {}

    def learn(self, request: CapturedRequest, now: Any) -> None:
        """Map the values in a captured result to those of its result now; only objects have any."""
        captured = value_of(request.answer.result) if isinstance(request.answer, Reply) else None
        if not isinstance(captured, dict):
            return
        now = members_of(now)
        self._put(f"{CURSOR} of {request.method}", "nextCursor", captured, now)
        self._put(STATE, STATE, captured, now)
        tasks, others = (
            value if isinstance(value := of.get("tasks"), list) else [] for of in (captured, now)
        )
        pairs = [(captured, now), (captured.get("task"), now.get("task")), *zip(tasks, others, strict=False)]
        for task, other in pairs:
            self._put(TASK_ID, TASK_ID, task, other)
        wishes = captured.get("inputRequests")
        if isinstance(wishes, dict):
            names = dict(zip(wishes, members_of(now.get("inputRequests")), strict=False))
            self._wishes[_round(request, captured.get(STATE))] = names

    def _put(self, kind: str, name: str, captured: Any, now: Any) -> None:
        value = members_of(captured).get(name)
        if isinstance(value, str):
            new = members_of(now).get(name)
            self._known[kind, value] = new if isinstance(new, str) else self._known.get((kind, value))

    def apply(self, request: CapturedRequest) -> tuple[Fields, Fields]:
        """Return a captured request's parameters and `_meta` with the values of this run.

        A value that the captured run did not give stays if the request failed then, too. Raises Unmapped.
        """
        params, meta, succeeded = request.params, request.meta, isinstance(request.answer, Reply)
        changed = dict(params)
        for kind, key in ((f"{CURSOR} of {request.method}", CURSOR), (STATE, STATE), (TASK_ID, TASK_ID)):
            value = text_of(params.get(key))
            if value is not None:
                changed[key] = raw(self._find(kind, value, succeeded))
        if RESPONSES in params:
            names = self._wishes.get(_round(request, text_of(params.get(STATE))), {})
            responses = members_of(params[RESPONSES]).items()
            changed[RESPONSES] = raw({names.get(name, name): value for name, value in responses})
        task = text_of(members_of(meta.get(RELATED_TASK)).get(TASK_ID))
        if task is not None:
            related = {**members_of(meta[RELATED_TASK]), TASK_ID: raw(self._find(TASK_ID, task, succeeded))}
            meta = {**meta, RELATED_TASK: raw(related)}
        return changed, meta

    def _find(self, kind: str, value: str, succeeded: bool) -> str:
        if (kind, value) not in self._known and succeeded:
            raise Unmapped(f"its {kind} is from before the capture")
        now = self._known.get((kind, value), value)
        if now is None:
            raise Unmapped(f"the server gave no {kind} this time")
        return now


def _round(request: CapturedRequest, state: Any) -> str:
    if isinstance(state, str):
        return f"{STATE} {state}"
    return f"{request.method} {value_of(request.params.get('name'))} {value_of(request.params.get('uri'))}"


# Servers may ask at any time, and a modern client gets the question as the answer to its next request. So a
# question gets the first unused captured answer to one of the same method, of the same
# request if there is one; when all are used, the last one again. A question without an answer is refused; in
# the modern era, where a refusal is impossible, it gets an empty answer (`_NOTHING_TO_GIVE`). A deviation
# from the capture is reported by its Kind, and is no difference of results.

INPUT_REQUIRED = "input_required"

Kind = Literal["elsewhere", "again", "new", "missing"]

KINDS: dict[Kind, str] = {
    "elsewhere": "asked at another moment than then",
    "again": "asked more often than then",
    "new": "asked, and not asked then",
    "missing": "not asked this time",
}

_NOTHING_TO_GIVE = {m.ROOTS_LIST: {"roots": []}, m.ELICIT: {"action": "cancel"}}


class Questions:
    """The questions of one dialogue. `deviations`: number of those unlike the capture, by kind and method."""

    def __init__(self, dialogue: Dialogue) -> None:
        self.deviations: Counter[tuple[Kind, str]] = Counter()
        self.rounds: dict[int, int] = {}  # position of a request with answers: that of the request asked
        self._unused = dialogue.questions.copy()
        # Modern questions: the result that asks, and the request with the responses that follows it.
        asking: dict[str, tuple[int, dict[str, str]]] = {}
        for captured in dialogue.requests():
            params = captured.params
            round_ = asking.get(_round(captured, text_of(params.get(STATE))))
            if RESPONSES in params and round_ is not None:
                position, methods = round_
                self.rounds[captured.position] = position
                self._unused += [
                    CapturedQuestion(position, methods[key], position, Reply(0, response))
                    for key, response in members_of(params[RESPONSES]).items()
                    if key in methods and captured.problem is None
                ]
            wishes = asked_in(captured)
            if wishes is not None:
                state = text_of(_result_of(captured).get(STATE))
                asking[_round(captured, state)] = captured.position, wishes
        self._last = {kept.method: kept.answer for kept in self._unused}

    def answer(self, method: str, position: int | None, *, modern: bool = False) -> Answer:
        """Return the answer to a question now, during the request at `position` of the capture."""
        mine = [kept for kept in self._unused if kept.method == method]
        if mine:
            question = next((kept for kept in mine if kept.during == position), None)
            if question is None:
                question = mine[0]
                self.deviations["elsewhere", method] += 1
            self._unused.remove(question)
            answer: Answer | None = question.answer
        else:
            self.deviations["again" if method in self._last else "new", method] += 1
            answer = self._last.get(method)
        if modern and not isinstance(answer, Reply):
            nothing = _NOTHING_TO_GIVE.get(method)
            answer = Reply(0, raw(nothing)) if nothing is not None else None
        return answer or ErrorReply(None, INVALID_REQUEST, f"the capture has no answer to {method}")

    def finish(self) -> None:
        """Count the questions that are left as not asked."""
        self.deviations.update(("missing", kept.method) for kept in self._unused)
        self._unused.clear()


def asked_in(captured: CapturedRequest) -> dict[str, str] | None:
    """Return the methods that a captured modern answer asks for, by key; None if it asks no question."""
    result = _result_of(captured)
    if not captured.modern or text_of(result.get("resultType")) != INPUT_REQUIRED:
        return None
    wishes = members_of(result.get("inputRequests"))
    return {key: text_of(members_of(wish).get("method")) or "" for key, wish in wishes.items()}


def _result_of(captured: CapturedRequest) -> Fields:
    return members_of(captured.answer.result) if isinstance(captured.answer, Reply) else {}
