"""What a server may ask of a client, in both eras: requests of its own, or an InputRequiredResult.

| legacy | modern |
| --- | --- |
| a request of the server (sampling, elicitation, roots) while a call runs | an `input_required` result |
| the client's result | `inputResponses` in the repeated call, with `requestState` |
| the client's error | nothing of that kind; inside mcpmux an object with the member `dev.mcpmux/error` |

Source: `basic/patterns/mrtr`, 2026-07-28; `client/sampling`, `client/elicitation`, `client/roots` of each
revision.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Raw

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Call
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import EMPTY_OBJECT, Fields, Request, decode_fields, raw, text_of, value_of

ASKS = frozenset({m.CREATE_MESSAGE, m.ELICIT, m.ROOTS_LIST})
STATE = "requestState"
RESPONSES = "inputResponses"
ERROR = "dev.mcpmux/error"

WITHDRAWN = "dev.mcpmux/withdrawn"
"""Inside mcpmux: a server takes back what the parked call `params.requestState` waits for."""

SHARED_CAPABILITIES = raw(
    {
        "sampling": {"tools": {}},
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": True},
    }
)
"""What a session that many clients share declares to a legacy server: whatever one of them may offer."""

_CAPABILITY = {m.CREATE_MESSAGE: "sampling", m.ELICIT: "elicitation", m.ROOTS_LIST: "roots"}


class Wish(NamedTuple):
    """One thing that is asked of the client."""

    method: str
    params: Fields


def offers(capabilities: Raw | None, request: Request) -> bool:
    """Whether a client with these capabilities can be asked what a legacy server's request asks."""
    declared = value_of(capabilities)
    offered = declared.get(_CAPABILITY[request.method]) if isinstance(declared, dict) else None
    if not isinstance(offered, dict):
        return False
    if request.method == m.ELICIT:
        mode = text_of(decode_fields(request.params).get("mode")) or "form"
        return mode in offered or (mode == "form" and not offered)
    return True


def input_required(asked: dict[str, Request], state: str) -> Fields:
    """The result that asks a modern client for what a legacy server has asked."""
    wishes = {}
    for key, request in asked.items():
        params = decode_fields(request.params)
        params.pop(META, None)
        wishes[key] = {"method": request.method, "params": params}
    return {"resultType": raw("input_required"), "inputRequests": raw(wishes), STATE: raw(state)}


def wishes_in(result: Fields) -> dict[str, Wish] | None:
    """What an `input_required` result asks for, by key; None for any other result.

    Raises RpcError when it is malformed.
    """
    if text_of(result.get("resultType")) != "input_required":
        return None
    try:
        requests = {key: decode_fields(value) for key, value in _object(result, "inputRequests").items()}
        return {
            key: Wish(text_of(request.get("method")) or "", _object(request, "params"))
            for key, request in requests.items()
        }
    except ValueError:
        raise RpcError(INTERNAL_ERROR, "the upstream asked for input in a way that makes no sense") from None


def _object(fields: Fields, key: str) -> Fields:
    return decode_fields(fields.get(key, EMPTY_OBJECT))


def repeated(call: Call, result: Fields, responses: Fields) -> Call:
    """The call again, with the client's responses and the state that the result carried."""
    params = {key: value for key, value in call.params.items() if key not in (STATE, RESPONSES)}
    params[RESPONSES] = raw(responses)
    if STATE in result:
        params[STATE] = result[STATE]
    return call.with_params(params)


def error_response(error: RpcError) -> Raw:
    """A client's error in the place of its response, on its way to a legacy server."""
    body = {"code": error.code, "message": error.message}
    return raw({ERROR: body if error.data is None else {**body, "data": error.data}})


def read_response(response: Raw) -> Fields | RpcError:
    """A client's response, or the error that stands in its place. Raises ValueError when it is neither."""
    fields = decode_fields(response)
    if ERROR not in fields:
        return fields
    error = decode_fields(fields[ERROR])
    code = value_of(error.get("code"))
    message = text_of(error.get("message")) or "the client could not answer"
    return RpcError(code if isinstance(code, int) else INTERNAL_ERROR, message, error.get("data"))


def first_error(call: Call) -> RpcError | None:
    """The first error among a call's responses: a modern server cannot be told, so the call ends with it."""
    if RESPONSES not in call.params:
        return None
    try:
        found = [read_response(response) for response in decode_fields(call.params[RESPONSES]).values()]
    except ValueError:
        return None  # malformed, which the server will say better than we can
    return next((error for error in found if isinstance(error, RpcError)), None)
