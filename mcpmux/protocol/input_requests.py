"""Questions of a server to a client, in both eras: requests to the client, or an InputRequiredResult.

| legacy | modern |
| --- | --- |
| a request of the server (sampling, elicitation, roots) while a call runs | an `input_required` result |
| the client's result | `inputResponses` in the repeated call, with `requestState` |
| the client's error | none; inside mcpmux an object with the member `dev.mcpmux/error` |
| error -32042 with URL elicitations | `input_required` with them, no `requestState`; see runtime/router |
| `elicitationId` of a URL elicitation | none: left out upward, made up downward |

A client is asked only what it declared.

Source: `basic/patterns/mrtr`, 2026-07-28; `client/sampling`, `client/elicitation`, `client/roots` of each
revision.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Call
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_REQUEST
from mcpmux.protocol.envelope import (
    Request,
    decode_fields,
    decode_list,
    error_body,
    members_of,
    raw,
    text_of,
    value_at,
    value_of,
)
from mcpmux.protocol.raw_json import Fields, Raw

ASKS: Final = frozenset({m.CREATE_MESSAGE, m.ELICIT, m.ROOTS_LIST})
STATE: Final = "requestState"
RESPONSES: Final = "inputResponses"
ERROR: Final = "dev.mcpmux/error"

WITHDRAWN: Final = "dev.mcpmux/withdrawn"
"""Inside mcpmux: the parked call `params.requestState` no longer waits for its client.

With `ERROR` among the params it has ended with that error, and cannot go on.
"""

SHARED_CAPABILITIES: Final = raw(
    {
        "sampling": {"tools": {}},
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": True},
        # Some servers have tools with apps (the extension MCP Apps) only for clients that show them. For
        # other clients, such a tool is an ordinary one.
        "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
    }
)
"""The capabilities that a session shared by many clients declares to a legacy server: those of all."""

ELICITATION_ID: Final = "elicitationId"
TASK: Final = "task"  # in a question: the wish for a task, which mcpmux never promises a server
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

_NEED_TOOLS: Final = ("tools", "toolChoice")
"""Parameters for clients with `sampling.tools` only."""

_CAPABILITY: Final = {m.CREATE_MESSAGE: "sampling", m.ELICIT: "elicitation", m.ROOTS_LIST: "roots"}


class Wish(NamedTuple):
    """One question to the client."""

    method: str
    params: Fields


def offers(capabilities: Raw | None, method: str, params: Fields) -> bool:
    """Return whether a client with these capabilities can be asked this."""
    # A shared session declares more to its server than each client offers, so this is no mistake of a server.
    offered = value_at(value_of(capabilities), (_CAPABILITY.get(method, ""),))
    if not isinstance(offered, dict):
        return False
    if method == m.ELICIT:
        mode = text_of(params.get("mode")) or "form"
        # An empty object means forms only: before 2025-11-25 there were no modes.
        return mode in offered or (mode == "form" and not offered)
    if method == m.CREATE_MESSAGE and not params.keys().isdisjoint(_NEED_TOOLS):
        return "tools" in offered  # the model's answer would be useless without them
    return True


def input_required(asked: dict[str, Request], state: str, *, legacy: bool) -> Fields:
    """Return the result that asks a client what a legacy server has asked."""
    wishes = {}
    for key, request in asked.items():
        params = decode_fields(request.params)
        params.pop(TASK, None)
        meta = params.pop(META, None)
        # A modern client has no use for the id of a URL elicitation, or for the task of a question.
        if not legacy:
            params.pop(ELICITATION_ID, None)
        elif (related := members_of(meta).get(RELATED_TASK)) is not None:
            params[META] = raw({RELATED_TASK: related})  # other members belong to the leg
        wishes[key] = {"method": request.method, "params": params}
    return {"resultType": raw("input_required"), "inputRequests": raw(wishes), STATE: raw(state)}


def wishes_in(result: Fields) -> dict[str, Wish] | None:
    """Return the questions in an `input_required` result by key; None for others. Raises RpcError."""
    if text_of(result.get("resultType")) != "input_required":
        return None
    wishes = {}
    try:
        for key, value in decode_fields(result.get("inputRequests")).items():
            request = decode_fields(value)
            wishes[key] = Wish(text_of(request.get("method")) or "", decode_fields(request.get("params")))
        if not wishes and STATE not in result:
            raise ValueError("there must be one of both")
    except ValueError:
        raise RpcError(INTERNAL_ERROR, "the upstream asked for input in a way that makes no sense") from None
    return wishes


def repeated(call: Call, result: Fields, responses: Fields) -> Call:
    """Return the call again, with the client's responses and the state in the result."""
    params = {key: value for key, value in call.params.items() if key not in (STATE, RESPONSES)}
    params[RESPONSES] = raw(responses)
    if STATE in result:
        params[STATE] = result[STATE]
    return call.with_params(params)


def error_response(error: RpcError) -> Raw:
    """Return a client's error as its response, on its way to a legacy server."""
    return raw({ERROR: error_body(error)})


def read_response(response: Raw) -> Fields | RpcError:
    """Return a client's response, or the error in its place. Raises ValueError when it is neither."""
    fields = decode_fields(response)
    if ERROR not in fields:
        return fields
    error = decode_fields(fields[ERROR])
    code = value_of(error.get("code"))
    message = text_of(error.get("message")) or "the client could not answer"
    return RpcError(code if isinstance(code, int) else INTERNAL_ERROR, message, error.get("data"))


def visits_in(error: RpcError) -> dict[str, Fields]:
    """Return the URL elicitations of error -32042, by `elicitationId`, without malformed ones."""
    try:
        visits = decode_list(members_of(error.data).get("elicitations", b"[]"))
    except ValueError:
        return {}
    named = {text_of(visit.get(ELICITATION_ID)): visit for visit in visits if "url" in visit}
    return {key: {**visit, "mode": raw("url")} for key, visit in named.items() if key is not None}


def url_questions(visits: dict[str, Fields]) -> Fields:
    """Return the result that asks a modern client to have URLs visited."""
    questions = {
        key: {"method": m.ELICIT, "params": {k: v for k, v in visit.items() if k != ELICITATION_ID}}
        for key, visit in visits.items()
    }
    return {"resultType": raw("input_required"), "inputRequests": raw(questions)}


def _visit_answers(call: Call) -> dict[str, str | None]:
    """Return the decision about each visit, in a call repeated after `url_questions`."""
    try:
        responses = decode_fields(call.params.get(RESPONSES))
        return {key: text_of(decode_fields(value).get("action")) for key, value in responses.items()}
    except ValueError:
        return {}


def accepted_visits(call: Call) -> frozenset[str]:
    """Return the ids of the visits that a repeated call reports as accepted."""
    # A call with a state answers other questions: `url_questions` gives none.
    if STATE in call.params:
        return frozenset()
    return frozenset(key for key, action in _visit_answers(call).items() if action == "accept")


def after_visits(call: Call) -> Call:
    """Return a repeated call for a legacy server. Raises RpcError when a visit was refused."""
    if any(action != "accept" for action in _visit_answers(call).values()):
        raise RpcError(INVALID_REQUEST, "the server wants a URL visited first, and that was not accepted")
    return call.with_params({key: value for key, value in call.params.items() if key != RESPONSES})


def elicitation_ids(result: Fields) -> list[str]:
    """Return the ids of the URL elicitations in an `input_required` result for a legacy client."""
    wishes = wishes_in(result) or {}
    ids = [text_of(wish.params.get(ELICITATION_ID)) for wish in wishes.values() if wish.method == m.ELICIT]
    return [elicitation_id for elicitation_id in ids if elicitation_id is not None]


def first_error(call: Call) -> RpcError | None:
    """Return the first error in a call's responses, with which it ends."""
    # No modern server takes an error as a response.
    try:
        responses = [read_response(value) for value in decode_fields(call.params.get(RESPONSES)).values()]
    except ValueError:
        return None  # malformed: the server's own error is better
    return next((error for error in responses if isinstance(error, RpcError)), None)
