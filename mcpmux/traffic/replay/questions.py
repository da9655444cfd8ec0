"""What servers asked a captured client, and which of its answers fits when a server asks now. Pure.

Servers ask at moments of their own: for roots some time after the start, say. A modern client then hears it
in the answer to whatever it asks just then. So a question gets the captured answer to one of the same method:

| which | told as |
| --- | --- |
| of the same request, or like it of no request, the first that was not used yet | nothing |
| of any other place, the first that was not used yet | `elsewhere` |
| all are used: the last one again | `again` |
| there is none | `new` |

A question that has no answer is refused; in the modern era, where nobody can refuse, it gets one that gives
nothing away (`nothing_to_give`), so that the request comes to its end and the server is not left waiting.
What nobody has asked in the end is told as `missing`. None of this is a difference of results.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import Reply, decode_fields, raw, text_of, value_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.reading.dialogue import Answer, Dialogue, Turn

INPUT_REQUIRED = "input_required"

Kind = Literal["elsewhere", "again", "new", "missing"]

KINDS: dict[Kind, str] = {
    "elsewhere": "asked at another moment than then",
    "again": "asked more often than then",
    "new": "asked, and not asked then",
    "missing": "not asked this time",
}


_NOTHING_TO_GIVE = {m.ROOTS_LIST: {"roots": []}, m.ELICIT: {"action": "cancel"}}


class _Kept(NamedTuple):
    """A captured answer. `place`: of the request that caused the question."""

    method: str
    place: int | None
    answer: Answer


class Questions:
    """The questions of one dialogue. `told` counts what was not as it was then, by kind and method."""

    def __init__(self, dialogue: Dialogue) -> None:
        self.told: Counter[tuple[Kind, str]] = Counter()
        self._open = [_Kept(each.method, each.during, each.answer) for each in dialogue.questions]
        self._rounds: dict[int, int] = {}
        self._take_rounds(dialogue)
        self._last = {kept.method: kept.answer for kept in self._open}

    def __repr__(self) -> str:
        return f"<Questions {len(self._open)} to come, {sum(self.told.values())} otherwise>"

    def _take_rounds(self, dialogue: Dialogue) -> None:
        """Modern questions: the result that asks, and the request with the responses that follows it."""
        asking: dict[str, tuple[int, dict[str, str]]] = {}
        for turn in dialogue.turns():
            if RESPONSES in turn.params and (found := asking.get(_round(turn, turn.params))) is not None:
                place, methods = found
                self._rounds[turn.place] = place
                self._open += [
                    _Kept(methods[key], place, Reply(0, raw(response)))
                    for key, response in _members(turn.params, RESPONSES).items()
                    if key in methods and turn.problem is None
                ]
            if is_asking(turn):
                result = _result_of(turn)
                asking[_round(turn, result)] = (turn.place, _asked_in(result))

    def asked_by(self, turn: Turn) -> int | None:
        """The place of the request whose result asked for what this one brings, None for any other."""
        return self._rounds.get(turn.place)

    def take(self, method: str, place: int | None) -> Answer | None:
        """The answer to a question that comes now, during the request at `place` of the capture."""
        mine = [kept for kept in self._open if kept.method == method]
        found = next((kept for kept in mine if kept.place == place), None)
        if found is None and mine:
            found = mine[0]
            self.told["elsewhere", method] += 1
        if found is not None:
            self._open.remove(found)
            return found.answer
        self.told["again" if method in self._last else "new", method] += 1
        return self._last.get(method)

    def finish(self) -> None:
        """Nothing is asked any more: what is left was not asked."""
        self.told.update(("missing", kept.method) for kept in self._open)
        self._open.clear()


def nothing_to_give(method: str) -> Reply | None:
    """The result of a client without roots and without anybody to fill in forms; None for anything else."""
    result = _NOTHING_TO_GIVE.get(method)
    return None if result is None else Reply(0, raw(result))


def is_asking(turn: Turn) -> bool:
    """Whether the captured answer of a modern request is a question."""
    if not turn.modern or not isinstance(turn.answer, Reply):
        return False
    result = value_of(turn.answer.result)
    return isinstance(result, dict) and result.get("resultType") == INPUT_REQUIRED


def asked_then(turn: Turn) -> frozenset[str]:
    """The methods that the captured answer of a modern request asks for."""
    return frozenset(_asked_in(_result_of(turn)).values()) if is_asking(turn) else frozenset()


def _result_of(turn: Turn) -> Fields:
    assert isinstance(turn.answer, Reply)
    return decode_fields(turn.answer.result)


def _asked_in(result: Fields) -> dict[str, str]:
    """The methods that a result asks for, by key."""
    return {key: _method_of(wish) for key, wish in _members(result, "inputRequests").items()}


def _round(turn: Turn, carrier: Fields) -> str:
    """What a question and the request that answers it have in common. `carrier` has the state, if any."""
    state = text_of(carrier.get(STATE))
    if state is not None:
        return f"{STATE} {state}"
    return f"{turn.method} {value_of(turn.params.get('name'))} {value_of(turn.params.get('uri'))}"


def _members(fields: Fields, key: str) -> dict[str, object]:
    value = value_of(fields.get(key))
    return value if isinstance(value, dict) else {}


def _method_of(wish: object) -> str:
    method = wish.get("method") if isinstance(wish, dict) else None
    return method if isinstance(method, str) else ""
