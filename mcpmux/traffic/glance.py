"""What a message says it is and is about, without the rest of it. Pure.

Promises: the same messages are good and bad as for `decode_message`. Most are read in one go; those that
are not as they should be in some place are read again, member by member.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from mcpmux.protocol.envelope import BadMessage, ErrorReply, Notification, Reply, Request, decode_message
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.shapes import Id
from mcpmux.traffic.record import NOTHING, Error, Glance, Params, Result

_decode: Final = msgspec.json.Decoder(Glance).decode
_params_decoder: Final = msgspec.json.Decoder(Params)
_result_decoder: Final = msgspec.json.Decoder(Result)
_NOT_DECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
