"""The walk that every real client in Python takes, and the document that it makes of what it saw.

A program of an SDK has a `connect(target)`, an async context manager that gives the server's answer to the
handshake (`revision`, `server`, `capabilities`, `instructions`) and a function that asks:
`await ask(method, params)` is the result as it was on the wire; it raises Refused for an error of the server.
`walk.mjs` is the same for the SDKs in TypeScript; the document is described in `walker.py`.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback

import anyio

SECONDS = 120  # for the whole walk; a client that hangs should report it, not be killed
METHOD_NOT_FOUND = -32601
MODERN = "2026-07-28"
LISTS = {
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
    "tools": ("tools/list", "tools"),
    "prompts": ("prompts/list", "prompts"),
}


ROOT = {"uri": "file:///the/only/root", "name": "root"}


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.code = code
        self.document = {"code": code, "message": message, "data": data}


def raw(model):
    """Return a model in its form on the wire."""
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


def sampled(params):
    """Return the sampling result of a client, which repeats the request's text."""
    text = f"asked {params['messages'][0]['content']['text']!r}, {params['maxTokens']} tokens"
    content = {"type": "text", "text": text}
    return {"role": "assistant", "model": "none", "content": content}


async def called(call_tool, params):
    """Call a tool. Return the result, and the progress until then if the SDK shows it.

    There is no progress in `walk.mjs`: SDKs in TypeScript lose what comes right before the answer.
    """
    progress, options = [], {}

    async def on_progress(*report):
        progress.append(report)

    if "progress_callback" in inspect.signature(call_tool).parameters:
        options["progress_callback"] = on_progress
    result = raw(await call_tool(params["name"], params.get("arguments"), **options))
    return {**result, "progress heard": progress}


async def walk_list(ask, method, member):
    """Return all items of a list, and the number of its pages; none when the server has no such list."""
    items, pages = [], 0
    params: dict[str, str] = {}
    while pages == 0 or "cursor" in params:
        try:
            page = await ask(method, params)
        except Refused as refused:
            if refused.code == METHOD_NOT_FOUND and pages == 0:
                return [], 0
            raise
        items += page[member]
        pages += 1
        params = {"cursor": page["nextCursor"]} if "nextCursor" in page else {}
    return items, pages


async def answer(ask, method, params):
    """Return the result of a request, the server's error, or the SDK's text about an unreadable result."""
    try:
        return await ask(method, params)
    except Refused as refused:
        return {"error": refused.document}
    except Exception as error:
        traceback.print_exception(error)
        return {"unreadable": type(error).__name__}


def made_up(prompt):
    """Return parameters to get a prompt, with a value for each required argument."""
    required = [argument["name"] for argument in prompt.get("arguments", ()) if argument.get("required")]
    return {"name": prompt["name"], "arguments": {name: f"a {name}" for name in required}}


async def walk(hello, ask, target):
    """Walk through one server, and return its document."""
    seen = {**hello, "pages": {}}
    for name, (method, member) in LISTS.items():
        seen[name], seen["pages"][name] = await walk_list(ask, method, member)
    if target.get("read", True):
        read = {item["uri"]: {"uri": item["uri"]} for item in seen["resources"]}
        seen["contents"] = {uri: await answer(ask, "resources/read", params) for uri, params in read.items()}
        get = {prompt["name"]: made_up(prompt) for prompt in seen["prompts"]}
        seen["messages"] = {name: await answer(ask, "prompts/get", params) for name, params in get.items()}
    seen["answers"] = [await answer(ask, method, params) for method, params in target.get("asking", ())]
    if hello["revision"] != MODERN:
        seen["ping"] = await answer(ask, "ping", {})
    return seen


def main(connect):
    """See all targets of the command line side by side: one document a line, in the order of the targets."""
    targets = [json.loads(argument) for argument in sys.argv[1:]]
    documents = {}

    async def see(number):
        async with connect(targets[number]) as (hello, ask):
            documents[number] = await walk(hello, ask, targets[number])

    async def see_all():
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as group:
                for number in range(len(targets)):
                    group.start_soon(see, number)

    anyio.run(see_all)
    for number in range(len(targets)):
        print(json.dumps(documents[number], ensure_ascii=False))
