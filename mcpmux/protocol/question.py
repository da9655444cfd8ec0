"""What servers ask, in the words of an older client; what clients answer, in the words of an older server.

What becomes of what is in the table of `content`. Whether a client offers sampling with tools at all is told
by its capabilities (see `asking`). Source: `client/elicitation` and `client/sampling` of each revision.
"""

from __future__ import annotations

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import decode_fields, decode_list, first_byte, raw, text_of, value_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import V_2025_03_26, V_2025_06_18, V_2025_11_25

_TOOL_BLOCKS = frozenset({"tool_use", "tool_result"})


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
