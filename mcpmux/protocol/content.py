"""What an older revision has no word for, as the closest thing that it can carry.

Of results, here:

| in a result | not before | becomes |
| --- | --- | --- |
| `resource_link` | 2025-06-18 | a text block: its title or name, and its URI |
| `audio` | 2025-03-26 | an embedded resource with the same data and MIME type |
| `structuredContent`, an object | 2025-06-18 | kept, and said as text when there is no text in the result |
| `structuredContent`, anything else | 2026-07-28 | left out, and said as text when there is no text |

In `era`, for every legacy revision: `resultType`, `ttlMs`, `cacheScope` and the `_meta` of a leg are left
out, output schemas that are of no object, too; schemas that are `true` or `false` are written as objects;
error codes are those of the revision.

Of questions, in `input_requests`:

| asked | not before | becomes |
| --- | --- | --- |
| `elicitation/create` | 2025-06-18 | refused: the server hears that the client does not offer it |
| elicitation, mode `url` | 2025-11-25 | refused as well; 2025-11-25 gets the `elicitationId` |
| a choice with titles (`oneOf`) | 2025-11-25 | `enum` with `enumNames` |
| a choice of several (array) | 2025-11-25 | a string that lists them; the answer is cut at its commas |
| sampling: several blocks in a message | 2025-11-25 | as many messages of the same role |
| sampling: tool use and tool results | 2025-11-25 | their JSON as text |
| sampling: audio | 2025-03-26 | a text that says what is missing |

| answered | not before | becomes |
| --- | --- | --- |
| sampling: several blocks | 2025-11-25 | the block, if it is one; else one text |
| sampling: audio | 2025-03-26 | a text that says what is missing |

Everything else passes as it is: titles, icons, annotations, `_meta`, the context of a completion and whatever
else is new are members that older revisions allow and do not look at.

Source: `server/tools` (tool result), `server/prompts`, `client/elicitation` and `client/sampling` of each
revision, and its schema.
"""

from __future__ import annotations

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_fields, decode_list, first_byte, raw, text_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import V_2025_03_26, V_2025_06_18

AUDIO_URI = "audio:"  # an embedded resource must have a URI; sound in a message has none


def downgrade_content(method: str, result: Fields, revision: str) -> Fields:
    """The result of a tool call or prompt for a client of a legacy `revision` (changed in place)."""
    if method == m.TOOLS_CALL:
        if "structuredContent" in result:
            _say_structured(result, result["structuredContent"], revision)
        if revision < V_2025_06_18:
            _replace_blocks(result, "content", revision)
    elif method == m.PROMPTS_GET and revision < V_2025_06_18:
        _replace_in_messages(result, revision)
    return result


def _say_structured(result: Fields, structured: Raw, revision: str) -> None:
    """What cannot stay, or would not be looked at, is said in the content, unless that has text already."""
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
        said = {"type": raw("text"), "text": raw(bytes(structured).decode())}
        result["content"] = raw([*blocks, said])


def _replace_in_messages(result: Fields, revision: str) -> None:
    try:
        messages = decode_list(result["messages"])
    except (KeyError, ValueError):
        return
    for message in messages:
        content = message.get("content")
        if content is not None and first_byte(content) == b"{":
            message["content"] = raw(_carried(decode_fields(content), revision))
    result["messages"] = raw(messages)


def _replace_blocks(result: Fields, key: str, revision: str) -> None:
    try:
        blocks = decode_list(result[key])
    except (KeyError, ValueError):
        return
    result[key] = raw([_carried(block, revision) for block in blocks])


def _carried(block: Fields, revision: str) -> Fields:
    """The block, or what stands for it in `revision`."""
    kind = text_of(block.get("type"))
    if kind == "resource_link":
        label = text_of(block.get("title")) or text_of(block.get("name")) or "Resource"
        return _kept(block, {"type": raw("text"), "text": raw(f"{label}: {text_of(block.get('uri'))}")})
    if kind == "audio" and revision < V_2025_03_26:
        resource = {"uri": raw(AUDIO_URI), "mimeType": block.get("mimeType"), "blob": block.get("data")}
        return _kept(block, {"type": raw("resource"), "resource": raw(resource)})
    return block


def _kept(block: Fields, instead: Fields) -> Fields:
    """What every kind of block may have besides goes along."""
    return instead | {key: block[key] for key in ("annotations",) if key in block}
