"""Requests of the load: flows of operations drawn by weight, or those of a capture. Pure.

A flow is a sequence of steps that one client takes in turn, with a pause between them; most have a single
step. The same seed makes the same sequence of asks.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from random import Random
from typing import Annotated, NamedTuple

from attrs import field, frozen

from mcpmux.bench.operation import (
    LISTS,
    NAMED,
    OF_URIS,
    Ask,
    Make,
    Operation,
    always,
    bind,
    draw_by,
    parse_operation,
)
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import Duration, Real, Text
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.traffic.reading.dialogue import CapturedRequest as Captured
from mcpmux.traffic.reading.dialogue import Dialogue, why_not

_WEIGHT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)[*x]?\s+(.*)", re.DOTALL)


@frozen
class Flow:
    """Operations in turn. `pause`: seconds between one answer and the next step."""

    steps: tuple[Annotated[Operation, Text(make=parse_operation)], ...]
    weight: Annotated[float, Real(1e-9, 1e9)] = 1.0
    pause: Annotated[float, Duration(off=True)] = 0.0

    def __attrs_post_init__(self) -> None:
        if not self.steps:
            raise InvalidValue('`steps` is empty; expected a list such as ["read", "list tools"]')


def parse_flow(text: str) -> Flow:
    """Return a flow of one step: `8 read`; without a number its weight is 1. Raises InvalidValue."""
    match = _WEIGHT.fullmatch(text.strip())
    weight, rest = (float(match[1]), match[2]) if match else (1.0, text)
    if weight <= 0:
        raise InvalidValue("a weight has to be above 0")
    return Flow((parse_operation(rest),), weight)


class BoundFlow(NamedTuple):
    """A flow at one server: how each of its asks is made."""

    makers: tuple[Make, ...]
    pause: float


class Turns:
    """Requests of turn after turn, for ever. `single`: a turn is one ask. `random` belongs to it."""

    def __init__(self, flows: Sequence[BoundFlow], choose: Callable[[], BoundFlow], random: Random) -> None:
        self.single = all(len(flow.makers) == 1 for flow in flows)
        self._choose = choose
        self._random = random
        self._number = 0

    def next(self) -> tuple[list[Ask], float]:
        """Return the asks of the next turn of a client, and the pause between them."""
        self._number += 1
        flow = self._choose()
        return [make(self._number, self._random) for make in flow.makers], flow.pause

    def next_ask(self) -> Ask:
        """Return the first ask of the next turn."""
        self._number += 1
        return self._choose().makers[0](self._number, self._random)


def bind_mix(flows: Sequence[Flow], uris: Sequence[str], random: Random) -> Turns:
    """Return flows drawn by weight, for a server with these resources. Raises InvalidValue for lacks."""
    makers = (tuple(bind(step, uris) for step in flow.steps) for flow in flows)
    bound = [BoundFlow(make, flow.pause) for make, flow in zip(makers, flows, strict=True)]
    draw = draw_by(bound, [flow.weight for flow in flows])
    return Turns(bound, partial(draw, random) if len(bound) > 1 else lambda: bound[0], random)


# The requests of a capture as load: one after another in their captured order, again and again.
#
# References to the time of the capture are mapped or left out. Omissions are counted.
#
# | captured | as load |
# | --- | --- |
# | a list without a cursor | all pages of that list |
# | a list with a cursor | left out: the walk that it was part of asks for it |
# | subscribe | subscribe and unsubscribe; the captured unsubscribe is left out |
# | `requestState`, `inputResponses`, a task | left out: they belong to one conversation of that time |
# | ids, progress tokens, `_meta` | those of the new request |
# | what opens a session, listens, `ping`, levels | left out: the load opens its own sessions |
# | redacted, truncated, taken back, never answered | left out |

MOST_REQUESTS = 1_000_000  # of one capture: four bytes each
MOST_DIFFERENT = 100_000  # of them; each is kept with its parameters

LATER_PAGE = "a later page of a list, which is asked for by walking it"
OF_A_SESSION = "opens or keeps up a session, which the load does itself"
OF_ITS_TIME = "gives back a state or a task of the captured time"
TAKEN_BACK = "unsubscribes, which follows each subscription of the load"
NO_LOAD = "of a method that is no load"
TOO_MANY = "beyond the limit"

_LOADS = {
    **{method: verb for verb, method in (*OF_URIS.items(), *NAMED.items())},
    **{method: f"list {name}" for name, method in LISTS.items()},
    m.COMPLETE: "complete",
}
"""Method of a captured request -> what its operation is called."""

_NEVER_LOAD = dict.fromkeys((m.INITIALIZE, m.DISCOVER, m.PING, m.SET_LEVEL, m.LISTEN), OF_A_SESSION)
_NEVER_LOAD[m.RESOURCES_UNSUBSCRIBE] = TAKEN_BACK
_OF_ITS_TIME = (STATE, RESPONSES, TASK_ID, "task")


@frozen(kw_only=True)
class CapturedLoad:
    """`order`: places in `asks`, which are different; `left_out`: how many are not in it, by the reason."""

    asks: Sequence[Ask]
    order: Sequence[int] = field(repr=False)
    left_out: Counter[str]

    @property
    def names(self) -> list[str]:
        """The names of its operations."""
        return sorted({ask.operation for ask in self.asks})

    def fingerprint(self) -> str:
        """Return a text that is equal for the same requests in the same order."""
        digest = hashlib.blake2b(digest_size=8)
        for ask in self.asks:
            digest.update(repr(_key_of(ask.call.method, ask.call.params)).encode())
        digest.update(array("I", self.order).tobytes())
        return digest.hexdigest()


def in_turn(load: CapturedLoad) -> Turns:
    """Return the requests of a captured load, one after another; after the last one the first."""
    flows = [BoundFlow((always(ask),), 0.0) for ask in load.asks]
    places = chain.from_iterable(repeat(load.order))
    return Turns(flows, map(flows.__getitem__, places).__next__, Random(0))


def load_of(dialogues: Iterable[Dialogue], *, with_tools: bool) -> CapturedLoad:
    """Return the requests of all dialogues in the order of the capture; calls of tools only `with_tools`."""
    turns = sorted(
        (turn for dialogue in dialogues for turn in dialogue.requests()), key=lambda turn: turn.position
    )
    asks: list[Ask] = []
    numbers: dict[object, int] = {}
    order = array("I")
    left_out: Counter[str] = Counter()
    for turn in turns:
        key = _key_of(turn.method, turn.params)
        is_new = key not in numbers
        too_many = len(order) >= MOST_REQUESTS or (is_new and len(numbers) >= MOST_DIFFERENT)
        reason = _why_left_out(turn, with_tools=with_tools) or (TOO_MANY if too_many else None)
        if reason is not None:
            left_out[reason] += 1
            continue
        if is_new:
            operation, subject = _LOADS[turn.method], None
            if turn.method in NAMED.values():
                operation += f" {text_of(turn.params.get('name')) or '?'}"
            if turn.method == m.RESOURCES_READ:
                subject = text_of(turn.params.get("uri"))
            asks.append(Ask(operation, Call(turn.method, turn.params, {}), subject))
        order.append(numbers.setdefault(key, len(numbers)))
    return CapturedLoad(asks=tuple(asks), order=order, left_out=left_out)


def _key_of(method: str, params: Fields) -> object:
    return method, tuple((name, bytes(value)) for name, value in params.items())


def _why_left_out(turn: Captured, *, with_tools: bool) -> str | None:
    reason = _NEVER_LOAD.get(turn.method) or why_not(turn, with_tools=with_tools)
    if reason is not None:
        return reason
    if turn.method in m.LISTS:
        return LATER_PAGE if "cursor" in turn.params else None
    if any(name in turn.params for name in _OF_ITS_TIME):
        return OF_ITS_TIME
    return None if turn.method in _LOADS else NO_LOAD
