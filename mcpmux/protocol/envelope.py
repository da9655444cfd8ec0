"""Decode and encode JSON-RPC 2.0 messages without touching their payload.

Promises: the insides of `params`, `result` and `error.data` are never re-encoded unless a caller asks for
it; key order, number spelling and unknown members survive. Payload objects travel as `Fields`: a dict of the
object's own members, each value still raw JSON. Refuses to know what a method means.

Source: JSON-RPC 2.0; "Messages" in the Base Protocol overview of every MCP revision (ids are strings or
integers and never null, 2024-11-05 onward).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from mcpmux.errors import RpcError
from mcpmux.printable import QUOTED_BYTES
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from mcpmux.protocol.raw_json import (
    BOM,
    SHORT_CHARS,
    Fields,
    Id,
    Raw,
    ReplyOut,
    RequestOut,
    Wire,
    WireError,
    WireLarge,
    WireReply,
    WireRequest,
    repaired,
)

_ATTRIBUTES: Final = (MemberDescriptorType, GetSetDescriptorType)  # the latter when compiled


class Value:
    """Compares, and prints, by its attributes. Immutable unless a subclass allows changes."""

    # A plain class: compiled code reads its attributes directly, and those of a msgspec.Struct by name.
    __slots__ = ()

    def _parts(self) -> dict[str, object]:
        own = vars(type(self)).items()
        return {name: getattr(self, name) for name, kind in own if isinstance(kind, _ATTRIBUTES)}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Value) and self._parts() == other._parts()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._parts()!r})"


T = TypeVar("T")

encode: Final = msgspec.json.Encoder().encode
_fields_decoder: Final = msgspec.json.Decoder(Fields)
list_decoder: Final = msgspec.json.Decoder(list[Fields])
_large_decoder: Final = msgspec.json.Decoder(WireLarge)
_any_decoder: Final = msgspec.json.Decoder()
text_decoder: Final = msgspec.json.Decoder(str)
_items_decoder: Final = msgspec.json.Decoder(list[Raw])

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors from decoding untrusted bytes: malformed, not UTF-8, nested too deep."""

EMPTY_OBJECT: Final = Raw(b"{}")
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_ESCAPED_QUOTE: Final = b'\\"'
_BATCH: Final = re.compile(rb"(?:%b)?\s*\[" % BOM)
MOST_EXACT: Final = 2.0**53  # from here on a floating-point number stands for several integers

NO_BATCH: Final = (
    "Invalid request: batches are part of sessions of revision 2025-03-26 only; send messages one by one"
)


class Request(Value):
    """A call that expects an answer. `params` is a raw JSON object, or None when it was absent.

    `members`: its members, if they were decoded with the message; `params` is empty then.
    """

    __slots__ = ("id", "members", "method", "params")

    def __init__(self, id: Id, method: str, params: Raw | None = None, members: Fields | None = None) -> None:  # noqa: A002 - the field's name
        self.id, self.method = id, method
        self.params, self.members = params, members

    @property
    def payload(self) -> Raw | Fields | None:
        """The parameters, for `decode_fields`."""
        return self.params if self.members is None else self.members


class Notification(Value):
    """A message that expects no answer."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: Raw | None = None) -> None:
        self.method = method
        self.params = params


class Reply(Value):
    """The successful answer to `id`. `result` is raw JSON: an object, if the peer obeys the specification.

    `members`: its members, if they were decoded with the message; `result` may be empty then.
    """

    __slots__ = ("id", "members", "result")

    def __init__(self, id: Id, result: Raw, members: Fields | None = None) -> None:  # noqa: A002
        self.id = id
        self.result = result
        self.members = members


class ErrorReply(Value):
    """The failed answer to `id`; `id` is None when the peer could not read the request."""

    __slots__ = ("code", "data", "id", "message")

    def __init__(self, id: Id | None, code: int, message: str, data: Raw | None = None) -> None:  # noqa: A002
        self.id, self.code = id, code
        self.message, self.data = message, data

    def as_error(self) -> RpcError:
        """Return the error as an exception, to raise where the answer is awaited."""
        return RpcError(self.code, self.message, self.data)


Message = Request | Notification | Reply | ErrorReply


_wire_decoder: Final = msgspec.json.Decoder(Wire)
_wire_request_decoder: Final = msgspec.json.Decoder(WireRequest)
_wire_reply_decoder: Final = msgspec.json.Decoder(WireReply)
_wire_error_decoder: Final = msgspec.json.Decoder(WireError)


class BadMessage(RpcError):
    """A message that cannot be accepted.

    `id`: that of the request, which it is or answers; None when unreadable. `is_answer`:
    whether it answers a request; None when unreadable. `begins`: its first bytes.
    """

    def __init__(self, code: int, message: str, id: Id | None = None, data: Any = None) -> None:  # noqa: A002 - the field's name
        super().__init__(code, message, data)
        self.id = id
        self.is_answer: bool | None = False
        self.begins = b""

    @property
    def may_answer(self) -> bool:
        """Whether to take it for an answer of a peer that mostly sends answers: a server."""
        return self.is_answer or (self.is_answer is None and self.id is not None)

    @property
    def as_answer(self) -> str:
        """The error for the request that it should have answered."""
        reason = self.message.partition(": ")[2]  # without "Invalid request" and the like
        return f"the answer cannot be read: {reason or self.message}"


def decode_message(data: bytes) -> Message:
    """Decode one JSON-RPC message, repairing its text first when it is not valid JSON.

    Raises BadMessage: -32700 when it is no JSON, -32600 when it is JSON but no JSON-RPC message.
    """
    try:
        return _decode_message(data)
    except UNREADABLE as unreadable:
        reason = _parse_error(unreadable)
    # Only now: repair costs more than decoding.
    text = repaired(data)
    if text != data:
        with suppress(*UNREADABLE):
            return _decode_message(text)
    raise bad_message(data, PARSE_ERROR, reason)


def _decode_message(data: bytes) -> Message:
    """Decode a message whose text is valid JSON. Raises BadMessage, UNREADABLE."""
    check_utf8(data)
    try:
        wire = _wire_decoder.decode(data)
    except msgspec.ValidationError as error:
        reason = NO_BATCH if is_batch(data) else f"Invalid request: {_lower_first(str(error))}"
        raise bad_message(data, INVALID_REQUEST, reason) from None
    request_id = None if wire.id is UNSET else wire.id
    if isinstance(request_id, float):
        request_id = _whole(request_id)
        if request_id is None:
            raise bad_message(data, INVALID_REQUEST, 'Invalid request: "id" must be a string or an integer')
    if wire.jsonrpc != "2.0":
        raise bad_message(data, INVALID_REQUEST, 'Invalid request: "jsonrpc" must be "2.0"')
    # Some servers write all members, those without a value as null.
    if wire.method is not UNSET and wire.method is not None:
        params = None if wire.params is UNSET else wire.params
        start = b"n" if params is None else first_byte(params)
        if start == b"n":  # null, which some clients send for "none"
            params = None
        elif start != b"{":
            raise bad_message(data, INVALID_REQUEST, 'Invalid request: "params" must be an object')
        if wire.id is UNSET:
            return Notification(wire.method, params)
        if request_id is None:
            raise bad_message(data, INVALID_REQUEST, 'Invalid request: "id" must not be null')
        return Request(request_id, wire.method, params)
    if wire.error is not UNSET and (wire.result is UNSET or first_byte(wire.error) != b"n"):
        try:
            failure = _decode(_wire_error_decoder, wire.error)
        except ValueError:  # its request must fail all the same
            return ErrorReply(request_id, INTERNAL_ERROR, "The answer is a malformed error", wire.error)
        details = None if failure.data is UNSET else failure.data
        return ErrorReply(request_id, failure.code, failure.message, details)
    if wire.result is not UNSET:
        if request_id is not None:
            return Reply(request_id, wire.result)
        raise bad_message(data, INVALID_REQUEST, 'Invalid request: a "result" without "id"')
    reason = 'Invalid request: neither "method" nor "result" nor "error" in it'
    raise bad_message(data, INVALID_REQUEST, reason)


def decode_request(data: bytes) -> Request | None:
    """Decode a request together with its parameters' members; None for any other message."""
    try:
        if len(data) > CROWD_BYTES or not data.isascii():  # as most are; a call less for those
            _check_at_once(data)
        wire = _wire_request_decoder.decode(data)
    except UNREADABLE:  # or another message
        return None
    if wire.jsonrpc != "2.0":
        return None
    return Request(wire.id, wire.method, EMPTY_OBJECT, wire.params or {})


def decode_reply(data: Body) -> Reply | None:
    """Decode a successful answer together with its result's members; None for any other message."""
    try:
        if len(data) > CROWD_BYTES or not data.isascii():
            _check_at_once(data)
        wire = _wire_reply_decoder.decode(data)
    except UNREADABLE:
        return None
    if wire.jsonrpc != "2.0" or wire.method is not UNSET or wire.error is not UNSET:
        return None
    members = wire.result
    if len(data) > LARGE_BYTES:  # a small value must not keep the whole message in memory
        members = {key: value if is_large(value) else value.copy() for key, value in members.items()}
    return Reply(wire.id, EMPTY_OBJECT, members)


def _check_at_once(data: Body) -> None:
    """Check that a message is UTF-8, and may be decoded with its members. Raises UNREADABLE."""
    check_utf8(data)
    # Decoding a crowded object may block the event loop; `decode_fields` judges it later.
    if len(data) > CROWD_BYTES and is_crowded(data):
        raise msgspec.DecodeError(CROWDED)


def bad_message(data: bytes, code: int, reason: str) -> BadMessage:
    """Return the error for a message that cannot be accepted, with its id as far as it is readable.

    `data` may be only its beginning and its end.
    """
    # Text that is not JSON has no members; to find that out once more takes long, when it is large.
    members = {} if code == PARSE_ERROR else members_of(bytes(data))
    bad = BadMessage(code, reason, id_of(members.get("id")))
    has_method = "method" in members and first_byte(members["method"]) != b"n"
    if "result" in members or "error" in members:
        bad.is_answer = not has_method
    elif "jsonrpc" in members and not has_method:
        bad.is_answer = None
    elif not members and (head := _START.match(data)) is not None:
        # Cut off or not JSON, it may still show its id, which stands near one of its ends.
        tail = _TAIL.search(data[-TAIL_BYTES:])
        shell = b'{%b"":0%b}' % (head[1], b"" if tail is None else tail[1])
        bad.id = id_of(members_of(shell).get("id"))
        if head[2]:
            bad.is_answer = head[2] in _ANSWERING
        elif head[1]:  # cut off within its head; otherwise it is another kind of message
            bad.is_answer = None
    bad.begins = bytes(data[:QUOTED_BYTES])
    return bad


def _parse_error(error: Exception) -> str:
    reason = "the message is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    return f"Parse error: {_lower_first(reason)}"


def _whole(number: float) -> int | None:
    """Return a number without a fraction as an integer; None if it is none, or not exact."""
    # `3.0` is the same number as `3` in JSON.
    return int(number) if number.is_integer() and abs(number) < MOST_EXACT else None


def first_byte(value: Raw) -> bytes:
    """Return the first byte of a raw value, which shows its type."""
    # Without a copy of the value, which may be large.
    return memoryview(value)[:1].tobytes()


def _lower_first(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def is_batch(data: bytes) -> bool:
    """Return whether `data` looks like a JSON-RPC batch (allowed in revision 2025-03-26 only)."""
    return _BATCH.match(data) is not None


def split_batch(data: bytes) -> list[bytes]:
    """Return the members of a JSON-RPC batch, see `is_batch`. Raises BadMessage: malformed or empty."""
    try:
        members = _items_decoder.decode(data)
    except UNREADABLE as unreadable:
        try:
            members = _items_decoder.decode(repaired(data))
        except UNREADABLE:
            raise bad_message(data, PARSE_ERROR, _parse_error(unreadable)) from None
    if not members:
        raise BadMessage(INVALID_REQUEST, "Invalid request: an empty batch")
    return [bytes(member) for member in members]


def decode_fields(raw: Raw | bytes | Fields | None) -> Fields:
    """Return the members of an object, copied if decoded already, {} if absent. Raises ValueError."""
    if raw is None:
        return {}
    if isinstance(raw, dict):
        return raw.copy()
    try:
        if len(raw) > CROWD_BYTES and is_crowded(bytes(raw)):
            # Large members that MCP knows cost little, as they stay raw; only the rest is limited.
            decoded_bytes = sum(map(len, msgspec.structs.astuple(_large_decoder.decode(raw))))
            if len(raw) - decoded_bytes > CROWD_BYTES:
                raise ValueError(CROWDED)
        return _fields_decoder.decode(raw)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None


# An object of a million members, which take 12 MB, blocks the event loop for a second while it is decoded.

CROWD_BYTES: Final = 256 * 1024  # of a value: a smaller one costs little with any contents
CROWD_TEXTS: Final = 50_000  # names and strings in a larger one
_COUNTED_BYTES: Final = 16 * 1024  # at a time
CROWDED: Final = (
    f"an object has more than {CROWD_BYTES >> 10} KiB of members that MCP does not know, and more than "
    f"{CROWD_TEXTS} names and texts"
)


def is_crowded(data: Body) -> bool:
    """Return whether JSON has so many names and strings that its members may take long to decode."""
    # Quotes are counted, but for escaped ones, so a string that ends with a backslash counts half. A search
    # skips a long text faster than a count; where quotes are dense, a count is faster.
    texts = at = 0
    while (at := data.find(_QUOTE, at)) >= 0:
        end = at + _COUNTED_BYTES
        texts += data.count(_QUOTE, at, end)
        if data.find(_BACKSLASH, at - 1 if at else 0, end) >= 0:
            texts -= data.count(_ESCAPED_QUOTE, at - 1 if at else 0, end)
        if texts > 2 * CROWD_TEXTS:
            return True
        at = end
    return False


def members_of(value: Any) -> dict[str, Any]:
    """Return the members of a raw or decoded JSON object; {} for anything else."""
    if isinstance(value, dict):
        return value
    try:
        return decode_fields(value) if isinstance(value, (Raw, bytes)) else {}
    except ValueError:
        return {}


def decode_list(raw: Raw | bytes) -> list[Fields]:
    """Return the members of each object in a raw JSON array of objects. Raises ValueError otherwise."""
    return _decode(list_decoder, raw)


def objects_in(raw: Raw | bytes) -> list[Fields]:
    """Return the members of each object in a raw JSON array, without other items. Raises ValueError."""
    try:
        return decode_list(raw)
    except ValueError:
        return [decode_fields(item) for item in decode_items(raw) if first_byte(item) == b"{"]


def decode_items(raw: Raw | bytes) -> list[Raw]:
    """Return the members of a raw JSON array, of any type. Raises ValueError for other values."""
    return _decode(_items_decoder, raw)


def decode_any(raw: Raw | bytes) -> Any:
    """Return a raw value as Python values. Raises ValueError: malformed, too large a number, or too deep."""
    return _decode(_any_decoder, raw)


def _decode(decoder: msgspec.json.Decoder[T], raw: Raw | bytes) -> T:
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None


def text_of(raw: Raw | None) -> str | None:
    """Return the string that `raw` holds, or None when it is absent or not a string."""
    if raw is None:
        return None
    try:
        return text_decoder.decode(raw)
    except UNREADABLE:
        return None


def value_of(raw: Raw | None) -> Any:
    """Return the value of untrusted raw JSON, or None when it is absent or not representable (1e400)."""
    try:
        return None if raw is None else decode_any(raw)
    except ValueError:
        return None


def value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the member at a path of names in a decoded value; None when it is absent."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def data_of(error: RpcError) -> Any:
    """Return the data of an error as a Python value; None when there is none."""
    return value_of(error.data) if isinstance(error.data, Raw) else error.data


def id_of(raw: Raw | None) -> Id | None:
    """Return the request id or progress token that `raw` holds; None when absent, invalid or too long."""
    value = value_of(raw)
    if isinstance(value, float):
        return _whole(value)
    if isinstance(value, str) and len(value) > SHORT_CHARS:
        return None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def raw(value: Any) -> Raw:
    """Return any value (dicts of raw members included) as raw JSON."""
    return Raw(encode(value))


def encode_request(id: Id, method: str, params: Mapping[str, Any] | None) -> bytes:  # noqa: A002
    """Return one encoded request."""
    return encode(RequestOut(id, method, UNSET if params is None else params))


def encode_notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Return one encoded notification; empty `params` are left out."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return encode(message)


def encode_reply(id: Id, result: Mapping[str, Any]) -> bytes:  # noqa: A002
    """Return one encoded successful answer."""
    return encode(ReplyOut(id, result))


def encode_error(id: Id | None, error: RpcError) -> bytes:  # noqa: A002
    """Return one encoded failed answer; the id is left out when the request's could not be read."""
    named = {} if id is None else {"id": id}
    return encode({"jsonrpc": "2.0", **named, "error": error_body(error)})


def error_body(error: RpcError) -> dict[str, Any]:
    """Return an error as the JSON object for a message."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return body


# Large messages are sent in parts, to avoid a copy of the whole.

LARGE_BYTES: Final = 64 * 1024  # of a value: copying a smaller one costs less than sending it as a part
TAIL_BYTES: Final = 512  # behind the result: an id, and little else
PIECE_BYTES: Final = 64 * 1024  # of text that is scanned at a time
QUOTES_LIMIT: Final = 192  # that are scanned for long strings; with more of them the decoder is faster

Part = bytes | memoryview
Body = bytes | bytearray

_MEMBER: Final = rb'\s*"(?:jsonrpc|id)"\s*:\s*(?:-?[0-9]{1,18}|"[^"\\]{0,200}")\s*'
_START: Final = re.compile(
    rb"(?:%b)?\s*\{((?:%b,){0,2})\s*(?:\"(method|params|result|error)\"|\"?\w*\Z)" % (BOM, _MEMBER)
)
_ANSWERING: Final = (b"result", b"error")
_TAIL: Final = re.compile(rb"((?:," + _MEMBER + rb"){0,2})\}\s*\Z")


def is_large(value: Raw) -> bool:
    """Return whether a copy of a value costs more than a separate part."""
    return len(value) > LARGE_BYTES


def check_utf8(data: Body) -> None:
    """Check that data is UTF-8, piece by piece to save memory. Raises UnicodeDecodeError, a ValueError."""
    # msgspec does not check it in raw members, which would pass on invalid bytes.
    if data.isascii():
        return
    if len(data) <= PIECE_BYTES:
        data.decode()
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    for start in range(0, len(view), PIECE_BYTES):
        decoder.decode(view[start : start + PIECE_BYTES])
    decoder.decode(b"", final=True)


def encode_large_reply(id: Id, result: Mapping[str, Raw]) -> list[Part]:  # noqa: A002 - the field's name
    """Return one successful answer in parts: large values uncopied, and the text between them."""
    parts: list[Part] = []
    small = bytearray(b'{"jsonrpc":"2.0","id":%b,"result":{' % encode(id))
    for number, (key, value) in enumerate(result.items()):
        view = memoryview(value)
        small += b"%b%b:" % (b"," if number else b"", encode(key))
        if len(view) > LARGE_BYTES:
            parts += [bytes(small), view]
            small = bytearray()
        else:
            small += view
    return [*parts, bytes(small + b"}}")]


def read_objects(value: Raw) -> list[Fields]:
    """Return as `decode_list`, of valid JSON, but without scanning long strings twice. Raises ValueError."""
    view = memoryview(value)
    spans = _long_strings(view)
    if not spans:
        return decode_list(value)
    edges = [0, *(edge for span in spans for edge in span), len(view)]
    rest = [bytes(view[start:end]) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    joined, number = b"".join(rest), 0
    # Long strings are replaced by short marks; the number makes marks that the text does not contain.
    while b'"%d.' % number in joined:
        number += 1
    strings = {b'"%d.%d"' % (number, at): view[start:end] for at, (start, end) in enumerate(spans)}
    between = [*strings, b""]
    objects = decode_list(b"".join(text + mark for text, mark in zip(rest, between, strict=True)))
    for item in objects:
        for key, member in item.items():
            if (string := strings.pop(bytes(member), None)) is not None:
                item[key] = Raw(string)
    # A mark that is left was no whole member (but in a nested value, say): decode it all instead.
    return decode_list(value) if strings else objects


def _long_strings(view: memoryview) -> list[tuple[int, int]]:
    """Return where the long strings of valid JSON are, with quotes; [] when it has many other strings."""
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for count, position in enumerate(_quotes_in(view)):
        if count == QUOTES_LIMIT:
            return []
        if start is None:
            start = position
        elif not _is_escaped(view, position):
            if position - start >= LARGE_BYTES:
                spans.append((start, position + 1))
            start = None
    return spans


def _quotes_in(view: memoryview) -> Iterator[int]:
    for start in range(0, len(view), PIECE_BYTES):
        piece = bytes(view[start : start + PIECE_BYTES])
        position = piece.find(b'"')
        while position >= 0:
            yield start + position
            position = piece.find(b'"', position + 1)


def _is_escaped(view: memoryview, position: int) -> bool:
    start = position
    while start and view[start - 1] == _BACKSLASH:
        start -= 1
    return (position - start) % 2 == 1
