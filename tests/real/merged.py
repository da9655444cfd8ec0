"""The rewriting rules backwards: the documents of one upstream, out of a client's documents of all of them.

Written from the users' documentation of the rules, without any of mcpmux's own code. Only the places that the
rules name are changed, so a change anywhere else stays visible.

* URI or template: `name+` in front; `ui://x` becomes `ui://name/x`
* tool or prompt name: `name__` in front
* an error speaks of the exposed URI or name, and may name the nearest that there is
"""

from __future__ import annotations

import re
from typing import Final

from tests.real.mux import Json

_EXPOSED: Final = re.compile(r"\b[a-z][a-z0-9.-]*(?:\+(?=[a-z]+:)|__)")
_HINT: Final = re.compile(r"; did you mean `[^`]+`\?")


def without_hint(text: str) -> str:
    """Return the text of an error without the nearest name."""
    return _HINT.sub("", text)


def owner_of_uri(uri: str) -> str:
    """Return the name of the upstream that an exposed URI or template belongs to."""
    if uri.startswith("ui://"):
        return uri.removeprefix("ui://").partition("/")[0]
    return uri.partition("+")[0]


def owner_of_name(name: str) -> str:
    """Return the name of the upstream that an exposed tool or prompt belongs to."""
    return name.partition("__")[0]


def own_uri(uri: str) -> str:
    """Return the upstream's own URI."""
    if uri.startswith("ui://"):
        return "ui://" + uri.removeprefix("ui://").partition("/")[2]
    return uri.partition("+")[2]


def own_name(name: str) -> str:
    """Return the upstream's own name of a tool or prompt."""
    return name.partition("__")[2]


def part_of(document: Json, upstream: str) -> Json:
    """Return a client's document of one upstream, under the upstream's own names and in the same order."""
    return {
        "resources": [
            {**item, "uri": own_uri(item["uri"])}
            for item in document["resources"]
            if owner_of_uri(item["uri"]) == upstream
        ],
        "templates": [
            {**item, "uriTemplate": own_uri(item["uriTemplate"])}
            for item in document["templates"]
            if owner_of_uri(item["uriTemplate"]) == upstream
        ],
        "tools": [_own_tool(item) for item in document["tools"] if owner_of_name(item["name"]) == upstream],
        "prompts": [
            {**item, "name": own_name(item["name"])}
            for item in document["prompts"]
            if owner_of_name(item["name"]) == upstream
        ],
        "contents": {
            own_uri(uri): own_answer("resources/read", result)
            for uri, result in document["contents"].items()
            if owner_of_uri(uri) == upstream
        },
        "messages": {
            own_name(name): own_answer("prompts/get", result)
            for name, result in document["messages"].items()
            if owner_of_name(name) == upstream
        },
    }


def exposed_params(method: str, params: Json, upstream: str) -> Json:
    """Return the parameters of a request to one upstream under the names that clients use."""
    if "uri" in params:
        return {**params, "uri": f"{upstream}+{params['uri']}"}
    if method == "completion/complete":
        return {**params, "ref": _exposed_ref(params["ref"], upstream)}
    return {**params, "name": f"{upstream}__{params['name']}"}


def _exposed_ref(ref: Json, upstream: str) -> Json:
    if ref["type"] == "ref/resource":
        return {**ref, "uri": f"{upstream}+{ref['uri']}"}
    return {**ref, "name": f"{upstream}__{ref['name']}"}


def own_answer(method: str, answer: Json) -> Json:
    """Return the upstream's own answer to a request, in the form of `walker.py`."""
    if "error" in answer:
        return {"error": _own_error(answer["error"])}
    if "unreadable" in answer:
        return answer
    if method == "resources/read":
        return _own_contents(answer)
    if method == "prompts/get":
        return _own_messages(answer)
    if method == "tools/call":
        return {**answer, "content": [_own_block(block) for block in answer["content"]]}
    return answer


def _own_error(error: Json) -> Json:
    error = {**error, "message": _EXPOSED.sub("", without_hint(error["message"]))}
    data = error.get("data")
    if isinstance(data, dict) and "uri" in data:
        return {**error, "data": {**data, "uri": own_uri(data["uri"])}}
    return error


def _own_tool(tool: Json) -> Json:
    own = {**tool, "name": own_name(tool["name"])}
    if "_meta" in tool and "ui" in tool["_meta"]:
        ui = {**tool["_meta"]["ui"], "resourceUri": own_uri(tool["_meta"]["ui"]["resourceUri"])}
        own["_meta"] = {**tool["_meta"], "ui": ui}
    return own


def _own_contents(result: Json) -> Json:
    return {**result, "contents": [{**part, "uri": own_uri(part["uri"])} for part in result["contents"]]}


def _own_messages(result: Json) -> Json:
    messages = [{**message, "content": _own_block(message["content"])} for message in result["messages"]]
    return {**result, "messages": messages}


def _own_block(block: Json) -> Json:
    if block["type"] == "resource_link":
        return {**block, "uri": own_uri(block["uri"])}
    if block["type"] == "resource":
        return {**block, "resource": {**block["resource"], "uri": own_uri(block["resource"]["uri"])}}
    return block
