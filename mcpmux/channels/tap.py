"""What whoever watches the traffic is told: every message on both legs, and how each exchange went.

Promises: a tap changes nothing of what passes. `message_passed` never waits; `admit` is awaited before a
client's request is worked on, so that a watcher that must not lose anything can hold it back or refuse it.
Without a tap (None everywhere) nothing is done or made for it.

Words: a leg is one conversation, with a client or with an upstream. An exchange is one request of a client
with everything that it causes; it has a number, from 1, that its messages carry on both legs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import trio

from mcpmux.errors import MessageTooLarge, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_INFO, VERSION, Call, Meta
from mcpmux.protocol.envelope import ErrorReply, Reply, members_of, text_of, value_of
from mcpmux.protocol.raw_json import Fields, Id, Raw
from mcpmux.transports.inline import in_task
from mcpmux.transports.message_stream import MessageStream

Side = Literal["client", "upstream"]
Direction = Literal["in", "out"]
"""Seen from mcpmux: what it receives, what it sends."""

LAST_SECONDS: Final = 5.0  # for keeping how an exchange went that was cut off
NO_HEADERS: Final[Mapping[str, str]] = {}
# Bytes; modern clients say it with every call, and longer is read anew.
NAME_CHARS: Final = 256  # of a client's own name and revision; logs and inspectors show less
INTRODUCTION_LENGTH: Final = 1024

Introduction: TypeAlias = tuple[Raw | None, Raw | None]
"""What a modern call says about its client: revision, and who it is."""

EXCHANGE: Final[ContextVar[int]] = ContextVar("exchange", default=0)
"""The exchange that a task works for, 0 for none. Tasks that it starts inherit it."""


@dataclass(eq=False)
class Leg:
    """One conversation as the watcher knows it. `revision`, `session` and `name` are set once they are known.

    `peer` tells it apart: the key of an upstream session (`docs`, `docs@legacy`, `docs#3`), or `c` and a
    number for a client. `upstream` is the configured name on an upstream's leg. `session` is an HTTP session
    id, `name` what a client calls itself, `view` what it looks through (None: it sees everything). `notes`:
    what the tap keeps about it. `introduction`: what the name and revision of a modern client were read from,
    and `meta` that of its last call if calls share it.
    """

    side: Side
    peer: str
    transport: str
    upstream: str | None = None
    revision: str | None = None
    session: str | None = None
    name: str | None = None
    view: str | None = None
    introduction: Introduction | None = field(default=None, repr=False)
    meta: Meta | None = field(default=None, repr=False)
    notes: Any = field(default=None, repr=False)

    def introduce(self, revision: str | None, name: str | None) -> None:
        """The client has said who it is."""
        self.revision, self.name, self.introduction, self.meta = revision, name, None, None


class Said:
    """What a message says, as whoever has read it already tells the tap: it is not read once more then.

    `kind`: "request", "result" or "error". `method` and `target`: of a request. `code`: of an error.
    `failed`: true for the result of a tool that failed, None for any other.
    """

    __slots__ = ("code", "failed", "id", "kind", "method", "target")

    def __init__(
        self,
        kind: str,
        id: Id | None,  # noqa: A002 - the field's name
        method: str = "",
        target: str | None = None,
        code: int | None = None,
        failed: bool | None = None,
    ) -> None:
        self.kind, self.id, self.method, self.target = kind, id, method, target
        self.code, self.failed = code, failed


def said_in_answer(answer: Reply | ErrorReply | None, method: str) -> Said | None:
    """What the answer to a request of that method says; None when that is not known.

    Only members that were decoded at once show that the message is valid as it came.
    """
    if not isinstance(answer, Reply) or answer.members is None:
        return None
    return said_in_result(answer.id, answer.members, method)


def said_in_result(request_id: Id, result: Fields, method: str) -> Said:
    """The same of a result."""
    failed = result.get("isError") if method == m.TOOLS_CALL else None
    is_failed = True if failed is not None and value_of(failed) is True else None
    return Said("result", request_id, failed=is_failed)


class Tap(Protocol):
    """Watches the traffic."""

    keeps: bool
    """Whether `admit` and `ended` have anything to do."""

    @property
    def passes(self) -> bool:
        """Whether an exchange that begins now may go without `admit` and `ended`."""

    def client(self, transport: str) -> Leg:
        """A leg for a client that has come."""

    def gone(self, leg: Leg) -> None:
        """A leg is over."""

    def message_passed(
        self,
        leg: Leg,
        direction: Direction,
        message: bytes,
        status: int | None = None,
        said: Said | None = None,
    ) -> None:
        """A message as it is on the wire, with the HTTP status that it came or goes with.

        What mcpmux sends belongs to the exchange in `EXCHANGE`, or to that of the request it answers.
        """

    def exchange_of(
        self, leg: Leg, request_id: Id, message: bytes | None = None, said: Said | None = None
    ) -> int:
        """The number of the exchange that a client's request has begun, which `message_passed` was told of.

        `message`: the request, when `message_passed` was told of nothing else, and what it says.
        """

    def admit(
        self, leg: Leg, exchange: int, call: Call, headers: Mapping[str, str] = NO_HEADERS
    ) -> Awaitable[None]:
        """A client's request is about to be worked on; `headers`: of the HTTP request that it came in.

        To be awaited at once, inline, as `ended` is. Waits until what will pass can be kept. Raises RpcError
        when it must be kept and cannot.
        """

    def routed(self, exchange: int, upstream: str) -> None:
        """An exchange asks an upstream (its configured name) something."""

    def ended(self, exchange: int, outcome: Fields | BaseException) -> Awaitable[None]:
        """How an admitted exchange went: its result, the error that the client gets, or what cut it off.

        To be awaited at once. May wait, and may raise RpcError in place of the answer when what must be kept
        cannot be kept.
        """


class Origin:
    """Where the exchange that a task works for has come from."""

    __slots__ = ("headers", "leg")

    def __init__(self, leg: Leg, headers: Mapping[str, str]) -> None:
        self.leg, self.headers = leg, headers


ORIGIN: Final[ContextVar[Origin | None]] = ContextVar("origin", default=None)
"""Of the exchange in `EXCHANGE`, or, when there is none, of the one before."""


Trace = Callable[[Leg, Call, Callable[[Call], Awaitable[Fields]]], Awaitable[Fields]]
"""Has `work` do a call of an upstream, and may change its `_meta`. Returns and raises what `work` does."""

TRACE_HEADERS: Final[ContextVar[tuple[tuple[str, str], ...]]] = ContextVar("trace headers", default=())
"""HTTP headers for what a task asks of an upstream, as a Trace says."""


class Watch:
    """A tap and the leg that it watches. `trace`: of an upstream's leg, when its calls are traced."""

    __slots__ = ("leg", "tap", "trace")

    def __init__(self, tap: Tap, leg: Leg, trace: Trace | None = None) -> None:
        self.tap, self.leg, self.trace = tap, leg, trace

    def begin(
        self,
        request_id: Id,
        headers: Mapping[str, str] = NO_HEADERS,
        message: bytes | None = None,
        said: Said | None = None,
    ) -> None:
        """From now on this task works for a client's request, which the tap has seen. See `exchange_of`."""
        EXCHANGE.set(self.tap.exchange_of(self.leg, request_id, message, said))
        ORIGIN.set(Origin(self.leg, headers))

    def routed(self, upstream: str) -> None:
        """What this task works for asks an upstream (its configured name) something."""
        self.tap.routed(EXCHANGE.get(), upstream)

    def sent(self, message: bytes, status: int | None = None) -> None:
        self.tap.message_passed(self.leg, "out", message, status)


def current_leg() -> Leg | None:
    """Return the leg on which the exchange that this task works for has come."""
    origin = ORIGIN.get()
    return origin.leg if origin is not None else None


def identify(call: Call) -> None:
    """What a modern call says about its client, for whoever watches the leg."""
    if (origin := ORIGIN.get()) is not None and origin.leg.meta is not call.meta:
        leg, meta = origin.leg, call.meta
        said = meta.get(VERSION), meta.get(CLIENT_INFO)
        if said != leg.introduction:
            leg.introduce((text_of(said[0]) or "")[:NAME_CHARS] or None, name_in(said[1]))
            leg.introduction = _kept(said)
        leg.meta = meta if type(meta) is Meta else None


def _kept(said: Introduction) -> Introduction | None:
    """The same without the message around it; None when it is too long to be kept."""
    version, info = (value.copy() if value is not None else None for value in said)
    length = sum(len(bytes(value)) for value in (version, info) if value is not None)
    return (version, info) if length <= INTRODUCTION_LENGTH else None


def name_in(info: Raw | None) -> str | None:
    """Return what a client calls itself, cut where a name is too long to be remembered."""
    return (text_of(members_of(info).get("name")) or "")[:NAME_CHARS] or None


async def watched(tap: Tap, call: Call, work: Callable[[], Awaitable[Fields]]) -> Fields:
    """Do the work of the exchange that this works for, and tell how it went. Raises like `work`."""
    origin, exchange = ORIGIN.get(), EXCHANGE.get()
    if origin is None or not tap.keeps:
        return await work()
    await tap.admit(origin.leg, exchange, call, origin.headers)
    try:
        result = await work()
    except RpcError as answer:  # it waits until it is kept, as a result does
        await tap.ended(exchange, answer)
        raise answer
    except BaseException as end:
        await in_task()
        with trio.move_on_after(LAST_SECONDS, shield=True):
            await tap.ended(exchange, end)
        raise end
    await tap.ended(exchange, result)
    return result


def tapped(messages: MessageStream, watch: Watch | None) -> MessageStream:
    """The message stream, seen by whoever watches."""
    return messages if watch is None else TappedStream(messages, watch)


class TappedStream:
    """A MessageStream whose messages a tap sees, as they are."""

    def __init__(self, messages: MessageStream, watch: Watch) -> None:
        self._messages = messages
        self._watch = watch

    def __repr__(self) -> str:
        return f"<TappedStream of {self._messages!r}>"

    async def send(self, message: bytes) -> None:
        self._watch.tap.message_passed(self._watch.leg, "out", message)
        await self._messages.send(message)

    def offer(self, message: bytes) -> bool:
        if taken := self._messages.offer(message):
            self._watch.tap.message_passed(self._watch.leg, "out", message)
        return taken

    def receive_nowait(self) -> bytes | None:
        try:
            message = self._messages.receive_nowait()
        except MessageTooLarge as error:
            raise self._seen(error) from None
        if message is not None:
            self._watch.tap.message_passed(self._watch.leg, "in", message)
        return message

    async def receive(self) -> bytes:
        try:
            message = await self._messages.receive()
        except MessageTooLarge as error:
            raise self._seen(error) from None
        self._watch.tap.message_passed(self._watch.leg, "in", message)
        return message

    def _seen(self, error: MessageTooLarge) -> MessageTooLarge:
        """Show the tap what is left of a message past the limit."""
        if error.excerpt:
            self._watch.tap.message_passed(self._watch.leg, "in", error.excerpt)
        return error

    async def aclose(self) -> None:
        await self._messages.aclose()
