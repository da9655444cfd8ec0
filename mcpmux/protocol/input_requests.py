"""What a server may ask of a client, in both eras: requests of its own, or an InputRequiredResult.

| legacy | modern |
| --- | --- |
| a request of the server (sampling, elicitation, roots) while a call runs | an `input_required` result |
| the client's result | `inputResponses` in the repeated call, with `requestState` |
| the client's error | nothing of that kind; inside mcpmux an object with the member `dev.mcpmux/error` |
| error -32042 with URL elicitations | `input_required` with them, no `requestState`; see runtime/visits |
| `elicitationId` of a URL elicitation | none: left out upward, made up downward |

A client is asked only what it declared: a shared session declares more to its server than each client offers,
so what this client does not is refused for it (sampling with `tools` or `toolChoice` without
`sampling.tools` included: the model's answer would make no sense without them).

Source: `basic/patterns/mrtr`, 2026-07-28; `client/sampling`, `client/elicitation`, `client/roots` of each
revision.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Call
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    Request,
    decode_fields,
    decode_list,
    first_byte,
    raw,
    text_of,
    value_of,
)
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import V_2025_03_26, V_2025_06_18, V_2025_11_25

ASKS: Final = frozenset({m.CREATE_MESSAGE, m.ELICIT, m.ROOTS_LIST})
STATE: Final = "requestState"
RESPONSES: Final = "inputResponses"
ERROR: Final = "dev.mcpmux/error"

WITHDRAWN: Final = "dev.mcpmux/withdrawn"
"""Inside mcpmux: a server takes back what the parked call `params.requestState` waits for."""

SHARED_CAPABILITIES: Final = raw(
    {
        "sampling": {"tools": {}},
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": True},
    }
)
"""What a session that many clients share declares to a legacy server: whatever one of them may offer."""

ELICITATION_ID: Final = "elicitationId"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

_NEED_TOOLS: Final = ("tools", "toolChoice")
"""Only a client with `sampling.tools` may be asked with these."""

_CAPABILITY: Final = {m.CREATE_MESSAGE: "sampling", m.ELICIT: "elicitation", m.ROOTS_LIST: "roots"}


class Wish(NamedTuple):
    """One thing that is asked of the client."""

    method: str
    params: Fields


def offers(capabilities: Raw | None, method: str, params: Fields) -> bool:
    """Whether a client with these capabilities can be asked this."""
    declared = value_of(capabilities)
    offered = declared.get(_CAPABILITY.get(method, "")) if isinstance(declared, dict) else None
    if not isinstance(offered, dict):
        return False
    if method == m.ELICIT:
        mode = text_of(params.get("mode")) or "form"
        return mode in offered or (mode == "form" and not offered)
    if method == m.CREATE_MESSAGE and not params.keys().isdisjoint(_NEED_TOOLS):
        return "tools" in offered
    return True


def input_required(asked: dict[str, Request], state: str, *, legacy: bool) -> Fields:
    """The result that asks a client for what a legacy server has asked.

    A modern client has no use for the id of a URL elicitation, or for the task that a question belongs to.
    """
    wishes = {}
    for key, request in asked.items():
        params = decode_fields(request.params)
        related = _related_alone(params.pop(META, None))
        if not legacy:
            params.pop(ELICITATION_ID, None)
        elif related is not None:
            params[META] = related
        wishes[key] = {"method": request.method, "params": params}
    return {"resultType": raw("input_required"), "inputRequests": raw(wishes), STATE: raw(state)}


def _related_alone(meta: Raw | None) -> Raw | None:
    """Of a question's `_meta` what concerns the client: the rest belongs to the leg."""
    try:
        members = decode_fields(meta)
    except ValueError:
        return None
    return raw({RELATED_TASK: members[RELATED_TASK]}) if RELATED_TASK in members else None


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


def visits_in(error: RpcError) -> dict[str, Fields]:
    """The URL elicitations that error -32042 names, by `elicitationId`; those that make no sense left out."""
    try:
        data = decode_fields(error.data) if isinstance(error.data, Raw) else {}
        visits = decode_list(data.get("elicitations", b"[]"))
    except ValueError:
        return {}
    named = {text_of(visit.get(ELICITATION_ID)): visit for visit in visits if "url" in visit}
    return {key: {**visit, "mode": raw("url")} for key, visit in named.items() if key is not None}


def url_questions(visits: dict[str, Fields]) -> Fields:
    """The result that asks a modern client to have URLs visited."""
    asked = {
        key: {"method": m.ELICIT, "params": {k: v for k, v in visit.items() if k != ELICITATION_ID}}
        for key, visit in visits.items()
    }
    return {"resultType": raw("input_required"), "inputRequests": raw(asked)}


def _visit_answers(call: Call) -> dict[str, str | None]:
    """What was decided about each visit in a call that repeats one answered by `url_questions`."""
    try:
        responses = decode_fields(call.params.get(RESPONSES))
        return {key: text_of(decode_fields(value).get("action")) for key, value in responses.items()}
    except ValueError:
        return {}


def accepted_visits(call: Call) -> frozenset[str]:
    """The ids of the visits that a repeated call says were accepted."""
    if STATE in call.params:
        return frozenset()
    return frozenset(key for key, action in _visit_answers(call).items() if action == "accept")


def after_visits(call: Call) -> Call:
    """A repeated call as a legacy server knows it. Raises RpcError when a visit was refused."""
    if any(action != "accept" for action in _visit_answers(call).values()):
        raise RpcError(INVALID_REQUEST, "the server wants a URL visited first, and that was not accepted")
    return call.with_params({key: value for key, value in call.params.items() if key != RESPONSES})


def elicitation_ids(result: Fields) -> list[str]:
    """The ids of the URL elicitations that an `input_required` result for a legacy client asks for."""
    wishes = wishes_in(result) or {}
    found = [text_of(wish.params.get(ELICITATION_ID)) for wish in wishes.values() if wish.method == m.ELICIT]
    return [elicitation_id for elicitation_id in found if elicitation_id is not None]


def first_error(call: Call) -> RpcError | None:
    """The first error among a call's responses: a modern server cannot be told, so the call ends with it."""
    if RESPONSES not in call.params:
        return None
    try:
        found = [read_response(response) for response in decode_fields(call.params[RESPONSES]).values()]
    except ValueError:
        return None  # malformed, which the server will say better than we can
    return next((error for error in found if isinstance(error, RpcError)), None)


# What servers ask, in the words of an older client; what clients answer, in the words of an older server.
#
# What becomes of what is in the table of `content`. Whether a client offers sampling with tools at all is
# told by its capabilities (see above). Source: `client/elicitation` and `client/sampling` of each
# revision.

_TOOL_BLOCKS: Final = frozenset({"tool_use", "tool_result"})


def downgrade_question(method: str, params: Fields, revision: str, elicitation_id: str) -> Fields:
    """The parameters for a client of `revision`; `elicitation_id` names a URL elicitation that has no name.

    Raises RpcError when that revision cannot be asked this.
    """
    if method == m.ELICIT:
        return _elicitation_for(params, revision, elicitation_id)
    if method == m.CREATE_MESSAGE and revision < V_2025_11_25 and "messages" in params:
        return {**params, "messages": _messages_for(params["messages"], revision)}
    return params


def upgrade_answer(method: str, params: Fields, answer: Fields, revision: str) -> Fields:
    """What a client of `revision` answered to the question that had `params` before `downgrade_question`."""
    if method != m.ELICIT or revision >= V_2025_11_25 or "content" not in answer:
        return answer
    try:
        several = [name for name, schema in _properties(params).items() if _is_array(schema)]
        content = decode_fields(answer["content"])
    except ValueError:
        return answer
    for name in several:
        given = text_of(content.get(name))
        if given is not None:
            content[name] = raw([part.strip() for part in given.split(",") if part.strip()])
    return {**answer, "content": raw(content)} if several else answer


def downgrade_answer(method: str, answer: Fields, revision: str) -> Fields:
    """A client's answer for a server of `revision`."""
    content = answer.get("content")
    if method != m.CREATE_MESSAGE or revision >= V_2025_11_25 or content is None:
        return answer
    try:
        blocks = decode_list(content) if first_byte(content) == b"[" else [decode_fields(content)]
    except ValueError:
        return answer
    shown = [_block_for(block, revision) for block in blocks]
    if len(shown) != 1:
        said = "\n\n".join(text_of(block.get("text")) or bytes(raw(block)).decode() for block in shown)
        shown = [_text(said)]
    return {**answer, "content": raw(shown[0])}


# Elicitation


def _elicitation_for(params: Fields, revision: str, elicitation_id: str) -> Fields:
    by_url = text_of(params.get("mode")) == "url"
    if revision < (V_2025_11_25 if by_url else V_2025_06_18):
        kind = "URL elicitation" if by_url else "elicitation"
        raise RpcError(METHOD_NOT_FOUND, f"the client speaks {revision}, which has no {kind}")
    if by_url:
        return params if "elicitationId" in params else {**params, "elicitationId": raw(elicitation_id)}
    if revision >= V_2025_11_25 or "requestedSchema" not in params:
        return params
    try:
        properties = _properties(params)
        form = decode_fields(params.get("requestedSchema"))
        form["properties"] = raw({name: _field_for(schema) for name, schema in properties.items()})
    except ValueError:
        return params
    return {**params, "requestedSchema": raw(form)}


def _properties(params: Fields) -> dict[str, Fields]:
    """The fields of a form. Raises ValueError when they are none."""
    form = decode_fields(params.get("requestedSchema"))
    return {name: decode_fields(schema) for name, schema in decode_fields(form.get("properties")).items()}


def _is_array(schema: Fields) -> bool:
    return text_of(schema.get("type")) == "array"


def _field_for(schema: Fields) -> Fields:
    """A field of a form as 2025-06-18 knows them."""
    if "oneOf" in schema:
        values, names = _choices(schema["oneOf"])
        kept = {key: value for key, value in schema.items() if key != "oneOf"}
        return {**kept, "enum": raw(values), "enumNames": raw(names)}
    if _is_array(schema):
        return _as_text(schema)
    return schema


def _as_text(schema: Fields) -> Fields:
    """A choice of several, to be written down by the user."""
    items = decode_fields(schema.get("items"))
    values, names = _choices(items.get("anyOf") or items.get("enum") or Raw(b"[]"))
    offered = [
        value if value == name else f"{value} ({name})" for value, name in zip(values, names, strict=True)
    ]
    about = text_of(schema.get("description"))
    hint = f"Any of these, separated by commas: {', '.join(offered)}"
    field = {"type": raw("string"), "description": raw(f"{about} {hint}" if about else hint)}
    return field | {key: schema[key] for key in ("title",) if key in schema}


def _choices(listed: Raw) -> tuple[list[str], list[str]]:
    """(values, names to show) of the choices: strings, or objects with `const` and `title`.

    Raises ValueError when they are none.
    """
    choices = value_of(listed)
    if not isinstance(choices, list):
        raise ValueError("choices are not an array")
    values, names = [], []
    for choice in choices:
        value = choice.get("const") if isinstance(choice, dict) else choice
        title = choice.get("title") if isinstance(choice, dict) else choice
        values.append(str(value))
        names.append(str(title if title is not None else value))
    return values, names


# Sampling


def _messages_for(messages: Raw, revision: str) -> Raw:
    try:
        return raw([single for message in decode_list(messages) for single in _split(message, revision)])
    except ValueError:
        return messages


def _split(message: Fields, revision: str) -> list[Fields]:
    """A message as those that have one block each."""
    content = message.get("content", Raw(b"null"))
    if first_byte(content) not in (b"[", b"{"):
        return [message]
    blocks = decode_list(content) if first_byte(content) == b"[" else [decode_fields(content)]
    return [{**message, "content": raw(_block_for(block, revision))} for block in blocks]


def _block_for(block: Fields, revision: str) -> Fields:
    """A block of a sampling message; before 2025-11-25 these are text, image and (2025-03-26) audio."""
    kind = text_of(block.get("type"))
    if kind in _TOOL_BLOCKS:
        return _text(bytes(raw(block)).decode())
    if kind == "audio" and revision < V_2025_03_26:
        return _text(f"[a sound ({text_of(block.get('mimeType'))}) that revision {revision} cannot carry]")
    return block


def _text(text: str) -> Fields:
    return {"type": raw("text"), "text": raw(text)}
