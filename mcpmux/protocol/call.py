"""Calls and events in the core's one form.

A call is a request of 2026-07-28 without its id, an event is a notification.

Ids, progress tokens and headers belong to one leg of the way and are made anew by each edge. The `_meta` of a
call is checked here; `headers` checks its HTTP headers against it.

Source: "_meta" in the Base Protocol overview, `server/utilities/logging`; 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

from msgspec import UNSET

from mcpmux.errors import RpcError
from mcpmux.printable import QUOTED_LENGTH, printable
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_PARAMS, MalformedRequest, unsupported_version
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
"""Members of a request's `_meta` that only 2026-07-28 has; legacy sessions state them once."""

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least to most severe (RFC 5424)."""

# Parameters that are remembered in many places, so their length is limited.
_SHORT: Final = ("name", "taskId")

KEPT: Final = 256  # decoded values of `_meta` that are kept
KEPT_BYTES: Final = 1024  # of a value that is kept; a longer one is decoded anew each time
RECENT: Final = 8  # encoded events; those of one update differ only in how its clients spell the URI


COMPLETE: Final = raw("complete")
_NOT_FRESH: Final = raw(0)
_PRIVATE: Final = raw("private")
_PUBLIC: Final = raw("public")
_NEWEST: Final = raw(NEWEST)


class Meta(dict[str, Raw]):
    """A `_meta` of MODERN_KEYS alone, as a client repeats it in each request. Shared by calls: never changed.

    `encoded`: all of it. `sound`: whether it is known to have what 2026-07-28 requires. `complete`: whether
    it has all that mcpmux sends to a server of the newest revision.
    """

    __slots__ = ("complete", "encoded", "sound", "version")

    def __init__(self, members: Fields) -> None:
        super().__init__(members)
        self.encoded = raw(members)
        self.version = text_of(members.get(VERSION))
        self.sound = False
        self.complete = self.version == NEWEST and CLIENT_INFO in members and CLIENT_CAPABILITIES in members


class Call(Value):
    """One request as the core sees it. `params` has no `_meta`; `meta` has its members.

    `client`: the client, as far as it is known: the same object for every call of one client, never looked
    into. `capabilities`: what that client can be asked, on a leg whose `meta` does not state it. `legacy`:
    whether it speaks a legacy revision: a server of both eras may be addressed in the same era.
    `principal`: its proven identity. `headers`: more HTTP headers for the server.
    """

    __slots__ = ("capabilities", "client", "headers", "legacy", "meta", "method", "params", "principal")

    def __init__(
        self,
        method: str,
        params: Fields,
        meta: Fields,
        client: Hashable | None = None,
        capabilities: Raw | None = None,
        legacy: bool = False,
        principal: Principal = ANYONE,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.method, self.params, self.meta = method, params, meta
        self.client, self.capabilities = client, capabilities
        self.legacy, self.principal, self.headers = legacy, principal, headers

    @staticmethod
    def of(
        method: str,
        params: Raw | Fields | None,
        client: Hashable | None = None,
        *,
        principal: Principal = ANYONE,
    ) -> Call:
        """Return a call with `_meta` split from its parameters, raw or decoded.

        Raises MalformedRequest when they, or their `_meta`, are not an object.
        """
        members: Fields = {}
        try:
            fields = params.copy() if isinstance(params, dict) else decode_fields(params)
            meta = fields.pop(META, None)
            # A client repeats the same `_meta` in each request, so its members are kept.
            if meta is not None:
                data = bytes(meta)
                remembered = _kept.get(data)
                if remembered is not None:
                    members = remembered
                elif first_byte(meta) != b"n":  # null, which some clients send for "none"
                    members = _read_meta(data)
        except ValueError:
            raise MalformedRequest('"_meta" must be an object') from None
        return Call(method, fields, members, client, principal=principal)

    def with_params(self, params: Fields) -> Call:
        """Return the call with other parameters."""
        meta, client, offers, headers = self.meta, self.client, self.capabilities, self.headers
        return Call(self.method, params, meta, client, offers, self.legacy, self.principal, headers)

    def with_meta(self, meta: Fields) -> Call:
        """Return the call with other `_meta`."""
        if meta is self.meta:
            return self
        call = self.with_params(self.params)
        call.meta = meta
        return call

    def with_client(self, client: Hashable | None) -> Call:
        """Return the call with another client."""
        call = self.with_params(self.params)
        call.client = client
        return call

    def with_headers(self, headers: tuple[tuple[str, str], ...]) -> Call:
        """Return the call with other HTTP headers for its server."""
        call = self.with_params(self.params)
        call.headers = headers
        return call

    def on_behalf(self, method: str, params: Fields) -> Call:
        """Return another request for the same client, with the same `_meta` and without headers."""
        return Call(method, params, self.meta, self.client, self.capabilities, self.legacy, self.principal)

    def text(self, key: str) -> str | None:
        """Return the parameter `key` when it is a string, else None.

        Raises MalformedRequest for a name of more than SHORT_CHARS characters.
        """
        value = self.params.get(key)
        try:
            text = None if value is None else text_decoder.decode(value)
        except UNREADABLE:
            return None
        if text is not None and len(text) > SHORT_CHARS and key in _SHORT:
            raise MalformedRequest(f'"{key}" must have at most {SHORT_CHARS} characters')
        return text

    def required(self, key: str) -> str:
        """Return the parameter `key`. Raises RpcError when it is not a string."""
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
"""Sends one request-scoped notification toward the client; waits while that client is slow."""


Hear = Callable[[Notification], None]
"""Takes a notification of the peer that belongs to no exchange. Never waits."""

Exchange = Callable[[Call, Notify], Awaitable[Fields]]
"""The core's one operation: returns the result's members or raises RpcError. Cancelling cancels the work."""


def target_in(params: Fields) -> str | None:
    """Return the URI or name that a request with these parameters is about, or None."""
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
    """Return parameters ready to be encoded, with `_meta` put back unless it is empty."""
    if not meta:
        return params
    return {**params, META: meta.encoded if isinstance(meta, Meta) else meta}


_kept: dict[bytes, Meta] = {}  # the oldest first


def _read_meta(data: bytes) -> Fields:
    """Return the members of a `_meta`, kept if others may repeat it. Raises ValueError for no object."""
    members = decode_fields(data)
    if PROGRESS_TOKEN in members and id_of(members[PROGRESS_TOKEN]) is None:
        del members[PROGRESS_TOKEN]  # null and the like are no tokens
    if len(data) > KEPT_BYTES or not MODERN_KEYS.issuperset(members):  # a token, for example, is for one call
        return members
    if len(_kept) >= KEPT:
        del _kept[next(iter(_kept))]
    _kept[data] = kept = Meta(members)
    return kept


def modern_meta(call: Call, client_info: Raw) -> Fields:
    """Return the `_meta` for a modern server: its own leg's version, and the client's other members.

    `client_info` is used if the client did not identify itself.
    """
    # The version is agreed on each leg.
    meta = {**call.meta, VERSION: _NEWEST}
    meta.setdefault(CLIENT_INFO, client_info)
    meta.setdefault(CLIENT_CAPABILITIES, EMPTY_OBJECT)
    return meta


def upgrade_result(method: str, result: Fields) -> Fields:
    """Add the members that 2026-07-28 requires in a result, in place; older servers do not send them."""
    result.setdefault("resultType", COMPLETE)
    # Interim results "carry no caching hints" (Caching).
    if method in m.CACHEABLE and is_complete(result):
        # Other values than it allows are replaced, too: SDKs may refuse the whole result for them.
        ttl, scope = result.get("ttlMs"), result.get("cacheScope")
        # Two `Raw` are compared without a copy of their text, as `bytes` makes one.
        if ttl is None or not (ttl == _NOT_FRESH or bytes(ttl).isdigit()):
            result["ttlMs"] = _NOT_FRESH
        if scope not in (_PRIVATE, _PUBLIC):
            result["cacheScope"] = _PRIVATE
    return result


def is_complete(result: Fields) -> bool:
    """Return whether a result has the content that its request asked for; without `resultType` it has."""
    kind = result.get("resultType", COMPLETE)
    # Most have the usual spelling, which is compared without decoding it.
    if kind == COMPLETE:
        return True
    return text_of(kind) == "complete" or first_byte(kind) == b"n"  # null, which some servers send for "none"


def check_complete(result: Fields) -> None:
    """Check that a result needs no more input, and is not of a type that mcpmux does not know.

    Raises RpcError.
    """
    # "A resultType of any value unrecognized by the client MUST be considered invalid" (Base Protocol).
    if not is_complete(result):
        kind = printable(text_of(result["resultType"]) or "")[:QUOTED_LENGTH]
        raise RpcError(INTERNAL_ERROR, f"the upstream's result has a resultType that is not known: {kind!r}")


def check_call(call: Call) -> None:
    """Check that the required members of `_meta` are present and valid. Raises RpcError."""
    meta = call.meta
    # Most requests repeat a `_meta` that was checked before.
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
    """Return the version in `_meta`; None when it is not a string."""
    meta = call.meta
    return meta.version if isinstance(meta, Meta) else text_of(meta.get(VERSION))


def severity(level: Any) -> int:
    """Return the rank of a log level, higher is worse."""
    # Unknown ones rank highest, so as not to be lost.
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)


def is_heard(message: Event, level: str | None) -> bool:
    """Return whether a log message is at least as severe as `level`; None: always."""
    return level is None or severity(text_of(message.params.get("level"))) >= severity(level)


# By the identity of the event, which is kept here too, so that its id is not reused.
_recent: dict[int, tuple[Event, bytes]] = {}


def encode_notice(event: Event) -> bytes:
    """Return `event` as a JSON-RPC message in one line, encoded once for all clients."""
    encoded = _recent.get(id(event))
    if encoded is None:
        if len(_recent) >= RECENT:
            _recent.clear()
        line = encode_line(encode_notification(event.method, event.params))
        encoded = _recent[id(event)] = (event, line[:-1])
    return encoded[1]


def encode_call(request_id: int, call: Call, *, asks_progress: bool = False) -> bytes:
    """Return a call encoded for its leg. Its progress token is its id, if it has one.

    `asks_progress`: a tool call gets one in any case.
    """
    meta = call.meta
    value: Fields | Raw = meta
    # Servers report progress only when asked to.
    if PROGRESS_TOKEN in meta or (asks_progress and call.method == m.TOOLS_CALL):
        # No other call on this leg has this id, so that progress finds its call.
        if not meta:
            value = Raw(b'{"progressToken":%d}' % request_id)
        elif isinstance(meta, Meta):
            # It has no token, so one is added to its text, which need not be encoded again.
            value = Raw(b'%b,"progressToken":%d}' % (bytes(meta.encoded)[:-1], request_id))
        else:
            value = {**meta, PROGRESS_TOKEN: raw(request_id)}
    elif meta and isinstance(meta, Meta):
        value = meta.encoded
    params: Mapping[str, Any] = {**call.params, META: value} if value else call.params
    return encode(RequestOut(request_id, call.method, params or UNSET))
