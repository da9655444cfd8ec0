"""One conversation of a capture: requests with all that belongs to them, as values. Pure.

A dialogue is one conversation as the side saw it that asks: a client with mcpmux (leg `client`), or mcpmux
with a server (leg `upstream`). `dialogue` reads them from records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import ErrorReply, Reply
from mcpmux.protocol.meta import VERSION
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.shapes import Id

Answer: TypeAlias = Reply | ErrorReply

REDACTED = "redacted"
TRUNCATED = "truncated"
METADATA = "without its message (level metadata)"
UNREADABLE = "no JSON-RPC message"


class Said(msgspec.Struct, frozen=True, gc=False):
    """What came before the answer, or without being asked for. `after`: seconds since what it belongs to."""

    after: float
    method: str
    params: Fields
    question: bool = False
    """Whether it is a request, which the asking side has answered."""


class Turn(msgspec.Struct):
    """One request and what it led to. `place`: its position in the capture; `moment`: seconds since 1970.

    `problem` says why the request is not known as it was, `answer_problem` the same of its answer. A redacted
    answer is there all the same.
    """

    place: int
    moment: float
    method: str
    target: str | None
    id: Id | None
    params: Fields
    meta: Fields
    exchange: int | None
    revision: str | None
    problem: str | None = None
    answer: Answer | None = None
    answer_problem: str | None = None
    answered_place: int | None = None
    answered_moment: float | None = None
    ms: float | None = None
    cancelled: bool = False
    said: list[Said] = msgspec.field(default_factory=list)
    afterwards: list[Said] = msgspec.field(default_factory=list)

    @property
    def modern(self) -> bool:
        """Whether the request was one of 2026-07-28."""
        return VERSION in self.meta or self.method in (m.DISCOVER, m.LISTEN)


class Note(msgspec.Struct, frozen=True):
    """A notification of the side that asks."""

    place: int
    moment: float
    method: str
    params: Fields


class Question(msgspec.Struct, frozen=True):
    """What the other side asked, and what it was answered. `during`: the place of the request that caused it.

    `place`: its position in the capture; `during` is None when no request is known to have caused it.
    """

    place: int
    method: str
    during: int | None
    answer: Answer


Step: TypeAlias = Turn | Note


class Dialogue:
    """One conversation. `questions`: what the other side asked in requests of its own, in order."""

    def __init__(self, name: str, client: str | None) -> None:
        self.name = name
        self.client = client
        self.transport: str | None = None
        self.steps: list[Step] = []
        self.questions: list[Question] = []

    def __repr__(self) -> str:
        return f"<Dialogue {self.name} {len(self.steps)} steps>"

    def turns(self) -> Iterator[Turn]:
        """Its requests."""
        return (step for step in self.steps if isinstance(step, Turn))

    @property
    def stateless(self) -> bool:
        """Whether nothing ties its requests to their connection."""
        return self.transport == "http" and all(turn.modern for turn in self.turns())

    @property
    def moment(self) -> float:
        """When it began, seconds since 1970."""
        return self.steps[0].moment
