"""The only differences allowed between a client's documents of a server with and without mcpmux.

* `server`, `revision`: mcpmux speaks for itself, and the newest revision of the client.
* `capabilities`: mcpmux tells of changed lists itself; it need not have tasks; 2024-11-05 had no word for
  completions. Every other kind of thing that the server offers is offered.
* `ping` of a modern client: 2026-07-28, which it may speak with mcpmux only, has none.
* `resultType`, `ttlMs`, `cacheScope`, the server's signature in `_meta`: 2026-07-28 wants them.
* `execution` of tools, for the TypeScript SDK on 2026-07-28: the SDK takes it out, as not of that revision.
* The order of members: a modern server, which mcpmux asks as a modern client, has another for that.
* Tools for clients that can be asked something: mcpmux offers a shared server what it can do for some client.
* -32002 instead of -32602: mcpmux replaces a modern server's code by the code of a legacy client's revision.
* An answer where the client directly fails: in 2025-06-18 it cannot read a form with fields of 2025-11-25,
  which mcpmux puts into the words of its revision.
* A text instead of a `resource_link` before 2025-06-18: the client cannot read a link, and loses the whole
  result without mcpmux.
* Lists of a client that cannot turn pages: mcpmux's pages are larger.
* The time and the day in texts: they pass.
"""

from __future__ import annotations

import re
from typing import Any

from tests.real.mux import Json
from tests.real.walker import Walker

LISTED = ("resources", "templates", "tools", "prompts")
MODERN, READS_LINKS = "2026-07-28", "2025-06-18"
READS_FORMS = "2025-06-18"  # the first that has elicitation; multi-select came later
MODERN_MEMBERS = {"resultType", "ttlMs", "cacheScope"}
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
ASKING_TOOLS = {
    "get-roots-list",
    "listRoots",
    "startElicitation",
    "trigger-elicitation-request",
    "trigger-sampling-request",
    "trigger-url-elicitation",
}
NOT_FOUND, NOT_FOUND_LEGACY = -32602, -32002
NOW = re.compile(
    r"(\d{4}-\d\d-\d\dT|\d{1,2}/\d{1,2}/\d{4}, )?\d{1,2}:\d\d:\d\d(\s[AP]M)?"
    r"|\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"
)


def comparable(document: Json, walker: Walker, revision: str) -> Json:
    """Return the document of a server of `revision` without the parts that may differ."""
    seen = unmarked(document)
    plain = _one_code if walker.modern != (revision == MODERN) else _as_it_is
    return {
        **{name: seen[name] for name in LISTED},
        "tools": [_tool(tool, walker) for tool in seen["tools"] if tool["name"] not in ASKING_TOOLS],
        "contents": {uri: plain(result) for uri, result in seen["contents"].items()},
        "messages": {name: plain(result) for name, result in seen["messages"].items()},
        "answers": [plain(result) for result in seen["answers"]],
    }


def unmarked(value: Any) -> Any:
    """Return the value without members of 2026-07-28, the time and the day."""
    if isinstance(value, str):
        return NOW.sub("now", value)
    if isinstance(value, list):
        return [unmarked(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {key: unmarked(part) for key, part in value.items() if key not in MODERN_MEMBERS}
    if isinstance(kept.get("_meta"), dict) and SERVER_INFO in kept["_meta"]:
        del kept["_meta"][SERVER_INFO]
        if not kept["_meta"]:
            del kept["_meta"]
    return kept


def _tool(tool: Json, walker: Walker) -> Json:
    if walker.modern and walker.kind == "npm":
        return {key: value for key, value in tool.items() if key != "execution"}
    return tool


def _as_it_is(answer: Json) -> Json:
    return answer


def _one_code(answer: Json) -> Json:
    """Return an answer with the same code in both eras for a resource that is not found."""
    if "error" not in answer:
        return answer
    error = answer["error"]
    if error["code"] != NOT_FOUND_LEGACY:
        return answer
    message = error["message"].replace(str(NOT_FOUND_LEGACY), str(NOT_FOUND))
    return {"error": {**error, "code": NOT_FOUND, "message": message}}


def without_links(seen: list[Json], direct: list[Json], walker: Walker) -> tuple[list[Json], list[Json]]:
    """Return the answers without those that a client cannot read directly because of a `resource_link`."""
    for mine, theirs in zip(seen, direct, strict=True):
        if "unreadable" in theirs:
            assert walker.revision < READS_LINKS
            assert "content" in mine, mine
            texts = [block["text"] for block in mine["content"] if block["type"] == "text"]
            assert any("://" in text for text in texts), mine
    readable = [
        number
        for number, theirs in enumerate(direct)
        if "unreadable" not in theirs and not _is_lost_form(seen[number], theirs, walker)
    ]
    return [seen[number] for number in readable], [direct[number] for number in readable]


def _is_lost_form(seen: Json, direct: Json, walker: Walker) -> bool:
    """Return whether the client could read a form only in mcpmux's words, as its fields are of 2025-11-25."""
    lost = walker.revision == READS_FORMS and "requestedSchema" in str(direct) and "ZodError" in str(direct)
    if lost:
        assert "declined" in str(seen), seen
    return lost


def first_pages(document: Json, direct: Json) -> Json:
    """Return the document without the items on later pages, for a client that reads one page."""
    seen = {name: document[name][: len(direct[name])] for name in LISTED}
    return {
        **document,
        **seen,
        "contents": {uri: document["contents"][uri] for uri in direct["contents"]},
        "messages": {name: document["messages"][name] for name in direct["messages"]},
    }


def offers_as_much(document: Json, direct: Json) -> bool:
    """Return whether every kind of thing is offered."""
    return direct["capabilities"].keys() - {"tasks"} <= document["capabilities"].keys()


def same_tools(document: Json, direct: Json) -> bool:
    """Return whether the tools for clients that can be asked are the same, too."""
    mine, theirs = ({tool["name"] for tool in seen["tools"]} & ASKING_TOOLS for seen in (document, direct))
    return mine == theirs
