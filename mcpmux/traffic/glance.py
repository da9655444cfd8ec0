"""What a message says it is and is about, without the rest of it. Pure.

Promises: the same messages are good and bad as for `decode_message`. Most are read in one go; those that
are not as they should be in some place are read again, member by member.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Id,
    Notification,
    Reply,
    Request,
    decode_message,
)


class Params(msgspec.Struct, gc=False):
    """What a method is about."""

    name: Any = None
    uri: Any = None
    progressToken: Any = None  # noqa: N815 - the field's name
    requestId: Any = None  # noqa: N815 - the field's name
    ref: Any = None

    @property
    def target(self) -> str | None:
        """The name or URI that a message is about."""
        about = self.uri if self.uri is not None else self.name
        if about is None and isinstance(self.ref, dict):
            about = self.ref.get("uri", self.ref.get("name"))
        return about if isinstance(about, str) else None


class Result(msgspec.Struct, gc=False):
    """What is known of a result. `isError`: true for a tool that failed."""

    isError: Any = None  # noqa: N815 - the field's name


class Error(msgspec.Struct, gc=False):
    """What is known of an error."""

    code: int
    message: str = ""


NOTHING = Params()


class Glance(msgspec.Struct, gc=False):
    """A request (`method` and `id`), a notification (`method`), or an answer: an `error` or a `result`."""

    jsonrpc: Literal["2.0"]
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Params | None = None
    result: Result | UnsetType = UNSET
    error: Error | UnsetType = UNSET


_decode = msgspec.json.Decoder(Glance).decode
_params_decoder = msgspec.json.Decoder(Params)
_result_decoder = msgspec.json.Decoder(Result)
_NOT_DECODED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def glance(data: bytes) -> Glance:
    """What a message is. Raises BadMessage."""
    try:
        if not data.isascii():
            data.decode()
        found = _decode(data)
    except _NOT_DECODED:
        return _look_closely(data)
    if found.method is not UNSET:
        if found.id is not None:
            return found
    elif found.error is not UNSET or (
        found.result is not UNSET and found.id is not UNSET and found.id is not None
    ):
        return found
    return _look_closely(data)


def facts_in(message: bytes) -> tuple[str | None, Id | None, str | None]:
    """Method, id and target as a message by itself says them; None for what it does not say."""
    try:
        said = glance(message)
    except BadMessage as bad:
        return None, bad.id, None
    method = None if said.method is UNSET else said.method
    request_id = None if said.id is UNSET else said.id
    return method, request_id, said.params.target if method is not None and said.params is not None else None


def _look_closely(data: bytes) -> Glance:
    said = decode_message(data)
    if isinstance(said, Request):
        return Glance("2.0", said.id, said.method, _params_in(said.params))
    if isinstance(said, Notification):
        return Glance("2.0", UNSET, said.method, _params_in(said.params))
    if isinstance(said, ErrorReply):
        return Glance("2.0", said.id, error=Error(said.code))
    return Glance("2.0", said.id, result=_result_in(said))


def _params_in(params: Raw | None) -> Params:
    if params is None:
        return NOTHING
    try:
        return _params_decoder.decode(params)
    except _NOT_DECODED:
        return NOTHING


def _result_in(reply: Reply) -> Result:
    try:
        return _result_decoder.decode(reply.result)
    except _NOT_DECODED:
        return Result()
