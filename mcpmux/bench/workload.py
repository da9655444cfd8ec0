"""The load's mix: flows of operations, each with its weight, drawn one after another. Pure.

A flow is a row of steps that one client takes in turn, with a pause for thought between them; most have a
single step. The same seed makes the same row of asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from mcpmux.bench.operation import Ask, Inventory, Make, Operation, bind, parse_operation, parse_weighted
from mcpmux.bench.popularity import Drawing


class Flow(NamedTuple):
    """Operations in turn. `pause`: seconds between one answer and the next step."""

    weight: float
    steps: tuple[Operation, ...]
    pause: float = 0.0

    @property
    def needs_uris(self) -> bool:
        """Whether the server has to be asked for its resources first."""
        return any(step.needs_uris for step in self.steps)


def parse_flow(text: str) -> Flow:
    """A flow of one step: `8 read`. Raises Unfit."""
    weight, rest = parse_weighted(text)
    return Flow(weight, (parse_operation(rest),))


class BoundFlow(NamedTuple):
    """A flow at one server: how each of its asks is made."""

    makers: tuple[Make, ...]
    pause: float


class Turn(NamedTuple):
    """One turn of a client: the asks of a flow."""

    asks: Sequence[Ask]
    pause: float


class Turns(Protocol):
    """What is asked, turn after turn. `single`: every turn is one ask."""

    @property
    def single(self) -> bool: ...

    def next(self) -> Turn:
        """The next turn; there is always one more."""
        ...

    def next_ask(self) -> Ask:
        """What the next turn asks, where every turn is one ask."""
        ...


class Mix:
    """Flows at one server, drawn by weight. `random` belongs to it."""

    def __init__(self, flows: Sequence[BoundFlow], weights: Iterable[float], random: Random) -> None:
        self._drawing = Drawing(flows, weights)
        self._sole = flows[0] if len(flows) == 1 else None
        self.single = all(len(flow.makers) == 1 for flow in flows)
        self._random = random
        self._number = 0

    def __repr__(self) -> str:
        return f"<Mix {self._number} made>"

    def next(self) -> Turn:
        """The next turn."""
        flow = self._next_flow()
        return Turn([make(self._number, self._random) for make in flow.makers], flow.pause)

    def next_ask(self) -> Ask:
        """The first ask of the next turn."""
        return self._next_flow().makers[0](self._number, self._random)

    def _next_flow(self) -> BoundFlow:
        self._number += 1
        return self._sole or self._drawing.one(self._random.random)


def bind_mix(flows: Sequence[Flow], inventory: Inventory, exponent: float, random: Random) -> Mix:
    """The mix at a server that has `inventory`. Raises Unfit when it has not what a flow asks for."""
    bound = [
        BoundFlow(tuple(bind(step, inventory, exponent) for step in flow.steps), flow.pause) for flow in flows
    ]
    return Mix(bound, [flow.weight for flow in flows], random)
