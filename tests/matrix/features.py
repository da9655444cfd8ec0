"""The features tried in every cell. A feature returns its substitute (a key of NOTES), or None.

A feature fails by an AssertionError; messages to the client and the server are judged besides.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import trio

from tests.matrix.cell import Cell
from tests.matrix.notes import AUDIO, ELICITATION, LINK, PAGE, STRUCTURED
from tests.peers.revision import Json
from tests.peers.server import RpcFailure
from tests.peers.strict_client import ANSWERS
from tests.peers.strict_server import ITEMS, PICTURE, SOUND, WATCHED, text
from tests.peers.subscribable import SUBSCRIPTION_ID

Outcome = str | None
Feature = Callable[[Cell], Awaitable[Outcome]]

UPDATED = "notifications/resources/updated"
TOOLS_CHANGED = "notifications/tools/list_changed"
UNASKED = -32601  # the error for a server's request that the client does not support


async def introduction(cell: Cell) -> Outcome:
    """Check the revision and the offers in the answer to `initialize` or `server/discover`."""
    facts = cell.introduction
    if cell.client.modern:
        assert cell.down in facts["supportedVersions"]
    else:
        assert facts["protocolVersion"] == cell.down
    assert facts["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    assert {"tools", "prompts", "logging"} <= facts["capabilities"].keys()
    return None


async def lists(cell: Cell) -> Outcome:
    """Walk every list: page by page, each item comes once, with all its members."""
    resources, pages = await _walk(cell, "resources/list", "resources")
    assert pages > 1
    assert len({item["uri"] for item in resources}) == len(resources) == ITEMS
    tools, _ = await _walk(cell, "tools/list", "tools")
    prompts, _ = await _walk(cell, "prompts/list", "prompts")
    own = {name: cell.server.items(f"{name}/list") for name in ("resources", "tools", "prompts")}
    assert tools == [{**tool, "name": f"up__{tool['name']}"} for tool in own["tools"]]
    assert prompts == [{**prompt, "name": f"up__{prompt['name']}"} for prompt in own["prompts"]]
    assert resources == [{**item, "uri": f"up+{item['uri']}"} for item in own["resources"]]
    return None


async def _walk(cell: Cell, method: str, key: str) -> tuple[list[Json], int]:
    items: list[Json] = []
    params: Json = {}
    pages = 0
    while True:
        result = await cell.client.request(method, params)
        pages += 1
        items += result[key]
        if "nextCursor" not in result:
            return items, pages
        params = {"cursor": result["nextCursor"]}


async def read_text(cell: Cell) -> Outcome:
    contents = (await cell.client.request("resources/read", {"uri": "up+memo:2"}))["contents"]
    assert contents == [{"uri": "up+memo:2", "mimeType": "text/plain", "text": "the text of memo:2"}]
    return None


async def read_blob(cell: Cell) -> Outcome:
    contents = (await cell.client.request("resources/read", {"uri": "up+memo:1"}))["contents"]
    assert contents == [{"uri": "up+memo:1", "mimeType": "image/png", "blob": PICTURE}]
    return None


async def template(cell: Cell) -> Outcome:
    """List a template, and read an expansion of it."""
    templates, _ = await _walk(cell, "resources/templates/list", "resourceTemplates")
    assert [item["uriTemplate"] for item in templates] == ["up+memo:{number}"]
    contents = (await cell.client.request("resources/read", {"uri": "up+memo:99"}))["contents"]
    assert contents[0]["text"] == "the text of memo:99"
    return None


async def completion(cell: Cell) -> Outcome:
    """Complete arguments of a template and a prompt, with those known so far."""
    refs: list[Json] = [
        {"type": "ref/resource", "uri": "up+memo:{number}"},
        {"type": "ref/prompt", "name": "up__greet"},
    ]
    for ref in refs:
        params: Json = {"ref": ref, "argument": {"name": "number", "value": "1"}}
        params |= {"context": {"arguments": {"other": "2"}}} if cell.down >= "2025-06-18" else {}
        completed = (await cell.client.request("completion/complete", params))["completion"]
        assert completed["values"] == ["1-2" if cell.down >= "2025-06-18" else "1"]
    return None


async def progress(cell: Cell) -> Outcome:
    """Get progress in order, under the client's own token, before the answer."""
    result = await cell.client.request("tools/call", {"name": "up__count"}, progressToken=0)
    assert result["content"] == [text("counted")]
    notifications = [await cell.client.hear("notifications/progress", progressToken=0) for _ in range(3)]
    assert [
        (notification["params"]["progress"], notification["params"]["total"])
        for notification in notifications
    ] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    return None


async def structured_output(cell: Cell) -> Outcome:
    result = await cell.client.call("up__measure", text="four")
    assert json.loads(result["content"][0]["text"]) == {"length": 4}
    if cell.since("2025-06-18"):
        assert result["structuredContent"] == {"length": 4}
        return None
    return STRUCTURED


async def resource_link(cell: Cell) -> Outcome:
    block = (await cell.client.call("up__link"))["content"][0]
    if block["type"] == "resource_link":
        assert block["uri"] == "up+memo:3"
        return None
    assert block["type"] == "text"
    assert "memo:3" in block["text"]
    return LINK


async def audio(cell: Cell) -> Outcome:
    block = (await cell.client.call("up__sound"))["content"][0]
    if block["type"] == "audio":
        assert (block["data"], block["mimeType"]) == (SOUND, "audio/wav")
        return None
    if cell.up >= "2025-03-26":
        assert (block["resource"]["blob"], block["resource"]["mimeType"]) == (SOUND, "audio/wav")
    return AUDIO


async def prompt(cell: Cell) -> Outcome:
    """Get a prompt with text, an embedded resource and an image."""
    params = {"name": "up__greet", "arguments": {"who": "you"}}
    messages = (await cell.client.request("prompts/get", params))["messages"]
    blocks = [message["content"] for message in messages]
    assert blocks[0] == text("you")
    assert blocks[1]["resource"] == {"uri": "up+memo:2", "text": "embedded"}
    assert blocks[2] == {"type": "image", "data": PICTURE, "mimeType": "image/png"}
    return None


async def update(cell: Cell) -> Outcome:
    """Subscribe, which subscribes the server; get its update; unsubscribe, which unsubscribes it."""
    uri = f"up+{WATCHED}"
    if cell.client.modern:
        listen = await _listen(cell, {"resourceSubscriptions": [uri]})
    else:
        await cell.client.request("resources/subscribe", {"uri": uri})
    assert cell.server.subscribed == {WATCHED}
    await cell.server.update(WATCHED)
    notification = await cell.client.hear(UPDATED, uri=uri)
    if cell.client.modern:
        assert notification["params"]["_meta"][SUBSCRIPTION_ID] == listen
        await cell.client.cancel(listen)
    else:
        await cell.client.request("resources/unsubscribe", {"uri": uri})
    with trio.fail_after(10):
        await cell.server.is_free()
    return None


async def _listen(cell: Cell, wish: Json) -> int:
    listen = await cell.client.start("subscriptions/listen", {"notifications": wish})
    notification = await cell.client.hear("notifications/subscriptions/acknowledged")
    assert notification["params"]["notifications"] == wish
    return listen


async def list_change(cell: Cell) -> Outcome:
    """Change a list of the server. The client is notified, and gets the new list."""
    if cell.client.modern:
        await _listen(cell, {"toolsListChanged": True})
    await cell.settle()
    cell.client.heard.clear()
    tools = cell.server.items("tools/list")
    new = {"name": f"new{len(tools)}", "inputSchema": {"type": "object"}}
    tools.append(new)
    await cell.server.notify(TOOLS_CHANGED)
    await cell.client.hear(TOOLS_CHANGED)
    seen, _ = await _walk(cell, "tools/list", "tools")
    assert seen[-1]["name"] == f"up__{new['name']}"
    return None


async def cancellation(cell: Cell) -> Outcome:
    """Cancel a call, which is stopped at the server, and not answered."""
    request_id = await cell.client.start("tools/call", {"name": "up__wait"})
    with trio.fail_after(10):
        await cell.server.began.wait()
    await cell.client.cancel(request_id)
    with trio.fail_after(10):
        await cell.server.stopped.wait()
    await cell.settle()
    assert not cell.client.was_answered(request_id)
    return None


async def elicitation(cell: Cell) -> Outcome:
    return None if await _asked(cell, "elicitation", "2025-06-18", "elicitation/create") else ELICITATION


async def url_elicitation(cell: Cell) -> Outcome:
    return None if await _asked(cell, "page", "2025-11-25", "elicitation/create") else PAGE


async def sampling(cell: Cell) -> Outcome:
    assert await _asked(cell, "sampling", "2024-11-05", "sampling/createMessage")
    return None


async def roots(cell: Cell) -> Outcome:
    assert await _asked(cell, "roots", "2024-11-05", "roots/list")
    return None


async def _asked(cell: Cell, what: str, first: str, method: str) -> bool:
    """Return whether the server could ask the client and got its answer, or could not by nature."""
    count = len(cell.client.questions)
    answer = (await cell.client.call("up__ask", what=what))["content"][0]["text"]
    questions = cell.client.questions[count:]
    if cell.since(first):
        assert [question["method"] for question in questions] == [method]
        assert json.loads(answer) == ({"action": "accept"} if what == "page" else ANSWERS[method])
        return True
    assert not questions
    assert answer == "not asked" or json.loads(answer) == {"error": UNASKED}
    return False


async def unknown_resource(cell: Cell) -> Outcome:
    error = await _error(cell, "resources/read", {"uri": "up+nothing://there"})
    assert error["code"] == (-32602 if cell.client.modern else -32002)
    assert error["data"]["uri"] == "up+nothing://there"
    return None


async def unknown_tool(cell: Cell) -> Outcome:
    """Call an unknown tool of the server, and one of no server."""
    for name in ("up__nothing", "nothing"):
        assert (await _error(cell, "tools/call", {"name": name}))["code"] == -32602
    return None


async def unknown_method(cell: Cell) -> Outcome:
    assert (await _error(cell, "vendor/unknown", {}))["code"] == -32601
    return None


async def _error(cell: Cell, method: str, params: Json) -> Json:
    try:
        result = await cell.client.request(method, params)
    except RpcFailure as failure:
        return failure.error
    raise AssertionError(f"{method} succeeded: {result}")


async def log_message(cell: Cell) -> Outcome:
    """Log at the level that the client wants; no messages below it arrive."""
    for level, expected in (("info", 1), ("error", 0)):
        cell.client.heard.clear()
        if cell.client.modern:
            cell.client.log_level = level
        else:
            await cell.client.request("logging/setLevel", {"level": level})
        await cell.client.call("up__complain")
        await cell.settle()
        messages = [message for message in cell.client.heard if message["method"] == "notifications/message"]
        assert len(messages) == expected
        for message in messages:
            assert message["params"] == {"level": "warning", "logger": "up/it", "data": {"why": "asked to"}}
    return None


FEATURES: dict[str, Feature] = {
    feature.__name__: feature
    for feature in (
        introduction,
        lists,
        read_text,
        read_blob,
        template,
        completion,
        progress,
        structured_output,
        resource_link,
        audio,
        prompt,
        update,
        list_change,
        cancellation,
        elicitation,
        url_elicitation,
        sampling,
        roots,
        unknown_resource,
        unknown_tool,
        unknown_method,
        log_message,
    )
}
