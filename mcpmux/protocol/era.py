"""Translate between the eras and revisions: legacy messages to the form of 2026-07-28 and back.

Each edge uses one half. Upward (from a legacy peer): `upgrade_*`. Downward (to a legacy peer):
`downgrade_*`. Members that neither side defines pass untouched.

| legacy | modern |
| --- | --- |
| facts of the session (version, client, capabilities, log level) | `_meta` of every request |
| an output schema, always of an object | of any value: left out downward, if of no object |
| a property of a schema, always an object | also `true` and `false`: `{}` and `{"not": {}}` downward |
| a result | `resultType` "complete"; cacheable ones `ttlMs` 0 and `cacheScope` "private" |
| -32002 resource not found | -32602 with `data.uri` |
| a read refused with an unreserved code | -32602 with `data.uri`, the server's in `data.error` |
| a server's own code among -32020 to -32099 | -32603, the server's in `data.error` |

A value that an older revision lacks becomes the closest one that it can carry:

| in a result | not before | becomes |
| --- | --- | --- |
| `resource_link` | 2025-06-18 | a text block: its title or name, and its URI |
| `audio` | 2025-03-26 | an embedded resource with the same data and MIME type |
| `structuredContent`, an object | 2025-06-18 | kept, and repeated as text when the result has no text |
| `structuredContent`, anything else | 2026-07-28 | left out, and given as text when the result has no text |

| in a question | not before | becomes |
| --- | --- | --- |
| `elicitation/create` | 2025-06-18 | refused: the server learns that the client does not offer it |
| elicitation, mode `url` | 2025-11-25 | refused as well; 2025-11-25 gets the `elicitationId` |
| a choice with titles (`oneOf`) | 2025-11-25 | `enum` with `enumNames` |
| a choice of several (array) | 2025-11-25 | a string that lists them; commas separate those in the answer |
| sampling: several blocks in a message | 2025-11-25 | as many messages of the same role |
| sampling: tool use and tool results | 2025-11-25 | their JSON as text |
| sampling: audio | 2025-03-26 | a text that says what is missing |

| in an answer | not before | becomes |
| --- | --- | --- |
| sampling: several blocks | 2025-11-25 | the block, if it is one; else one text |
| sampling: audio | 2025-03-26 | a text that says what is missing |

Titles, icons, annotations, `_meta`, the context of a completion and other new values are members that
older revisions allow and ignore. The client's capabilities tell whether it offers sampling with tools,
see `input_requests`.

Source: changelog of 2026-07-28; `server/resources` error handling; `server/utilities/caching`; `server/tools`
(output schema, tool result), `server/prompts`, `client/elicitation` and `client/sampling` of each revision,
and its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Final

from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, MODERN_KEYS, SERVER_INFO, Call, Meta
from mcpmux.protocol.codes import (
    DEFINED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_ONLY,
    OWN,
    RESERVED,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
)
from mcpmux.protocol.envelope import (
    decode_fields,
    decode_items,
    decode_list,
    error_body,
    first_byte,
    members_of,
    raw,
    text_of,
    value_of,
)
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import V_2025_03_26, V_2025_06_18, V_2025_11_25

_NAMES_A_RESOURCE: Final = frozenset({m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})
_BOOLEAN_SCHEMAS: Final = {b"true": raw({}), b"false": raw({"not": {}})}
_OF_THE_LEG: Final = frozenset({HEADER_MISMATCH, UNSUPPORTED_VERSION})
KEPT: Final = 64  # values of `_meta` whose rest is kept: a server repeats it with every result
KEPT_BYTES: Final = 1024  # of a value that is kept; a longer one is decoded anew each time
AUDIO_URI: Final = "audio:"  # an embedded resource must have a URI; sound in a message has none

COMMAS: Final = 16  # in one choice that an answer is searched for, which takes time for each

_TOOL_BLOCKS: Final = frozenset({"tool_use", "tool_result"})


def upgrade_call(
    call: Call, client: ClientFacts, identity: Hashable | None = None, principal: Principal = ANYONE
) -> Call:
    """Return a call of a legacy client as a modern one, whose `_meta` describes the client.

    `identity`: the object by which calls of this client are known.
    """
    meta = {**call.meta, **client.meta} if call.meta else client.meta
    return Call(call.method, call.params, meta, identity, None, True, principal)


def downgrade_meta(call: Call) -> Fields:
    """Return the `_meta` for a legacy server: without members that only modern requests have."""
    if isinstance(call.meta, Meta):  # it has no other members
        return {}
    return {key: value for key, value in call.meta.items() if key not in MODERN_KEYS}


def downgrade_result(result: Fields) -> Fields:
    """Remove the members that legacy revisions do not have from a modern result, in place."""
    for key in ("resultType", "ttlMs", "cacheScope"):
        result.pop(key, None)
    meta = result.get(META)
    if meta is not None:
        rest = (_kept_rest if len(meta) <= KEPT_BYTES else _rest_of)(bytes(meta))
        if rest is None:
            del result[META]
        else:
            result[META] = rest
    if "tools" in result:
        replace_each(result, "tools", _with_tight_schemas)
    return result


def _rest_of(meta: bytes) -> Raw | None:
    """Return the `_meta` of a result without the server's info; None when it is empty then."""
    try:
        members = decode_fields(meta)
    except ValueError:  # not an object, so not ours to change
        return Raw(meta)
    if members.pop(SERVER_INFO, None) is None:
        return Raw(meta)
    return raw(members) if members else None


_kept_rest: Final = lru_cache(KEPT)(_rest_of)


def _with_tight_schemas(tool: Fields) -> Fields:
    """Return a tool with schemas that legacy revisions allow, and no `outputSchema` that they forbid."""
    # Legacy schemas (`Tool` in the schema of each revision): the output is an object, and so is each
    # property's schema.
    for key in ("inputSchema", "outputSchema"):
        schema = members_of(tool.get(key))
        if key == "outputSchema" and text_of(schema.get("type")) != "object":
            tool = {name: value for name, value in tool.items() if name != key} if key in tool else tool
            continue
        properties = members_of(schema.get("properties"))
        tightened = {name: _BOOLEAN_SCHEMAS.get(bytes(schema), schema) for name, schema in properties.items()}
        if tightened != properties:
            tool = {**tool, key: raw({**schema, "properties": tightened})}
    return tool


def upgrade_code(error: RpcError, *, modern: bool) -> RpcError:
    """Return an error of a server, `modern` or not, without a code that means something else to clients."""
    # A modern server's own codes are those of MCP, but some of them are about its leg: the client has chosen
    # neither the headers nor the version there.
    # An answer of mcpmux itself is no raw JSON, and may well have such a code.
    misleading = error.code in (_OF_THE_LEG if modern else DEFINED)
    if not misleading or not (error.data is None or isinstance(error.data, Raw)):
        return error
    return RpcError(INTERNAL_ERROR, error.message, raw({"error": error_body(error)}))


def upgrade_error(method: str, params: Fields, error: RpcError) -> RpcError:
    """Return a legacy server's error in the form of 2026-07-28, with a missing resource's `data.uri`."""
    if error.code != RESOURCE_NOT_FOUND:
        return error
    # 2026-07-28 has no separate code for a missing resource: it is -32602, with the URI in `data`.
    data = error.data
    if method in _NAMES_A_RESOURCE and "uri" in params:
        members = members_of(data)
        if "uri" not in members:
            data = raw({**members, "uri": params["uri"]})
    return RpcError(INVALID_PARAMS, error.message, data)


def upgrade_refusal(params: Fields, error: RpcError) -> RpcError:
    """Return a server's refusal to read a resource with a code that clients know.

    It becomes -32602 with `data.uri`, as for a missing resource, and the server's own error in `data.error`.
    """
    # A code that neither JSON-RPC nor MCP has reserved (SDKs use 0 for any failure) has no meaning for a
    # client.
    if error.code in RESERVED or error.code in OWN or "uri" not in params:
        return error
    return RpcError(INVALID_PARAMS, error.message, raw({"uri": params["uri"], "error": error_body(error)}))


def downgrade_error(method: str, error: RpcError) -> RpcError:
    """Return a modern error in the form of the legacy revisions."""
    if error.code == INVALID_PARAMS and method in _NAMES_A_RESOURCE and "uri" in members_of(error.data):
        # Still a Refused, so that logs and audit know that mcpmux itself refused.
        if isinstance(error, Refused):
            return Refused(RESOURCE_NOT_FOUND, error.message, error.rule, error.data)
        return RpcError(RESOURCE_NOT_FOUND, error.message, error.data)
    if error.code in MODERN_ONLY:
        return RpcError(INVALID_PARAMS, error.message, error.data)
    return error


# Values that some revisions lack: in results


def downgrade_content(method: str, result: Fields, revision: str) -> Fields:
    """Adapt the result of a tool call or prompt to a client of a legacy `revision`, in place."""
    if method == m.TOOLS_CALL:
        if "structuredContent" in result:
            _say_structured(result, result["structuredContent"], revision)
        if revision < V_2025_06_18:
            replace_each(result, "content", partial(_carried, revision=revision))
    elif method == m.PROMPTS_GET and revision < V_2025_06_18:
        replace_each(result, "messages", partial(_carried_in, revision=revision))
    return result


def _say_structured(result: Fields, structured: Raw, revision: str) -> None:
    """Repeat structured content as text where it cannot stay or be read, unless there is text already."""
    # Structured content is an object from 2025-06-18, and any value from 2026-07-28. Clients of before read
    # only text, which servers should repeat it as ("Structured Content" in Tools), and often do not.
    is_object = first_byte(structured) == b"{"
    if is_object and revision >= V_2025_06_18:
        return
    if not is_object:
        del result["structuredContent"]
    try:
        blocks = decode_list(result.get("content", b"[]"))
    except ValueError:
        return
    if not any(text_of(block.get("type")) == "text" for block in blocks):
        result["content"] = raw([*blocks, _text(bytes(structured).decode())])


def replace_each(fields: Fields, key: str, change: Callable[[Fields], Fields]) -> None:
    """Replace each object in a member by what `change` returns for it, in place, if the member is a list.

    Other items of the list stay.
    """
    items: Sequence[Fields | Raw]
    try:
        items = decode_list(fields[key])
    except KeyError:
        return
    except ValueError:
        try:
            items = [members_of(item) or item for item in decode_items(fields[key])]
        except ValueError:
            return
    changed = [change(item) if isinstance(item, dict) else item for item in items]
    if changed != items:
        fields[key] = raw(changed)


def _carried_in(message: Fields, revision: str) -> Fields:
    content = message.get("content")
    if content is None or first_byte(content) != b"{":
        return message
    return {**message, "content": raw(_carried(decode_fields(content), revision))}


def _carried(block: Fields, revision: str) -> Fields:
    kind = text_of(block.get("type"))
    if kind == "resource_link":
        label = text_of(block.get("title")) or text_of(block.get("name")) or "Resource"
        instead = _text(f"{label}: {text_of(block.get('uri'))}")
    elif kind == "audio" and revision < V_2025_03_26:
        resource = {"uri": raw(AUDIO_URI), "mimeType": block.get("mimeType"), "blob": block.get("data")}
        instead = {"type": raw("resource"), "resource": raw(resource)}
    else:
        return block
    if "annotations" in block:  # every type of block may have them
        instead["annotations"] = block["annotations"]
    return instead


def _text(text: str) -> Fields:
    return {"type": raw("text"), "text": raw(text)}


# Values that some revisions lack: in questions of servers, and their answers


def downgrade_question(method: str, params: Fields, revision: str, elicitation_id: str) -> Fields:
    """Return the parameters for a client of `revision`; `elicitation_id`: for a URL elicitation without one.

    Raises RpcError when that revision has no such question.
    """
    if method == m.ELICIT:
        by_url = text_of(params.get("mode")) == "url"
        if revision < (V_2025_11_25 if by_url else V_2025_06_18):
            kind = "URL elicitation" if by_url else "elicitation"
            raise RpcError(METHOD_NOT_FOUND, f"the client speaks {revision}, which has no {kind}")
        if by_url:
            # 2025-11-25 requires it, 2026-07-28 has none.
            return {**params, "elicitationId": params.get("elicitationId", raw(elicitation_id))}
        if revision >= V_2025_11_25 or "requestedSchema" not in params:
            return params
        try:
            form = decode_fields(params["requestedSchema"])
            fields = {name: _field_for(schema) for name, schema in _properties(params).items()}
        except ValueError:
            return params
        return {**params, "requestedSchema": raw({**form, "properties": raw(fields)})}
    if method != m.CREATE_MESSAGE or revision >= V_2025_11_25 or "messages" not in params:
        return params
    try:
        messages = [part for message in decode_list(params["messages"]) for part in _split(message, revision)]
    except ValueError:
        return params
    return {**params, "messages": raw(messages)}


def upgrade_answer(method: str, params: Fields, answer: Fields, revision: str) -> Fields:
    """Return the answer of a client of `revision`; `params`: of the question before `downgrade_question`."""
    if method != m.ELICIT or revision >= V_2025_11_25 or "content" not in answer:
        return answer
    try:
        # The client was shown a text for a choice of several, see `_field_for`.
        several = {name: schema for name, schema in _properties(params).items() if _is_array(schema)}
        content = decode_fields(answer["content"])
        for name, schema in several.items():
            text = text_of(content.get(name))
            if text is not None:
                content[name] = raw(_chosen(text, _choices_in(schema)[0]))
    except ValueError:
        return answer
    return {**answer, "content": raw(content)} if several else answer


def _chosen(text: str, offered: list[str]) -> list[str]:
    """Return the choices in a text, which commas separate."""
    # Those that are offered may have commas, too: the longest that is offered counts.
    parts, values, chosen = text.split(","), set(offered), []
    most = min(max((value.count(",") for value in offered), default=0), COMMAS)
    start = 0
    while start < len(parts):
        end = min(start + most + 1, len(parts))
        while end > start + 1 and ",".join(parts[start:end]).strip() not in values:
            end -= 1
        chosen.append(",".join(parts[start:end]).strip())
        start = end
    return [choice for choice in chosen if choice]


def downgrade_answer(method: str, answer: Fields, revision: str) -> Fields:
    """Return a client's answer for a server of `revision`."""
    content = answer.get("content")
    if method != m.CREATE_MESSAGE or revision >= V_2025_11_25 or content is None:
        return answer
    try:
        shown = [_block_for(block, revision) for block in _blocks_in(content)]
    except ValueError:
        return answer
    # A sampling result has one block before 2025-11-25.
    if len(shown) != 1:
        text = "\n\n".join(text_of(block.get("text")) or bytes(raw(block)).decode() for block in shown)
        shown = [_text(text)]
    return {**answer, "content": raw(shown[0])}


def _properties(params: Fields) -> dict[str, Fields]:
    """Return the fields of a form. Raises ValueError when they are malformed."""
    form = decode_fields(params.get("requestedSchema"))
    return {name: decode_fields(schema) for name, schema in decode_fields(form.get("properties")).items()}


def _is_array(schema: Fields) -> bool:
    return text_of(schema.get("type")) == "array"


def _field_for(schema: Fields) -> Fields:
    """Return a field of a form in the form of 2025-06-18."""
    if "oneOf" in schema:
        # `enumNames`, which JSON Schema does not have, is how 2025-06-18 gives choices titles (`EnumSchema`).
        values, names = _choices(schema["oneOf"])
        kept = {key: value for key, value in schema.items() if key != "oneOf"}
        return {**kept, "enum": raw(values), "enumNames": raw(names)}
    if not _is_array(schema):
        return schema
    # It has no choice of several, so the user types one as text.
    choices = zip(*_choices_in(schema), strict=True)
    offered = [value if value == name else f"{value} ({name})" for value, name in choices]
    about = text_of(schema.get("description"))
    hint = f"Any of these, separated by commas: {', '.join(offered)}"
    field = {"type": raw("string"), "description": raw(f"{about} {hint}" if about else hint)}
    return {**field, "title": schema["title"]} if "title" in schema else field


def _choices_in(schema: Fields) -> tuple[list[str], list[str]]:
    """Return (values, names to show) of a choice of several. Raises ValueError."""
    items = decode_fields(schema.get("items"))
    return _choices(items.get("anyOf") or items.get("enum") or Raw(b"[]"))


def _choices(listed: Raw) -> tuple[list[str], list[str]]:
    """Return (values, names to show) of strings, or objects with `const` and `title`. Raises ValueError."""
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


def _split(message: Fields, revision: str) -> list[Fields]:
    """Return a sampling message as messages with one block each."""
    # Before 2025-11-25, a message has one block, and not a list of them.
    content = message.get("content", Raw(b"null"))
    if first_byte(content) not in (b"[", b"{"):
        return [message]
    return [{**message, "content": raw(_block_for(block, revision))} for block in _blocks_in(content)]


def _blocks_in(content: Raw) -> list[Fields]:
    return decode_list(content) if first_byte(content) == b"[" else [decode_fields(content)]


def _block_for(block: Fields, revision: str) -> Fields:
    """Return a block of a sampling message in the form of a `revision` before 2025-11-25."""
    # It has text, images and, in 2025-03-26, audio only (`SamplingMessage` in its schema).
    kind = text_of(block.get("type"))
    if kind in _TOOL_BLOCKS:
        return _text(bytes(raw(block)).decode())
    if kind == "audio" and revision < V_2025_03_26:
        return _text(f"[a sound ({text_of(block.get('mimeType'))}) that revision {revision} cannot carry]")
    return block
