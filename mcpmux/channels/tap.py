"""The interface for watching the traffic: every message on both legs, and the outcome of each exchange.

Promises: a tap does not change the messages. `message_passed` never waits; `admit` is awaited before a
client's request is worked on, so that a watcher that must not lose anything can hold it back or refuse it.
Without a tap (None everywhere) there is no work or object for it.

Words: a leg is one conversation, with a client or with an upstream. An exchange is one request of a client
with everything that it causes; it has a number, from 1, that its messages carry on both legs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

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
"""Seen from mcpmux: received messages are "in", sent ones "out"."""

LAST_SECONDS: Final = 5.0  # for keeping the outcome of an exchange that was cut off
NO_HEADERS: Final[Mapping[str, str]] = {}
NAME_CHARS: Final = 256  # of a client's name and of its revision; logs and inspectors show less
# Bytes. Modern clients introduce themselves in every call; a longer introduction is read anew each time.
INTRODUCTION_LENGTH: Final = 1024
_INTRODUCTION: Final = f'"{CLIENT_INFO}"'.encode()

Introduction: TypeAlias = tuple[Raw | None, Raw | None]
"""The members of a modern call that describe its client: `protocolVersion` and `clientInfo`."""

EXCHANGE: Final[ContextVar[int]] = ContextVar("exchange", default=0)
"""The exchange that a task works for, 0 for none. Tasks that it starts inherit it."""


@dataclass(eq=False)
class Leg:
    """One conversation, for the watcher. `revision`, `session` and `name` are set once they are known.

    `peer` identifies it: the key of an upstream session (`docs`, `docs@legacy`, `docs#3`), or `c` and a
    number for a client. `upstream`: the configured name, on an upstream's leg. `session`: an HTTP session id.
    `name`: the client's name for itself. `view`: the client's view (None: it sees everything). `notes`: data
    of the tap about the leg. `introduction`: the source of a modern client's name and revision; `meta`: that
    of its last call, if calls share it.
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
        """Set the revision and name of the client."""
        self.revision, self.name, self.introduction, self.meta = revision, name, None, None


class Said:
    """Facts of a message that was decoded already, so that the tap need not decode it again.

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
    """Return the facts of the answer to a request of `method`; None if they are not known.

    Only a result whose members are decoded already shows that the whole message is valid.
    """
    if not isinstance(answer, Reply) or answer.members is None:
        return None
    return said_in_result(answer.id, answer.members, method)


def said_in_result(request_id: Id, result: Fields, method: str) -> Said:
    """Return the facts of the result of a request of `method`."""
    failed = result.get("isError") if method == m.TOOLS_CALL else None
    is_failed = True if failed is not None and value_of(failed) is True else None
    return Said("result", request_id, failed=is_failed)


class Intercepted(NamedTuple):
    """A verdict of an interceptor. `on`: `request`, `result` or `notification`.

    `began`: trio's time when it was asked for. `seconds`: that it took.

    `digest_before`, `digest_after`: of what it has changed, "" for no change.
    """

    name: str
    on: str
    verdict: str
    began: float
    seconds: float
    digest_before: str
    digest_after: str


class Tap(Protocol):
    """Watches the traffic."""

    keeps: bool
    """Whether `admit` and `ended` have anything to do."""

    @property
    def passes(self) -> bool:
        """Whether an exchange that begins now may go without `admit` and `ended`."""

    def client(self, transport: str) -> Leg:
        """Return a leg for a client that has come."""

    def gone(self, leg: Leg) -> None:
        """Note the end of a leg."""

    def message_passed(
        self,
        leg: Leg,
        direction: Direction,
        message: bytes,
        status: int | None = None,
        said: Said | None = None,
    ) -> None:
        """See a message in its bytes on the wire, with the HTTP status that it came or goes with.

        A message that mcpmux sends belongs to the exchange in `EXCHANGE`, or to that of the request that it
        answers. Must not wait.
        """

    def exchange_of(
        self, leg: Leg, request_id: Id, message: bytes | None = None, said: Said | None = None
    ) -> int:
        """Return the number of the exchange that a client's request has begun, after `message_passed` saw it.

        `message`: the request, if it was all of that message; `said`: its facts.
        """

    def admit(
        self, leg: Leg, exchange: int, call: Call, headers: Mapping[str, str] = NO_HEADERS
    ) -> Awaitable[None]:
        """Wait until the messages of a client's request can be kept, before it is worked on.

        `headers`: of the HTTP request that it came in. The result must be awaited at once, inline, as that of
        `ended`. Raises RpcError when the messages must be kept and cannot.
        """

    def routed(self, exchange: int, upstream: str) -> None:
        """Note that an exchange sends a request to an upstream (its configured name)."""

    def intercepted(self, exchange: int, verdict: Intercepted) -> None:
        """Note what an interceptor has decided about a message of an exchange."""

    def ended(self, exchange: int, outcome: Fields | BaseException) -> Awaitable[None]:
        """Keep the outcome of an admitted exchange: its result, the client's error, or what cut it off.

        The result must be awaited at once. May wait, and may raise RpcError instead of the answer when the
        outcome must be kept and cannot.
        """


class Origin:
    """The leg and HTTP headers with which the exchange of a task has come."""

    __slots__ = ("headers", "leg")

    def __init__(self, leg: Leg, headers: Mapping[str, str]) -> None:
        self.leg, self.headers = leg, headers


ORIGIN: Final[ContextVar[Origin | None]] = ContextVar("origin", default=None)
"""Of the exchange in `EXCHANGE`, or, when there is none, of the one before."""


Trace = Callable[[Leg, Call, Callable[[Call], Awaitable[Fields]]], Awaitable[Fields]]
"""Lets `work` do a call of an upstream, and may change its `_meta`. Returns and raises what `work` does."""

TRACE_HEADERS: Final[ContextVar[tuple[tuple[str, str], ...]]] = ContextVar("trace headers", default=())
"""HTTP headers that a Trace adds to a task's requests to an upstream."""


class Watch:
    """A tap and the leg that it watches. `trace`: of an upstream's leg, if its calls are traced."""

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
        """Let this task work for a client's request, which the tap has seen. See `exchange_of`."""
        EXCHANGE.set(self.tap.exchange_of(self.leg, request_id, message, said))
        ORIGIN.set(Origin(self.leg, headers))

    def routed(self, upstream: str) -> None:
        """Note that this task's exchange sends a request to an upstream (its configured name)."""
        self.tap.routed(EXCHANGE.get(), upstream)

    def sent(self, message: bytes, status: int | None = None) -> None:
        self.tap.message_passed(self.leg, "out", message, status)


def current_leg() -> Leg | None:
    """Return the leg on which this task's exchange has come, None outside of exchanges."""
    origin = ORIGIN.get()
    return origin.leg if origin is not None else None


def identify(call: Call) -> None:
    """Set the client's name and revision on the leg, from a modern call."""
    if (origin := ORIGIN.get()) is not None and origin.leg.meta is not call.meta:
        # Most calls of a client say the same, often in the same object: decode it only if it has changed.
        leg, meta = origin.leg, call.meta
        introduction = meta.get(VERSION), meta.get(CLIENT_INFO)
        if introduction != leg.introduction:
            version, info = introduction
            leg.introduce((text_of(version) or "")[:NAME_CHARS] or None, name_in(info))
            # Copies, without the message around them; a long one must not be kept for each leg.
            if sum(len(bytes(value)) for value in introduction if value is not None) <= INTRODUCTION_LENGTH:
                leg.introduction = (
                    version.copy() if version is not None else None,
                    info.copy() if info is not None else None,
                )
        leg.meta = meta if type(meta) is Meta else None


def introduction_in(body: bytes) -> bytes:
    """Return the beginning of the client's name for itself in a modern request, b"" without one.

    It distinguishes clients that share a connection before their requests are decoded.
    """
    start = body.find(_INTRODUCTION)
    if start < 0:
        return b""
    end = body.find(b"}", start, start + NAME_CHARS)
    return body[start : end if end >= 0 else start + NAME_CHARS]


def name_in(info: Raw | None) -> str | None:
    """Return the name in a client's `clientInfo`, cut to NAME_CHARS; None if there is none."""
    return (text_of(members_of(info).get("name")) or "")[:NAME_CHARS] or None


async def watched(tap: Tap, call: Call, work: Callable[[], Awaitable[Fields]]) -> Fields:
    """Do the work of this task's exchange between `admit` and `ended`. Raises as `work`, and as these two."""
    origin, exchange = ORIGIN.get(), EXCHANGE.get()
    if origin is None or not tap.keeps:
        return await work()
    await tap.admit(origin.leg, exchange, call, origin.headers)
    try:
        result = await work()
    except RpcError as answer:  # an answer too: the client gets it once it is kept
        await tap.ended(exchange, answer)
        raise answer
    except BaseException as end:
        # Most often cancelled: shielded, so that the outcome is kept, and bounded, so that stopping is.
        await in_task()
        with trio.move_on_after(LAST_SECONDS, shield=True):
            await tap.ended(exchange, end)
        raise end
    await tap.ended(exchange, result)
    return result


def tapped(messages: MessageStream, watch: Watch | None) -> MessageStream:
    """Return the message stream, seen by the tap of `watch` if there is one."""
    return messages if watch is None else TappedStream(messages, watch)


class TappedStream:
    """A MessageStream whose messages a tap sees, unchanged."""

    def __init__(self, messages: MessageStream, watch: Watch) -> None:
        self._messages = messages
        self._watch = watch

    def __repr__(self) -> str:
        return f"<TappedStream of {self._messages!r}>"

    async def send(self, message: bytes) -> None:
        # Before it is sent, as the answer may come before `send` returns.
        self._watch.tap.message_passed(self._watch.leg, "out", message)
        await self._messages.send(message)

    def offer(self, message: bytes) -> bool:
        # Only if it was taken: a refused message comes again by `send`.
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
        """Show the tap the excerpt of a message over the limit."""
        if error.excerpt:
            self._watch.tap.message_passed(self._watch.leg, "in", error.excerpt)
        return error

    async def aclose(self) -> None:
        await self._messages.aclose()
