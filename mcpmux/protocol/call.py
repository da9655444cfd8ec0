"""Calls and events in the core's one language.

A call is a request of 2026-07-28 without its id, an event is a notification.

Ids, progress tokens and headers belong to a leg of the way and are made anew by each edge. The `_meta` of a
call is checked here; what HTTP headers say of it is for `headers`.

Source: "_meta" in the Base Protocol overview, `server/utilities/logging`; 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

from msgspec import UNSET

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_PARAMS, MalformedRequest, unsupported_version
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    UNREADABLE,
    Notification,
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
from mcpmux.protocol.raw_json import SHORT_CHARS, Fields, Raw, RequestOut
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


Hear = Callable[[Notification], None]
"""Takes a notification of the peer that belongs to no exchange. Never waits."""

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
