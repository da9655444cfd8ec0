"""Calls and events in the core's one language, and the calls that wait for an answer.

A call is a request of 2026-07-28 without its id, an event is a notification.

Ids, progress tokens and headers belong to a leg of the way and are made anew by each edge. The `_meta` of a
call is checked here; what HTTP headers say of it is for `headers`.

Source: "_meta" in the Base Protocol overview, `server/utilities/logging`; 2026-07-28.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from msgspec import UNSET

from mcpmux.errors import McpmuxError, Overdue, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS, MalformedRequest, unsupported_version
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    UNREADABLE,
    ErrorReply,
    Reply,
    Request,
    Value,
    decode_fields,
    encode,
    encode_notification,
    first_byte,
    id_of,
    raw,
    text_decoder,
    text_of,
    value_of,
)
from mcpmux.protocol.framing import encode_line
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import SHORT_CHARS, Fields, Id, Raw, RequestOut
from mcpmux.protocol.revisions import NEWEST, is_modern

META: Final = "_meta"
PROGRESS_TOKEN: Final = "progressToken"
VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

MODERN_KEYS: Final = frozenset({VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL})
"""Members of a request's `_meta` that only 2026-07-28 has; legacy sessions say them once."""

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least to most severe (RFC 5424)."""

_SHORT: Final = ("name", "taskId")
"""Parameters that are remembered in many places."""

KEPT: Final = 256  # values of `_meta` that are kept as they were read
KEPT_BYTES: Final = 1024  # of one; a longer one is read anew each time
RECENT: Final = 8  # encoded events; those of one update differ only in how its clients spell the URI


_COMPLETE: Final = raw("complete")
_NOT_FRESH: Final = raw(0)
_PRIVATE: Final = raw("private")
_NEWEST: Final = raw(NEWEST)


class Meta(dict[str, Raw]):
    """A `_meta` of MODERN_KEYS alone: what a client says again and again. Calls share it: nobody changes it.

    `encoded`: all of it. `sound`: whether it was found to say what 2026-07-28 requires. `complete`: whether
    it says all that we say to a server of our newest revision.
    """

    __slots__ = ("complete", "encoded", "sound", "version")

    def __init__(self, members: Fields) -> None:
        super().__init__(members)
        self.encoded = raw(members)
        self.version = text_of(members.get(VERSION))
        self.sound = False
        self.complete = self.version == NEWEST and CLIENT_INFO in members and CLIENT_CAPABILITIES in members


class Call(Value):
    """One request as the core sees it. `params` has no `_meta`; `meta` is what was in it.

    `client`: who asks, as far as that is known: the same object for every call of one client. Never looked
    into. `capabilities`: what that client can be asked, on a leg whose `meta` does not say it. `legacy`:
    whether it speaks a legacy revision: a server of both eras may be spoken to in the same. `principal`: who
    it has been shown to be.
    """

    __slots__ = ("capabilities", "client", "legacy", "meta", "method", "params", "principal")

    def __init__(
        self,
        method: str,
        params: Fields,
        meta: Fields,
        client: Hashable | None = None,
        capabilities: Raw | None = None,
        legacy: bool = False,
        principal: Principal = ANYONE,
    ) -> None:
        self.method, self.params, self.meta = method, params, meta
        self.client, self.capabilities = client, capabilities
        self.legacy, self.principal = legacy, principal

    @staticmethod
    def of(
        method: str,
        params: Raw | Fields | None,
        client: Hashable | None = None,
        *,
        legacy: bool = False,
        principal: Principal = ANYONE,
    ) -> Call:
        """Split params, raw or not.

        Raises MalformedRequest when they, or their `_meta`, are no object, or a name in them is too long.
        """
        members: Fields = {}
        try:
            fields = params.copy() if isinstance(params, dict) else decode_fields(params)
            meta = fields.pop(META, None)
            if meta is not None:
                data = bytes(meta)
                known = _kept.get(data)
                members = known if known is not None else _read_meta(data)
        except ValueError:
            raise MalformedRequest('"_meta" must be an object') from None
        for key in _SHORT:
            value = fields.get(key)
            if value is None or len(memoryview(value)) <= SHORT_CHARS:
                continue
            if len(text_of(value) or "") > SHORT_CHARS:
                raise MalformedRequest(f'"{key}" must have at most {SHORT_CHARS} characters')
        return Call(method, fields, members, client, None, legacy, principal)

    def with_params(self, params: Fields) -> Call:
        return Call(
            self.method, params, self.meta, self.client, self.capabilities, self.legacy, self.principal
        )

    def with_meta(self, meta: Fields) -> Call:
        if meta is self.meta:
            return self
        return Call(
            self.method, self.params, meta, self.client, self.capabilities, self.legacy, self.principal
        )

    def with_client(self, client: Hashable | None) -> Call:
        return Call(
            self.method, self.params, self.meta, client, self.capabilities, self.legacy, self.principal
        )

    def on_behalf(self, method: str, params: Fields) -> Call:
        """Something else asked for the same client, with the same `_meta`."""
        return Call(method, params, self.meta, self.client, self.capabilities, self.legacy, self.principal)

    def text(self, key: str) -> str | None:
        """The parameter `key` when it is a string, else None."""
        value = self.params.get(key)
        try:
            return None if value is None else text_decoder.decode(value)
        except UNREADABLE:
            return None

    def required(self, key: str) -> str:
        """The parameter `key`. Raises RpcError when it is no string."""
        text = self.text(key)
        if text is None:
            raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be a string')
        return text

    @property
    def wants_progress(self) -> bool:
        """Whether the client gave a progress token (0 and "" are tokens)."""
        return PROGRESS_TOKEN in self.meta


class Event(Value):
    """A notification inside the core: request-scoped on its way down, or a change on its way to clients."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: Fields) -> None:
        self.method = method
        self.params = params


Notify = Callable[[Event], Awaitable[None]]
"""Takes one request-scoped notification toward the client; waits while that client is slow."""

Exchange = Callable[[Call, Notify], Awaitable[Fields]]
"""The core's one verb: answers with the result's members or raises RpcError. Cancelling cancels the work."""


def target_in(params: Fields) -> str | None:
    """The URI or name that a request with these parameters is about."""
    target = text_of(params.get("uri"))
    if target is None:
        target = text_of(params.get("name"))
    if target is None and "ref" in params:
        ref = value_of(params["ref"])
        if isinstance(ref, dict):
            member = "name" if ref.get("type") == "ref/prompt" else "uri"  # a prompt may have both
            about = ref.get(member, ref.get("name"))
            target = about if isinstance(about, str) else None
    return target


def with_meta(params: Fields, meta: Fields) -> Mapping[str, Any]:
    """Parameters ready to be encoded: `_meta` put back when there is anything in it."""
    if not meta:
        return params
    return {**params, META: meta.encoded if isinstance(meta, Meta) else meta}


_kept: dict[bytes, Meta] = {}  # the oldest first


def _read_meta(data: bytes) -> Fields:
    """Its members, kept when others may say the same. Raises ValueError when it is no object."""
    members = decode_fields(data)
    if PROGRESS_TOKEN in members and id_of(members[PROGRESS_TOKEN]) is None:
        del members[PROGRESS_TOKEN]  # null and the like are no tokens
    if len(data) > KEPT_BYTES or not MODERN_KEYS.issuperset(members):  # a token, say, is for one call
        return members
    if len(_kept) >= KEPT:
        del _kept[next(iter(_kept))]
    _kept[data] = kept = Meta(members)
    return kept


def modern_meta(call: Call, client_info: Raw) -> Fields:
    """The `_meta` that a modern server gets: its own leg's version, the client's other statements.

    `client_info` stands in where the client did not identify itself.
    """
    meta = {**call.meta, VERSION: _NEWEST}
    meta.setdefault(CLIENT_INFO, client_info)
    meta.setdefault(CLIENT_CAPABILITIES, EMPTY_OBJECT)
    return meta


def upgrade_result(method: str, result: Fields) -> Fields:
    """A result with what 2026-07-28 requires in it (changed in place); a server of today may leave it out."""
    result.setdefault("resultType", _COMPLETE)
    if method in m.CACHEABLE:
        result.setdefault("ttlMs", _NOT_FRESH)
        result.setdefault("cacheScope", _PRIVATE)
    return result


def check_call(call: Call) -> None:
    """The required members of `_meta` are there and make sense. Raises RpcError."""
    meta = call.meta
    if isinstance(meta, Meta) and meta.sound:
        return
    version = stated_version(call)
    if version is None:
        raise MalformedRequest(f'"_meta" must have "{VERSION}", a string')
    if not is_modern(version):
        raise unsupported_version(version)
    if CLIENT_CAPABILITIES not in meta:
        raise MalformedRequest(f'"_meta" must have "{CLIENT_CAPABILITIES}", an object')
    for key in (CLIENT_CAPABILITIES, CLIENT_INFO):
        if key in meta and first_byte(meta[key]) != b"{":
            raise MalformedRequest(f'"{key}" must be an object')
    if LOG_LEVEL in meta and text_of(meta[LOG_LEVEL]) not in LOG_LEVELS:
        raise MalformedRequest(f'"{LOG_LEVEL}" must be one of {", ".join(LOG_LEVELS)}')
    if isinstance(meta, Meta):
        meta.sound = True


def stated_version(call: Call) -> str | None:
    """The version in `_meta`; None when there is no text."""
    meta = call.meta
    return meta.version if isinstance(meta, Meta) else text_of(meta.get(VERSION))


def severity(level: Any) -> int:
    """Rank of a log level, higher is worse; an unknown one ranks highest, so that it is not lost."""
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)


def is_heard(message: Event, level: str | None) -> bool:
    """Whether a log message is severe enough for who wants to hear of `level` and worse; None: of all."""
    return level is None or severity(text_of(message.params.get("level"))) >= severity(level)


_recent: dict[int, tuple[Event, bytes]] = {}
"""By the identity of the event, which is kept with it, so that no other has the same."""


def encode_notice(event: Event) -> bytes:
    """`event` as a JSON-RPC message in one line, encoded once however many clients hear of it."""
    found = _recent.get(id(event))
    if found is None:
        if len(_recent) >= RECENT:
            _recent.clear()
        line = encode_line(encode_notification(event.method, event.params))
        found = _recent[id(event)] = (event, line[:-1])
    return found[1]


# Calls in flight with one peer: who waits for what.
#
#     waiting --reply/error--> answered --close()--> gone
#     waiting --ask()--------> asked         (the server wants to know something first; see runtime/calls)
#     waiting --cut_off()----> overdue       (its time is over, which `wake` tells) --close()--> gone
#     waiting --close()------> gone          (the caller gave up: its late answer is swallowed)
#     waiting --fail_all()---> answered      (the stream ended)
#
# Rules: an id is used once per stream; a reply to an unknown id is nobody's and is dropped; an answer whose
# id cannot be read is for the only call in flight; the progress token of a request is its id, and a peer may
# send either back as text; events wait in a bounded box, where progress keeps the latest and log messages are
# dropped with a count once it is full.

T = TypeVar("T", bound="PendingRequest")

OWN_ID_DIGITS: Final = 18  # of an id that a peer sends back as text; ours never get that far
EVENT_LIMIT: Final = 64  # events that wait for one exchange; a reader that keeps up never sees the bound

_SAY_NOTHING: Final = frozenset({m.LISTEN, m.DISCOVER, m.PING})
"""Requests on whose way a server says nothing of its own."""


class RenewableDeadline(Protocol):
    """A moment in time (`at`), which moves when the peer shows a sign of life."""

    at: float

    def renew(self) -> None: ...


class PendingRequest:
    """One request that waits for its answer. `wake` is called whenever there is something to take.

    `cut_off` is called once `deadline` has passed. `parked_at`: the time since when its client is asked
    something, while it is. `unanswered`: methods of the questions that were open when its time was over.
    """

    def __init__(self, call: Call) -> None:
        self.id = 0  # until it is open
        self.call = call
        self.asked: dict[str, Request] = {}
        self.unanswered: tuple[str, ...] = ()
        self.parked_at: float | None = None
        self.events: list[Event] = []
        self.answer: Reply | ErrorReply | McpmuxError | None = None
        self.dropped = 0
        self.deadline: RenewableDeadline | None = None
        self.overdue = False
        self.wake: Callable[[], None] | None = None

    def push(self, event: Event) -> None:
        """Keep an event for the waiting exchange, within the bound.

        Progress renews the deadline; it goes no further when the client does not want it.
        """
        if event.method == m.PROGRESS:
            if self.deadline is not None:
                self.deadline.renew()
            if not self.call.wants_progress:
                return
        if len(self.events) >= EVENT_LIMIT and not self._make_room(event):
            return
        self.events.append(event)
        self.notify()

    def _make_room(self, event: Event) -> bool:
        """Give up something older for `event`; False when `event` itself is what must go."""
        if event.method == m.PROGRESS:
            for index, waiting in enumerate(self.events):
                if waiting.method == m.PROGRESS:
                    del self.events[index]
                    return True
        self.dropped += 1
        if event.method == m.PROGRESS:
            del self.events[0]
            return True
        return False

    def ask(self, request: Request) -> None:
        """The server asks something before it answers."""
        self.asked[repr(request.id)] = request  # 7 and "7" are different ids
        self.notify()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.answer is not None or self.overdue

    @property
    def until(self) -> float:
        return math.inf if self.deadline is None else self.deadline.at

    def cut_off(self) -> None:
        """Its time is over. An answer that has come all the same still counts."""
        self.overdue = True
        self.notify()

    def result(self) -> Fields:
        """The members of the result, for which nobody waits any more.

        Raises RpcError (it is an error, or makes no sense), what the request was failed with, or Overdue when
        there is none.
        """
        answer = self.answer
        if answer is None:
            raise Overdue("no answer in time", self.unanswered)
        if isinstance(answer, Reply):
            if answer.members is not None:
                return answer.members
            try:
                return decode_fields(answer.result)
            except ValueError:
                raise RpcError(INTERNAL_ERROR, "the upstream's result is not an object") from None
        raise answer.as_error() if isinstance(answer, ErrorReply) else answer

    def settle(self, answer: Reply | ErrorReply | McpmuxError) -> None:
        self.answer = answer
        if self.wake is not None:
            self.wake()

    def notify(self) -> None:
        if self.wake is not None:
            self.wake()


def own_id(token: Id | None) -> int | None:
    """Return the number that our side gave as an id or a progress token; some peers send it back as text."""
    if type(token) is str:
        is_number = len(token) <= OWN_ID_DIGITS and token.isascii() and token.isdecimal()
        return int(token) if is_number and (token[0] != "0" or token == "0") else None
    return token if type(token) is int else None


class PendingRequests:
    """The requests that our side sent on one stream and that are not answered yet."""

    def __init__(self) -> None:
        self._tickets: dict[int, PendingRequest] = {}
        self._next = 0

    def __repr__(self) -> str:
        return f"<PendingRequests {len(self._tickets)} in flight>"

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(list(self._tickets.values()))

    def open(self, pending: T) -> T:
        """Expect the answer to a request, which gets an id that was never used on this stream."""
        pending.id = self._next = self._next + 1
        self._tickets[self._next] = pending
        return pending

    def take_answer(self, answer: Reply | ErrorReply) -> bool:
        """Hand an answer to whoever waits; False when nobody does (cancelled, or never asked)."""
        pending = self._find(answer.id)
        if pending is None:
            return False
        pending.settle(answer)
        return True

    def fail_unread(self, request_id: Id | None, error: McpmuxError) -> bool:
        """Fail the request that was not read, or whose answer was not; without an id the only one in flight.

        False when there is none.
        """
        pending = self._only() if request_id is None else self._find(request_id)
        if pending is None:
            return False
        pending.settle(error)
        return True

    def was_used(self, token: Id | None) -> bool:
        """Return whether a request had that id, so that its answer is late and not a mistake."""
        number = own_id(token)
        return number is not None and 0 < number <= self._next

    def take_event(self, token: Id | None, event: Event) -> bool:
        """Hand a request-scoped notification to the exchange with that progress token."""
        pending = self._find(token)
        if pending is None:
            return False
        pending.push(event)
        return True

    def is_open(self, token: Id | None) -> bool:
        """Whether somebody still waits for the answer with that id."""
        return self._find(token) is not None

    def sole(self, method: str) -> PendingRequest | None:
        """The oldest request in flight, when all are of one client: an unmarked notification is for it.

        `method`: the notification's. A log message is for one that may hear any, if there is such.
        """
        found = [t for t in self._tickets.values() if t.call.method not in _SAY_NOTHING]
        if method == m.LOG_MESSAGE:
            # One that has asked for log messages, or is of an era in which none has to.
            found = [t for t in found if LOG_LEVEL in t.call.meta or VERSION not in t.call.meta] or found
        client = found[0].call.client if found else None
        same = len(found) == 1 or (client is not None and all(t.call.client is client for t in found))
        return found[0] if same else None

    def close(self, pending: PendingRequest) -> bool:
        """Forget a request; True when it was still waiting, so that the peer must be told."""
        return self._tickets.pop(pending.id, None) is not None and pending.answer is None

    def fail_all(self, error: McpmuxError) -> None:
        """The stream is over: each that waits gets an error like `error`."""
        for pending in self:  # those who wait may go on at once, and close theirs
            if pending.answer is None:
                pending.settle(error.anew())

    def _find(self, token: Id | None) -> PendingRequest | None:
        number = token if type(token) is int else own_id(token)
        return None if number is None else self._tickets.get(number)

    def _only(self) -> PendingRequest | None:
        """The only request that waits for its answer; a listen waits for its end, which is rare."""
        found = [t for t in self._tickets.values() if t.answer is None and t.call.method != m.LISTEN]
        return found[0] if len(found) == 1 else None


def encode_call(request_id: int, call: Call, *, asks_progress: bool = False) -> bytes:
    """Encode a call as it is sent. Its progress token is its id, if it has one.

    `asks_progress`: a tool call gets one in any case, as servers report progress only when they are asked.
    """
    params: Mapping[str, Any] = call.params
    meta = call.meta
    if PROGRESS_TOKEN in meta or (asks_progress and call.method == m.TOOLS_CALL):
        meta = {**meta, PROGRESS_TOKEN: raw(request_id)}
    if meta:
        params = {**params, META: meta.encoded if isinstance(meta, Meta) else meta}
    return encode(RequestOut(request_id, call.method, params or UNSET))
