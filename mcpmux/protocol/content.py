"""Content that an older revision has no word for, as the closest thing that it can carry.

| content | not before | becomes |
| --- | --- | --- |
| `resource_link` | 2025-06-18 | a text block: its title or name, and its URI |
| `audio` | 2025-03-26 | an embedded resource with the same data and MIME type |

Everything else passes as it is. Source: `server/tools` (tool result) and `server/prompts` of each revision.
"""

from __future__ import annotations

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import Fields, decode_fields, decode_list, first_byte, raw, text_of
from mcpmux.protocol.revisions import V_2025_03_26, V_2025_06_18

AUDIO_URI = "audio:"  # an embedded resource must have a URI; sound in a message has none


def downgrade_content(method: str, result: Fields, revision: str) -> Fields:
    """The result of a tool call or prompt for a client of `revision` (changed in place)."""
    if revision >= V_2025_06_18:
        return result
    if method == m.TOOLS_CALL:
        _replace_blocks(result, "content", revision)
    elif method == m.PROMPTS_GET:
        _replace_in_messages(result, revision)
    return result


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
