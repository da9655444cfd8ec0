"""Everything that a real SDK's client sees of servers, one JSON document a line. Run by the SDK's Python.

    sdk_client.py '{"command": ["server", "argument"], "env": {"A": "1"}}'
    sdk_client.py '{"url": "http://127.0.0.1:8000/mcp", "mode": "legacy"}'

Several targets are seen side by side; their documents come in the order of the targets. `mode` is for the
SDK 2.x only: "auto" (as the SDK does by itself), "legacy", or a modern revision. With `"read": false` the
lists are walked and nothing of them is read.

The document: `revision`, `server` (its name), `capabilities`, `instructions`; the merged lists `resources`,
`templates`, `tools`, `prompts` with `pages`, the number of pages of each; `contents` by URI and `messages`
by prompt name, as received, or `{"error": {"code": …, "message": …}}`.
"""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager

import anyio

try:
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.stdio import stdio_client

    SDK = 2
except ImportError:
    from mcp import ClientSession, StdioServerParameters
    from mcp import McpError as MCPError
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    SDK = 1

SECONDS = 120  # for the whole walk; a client that hangs should say so, not be killed
METHOD_NOT_FOUND = -32601


def raw(model):
    """A model as it was on the wire."""
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


def error_of(error):
    return {"error": raw(error.error)}


@asynccontextmanager
async def open_transport(target):
    if "url" in target:
        async with streamable_http_client(target["url"]) as (receiving, sending, _session_id):
            yield receiving, sending
    else:
        async with stdio_client(stdio_parameters(target)) as streams:
            yield streams


def stdio_parameters(target):
    command, *args = target["command"]
    return StdioServerParameters(command=command, args=args, env=target.get("env"))


@asynccontextmanager
async def open_client(target):
    """A connected client and what it was told about the server when it connected."""
    if SDK == 2:
        server = target.get("url") or stdio_parameters(target)
        async with Client(server, mode=target.get("mode", "auto"), cache=None) as client:
            yield (
                client,
                {
                    "revision": client.protocol_version,
                    "server": client.server_info and client.server_info.name,
                    "capabilities": raw(client.server_capabilities),
                    "instructions": client.instructions,
                },
            )
    else:
        async with open_transport(target) as streams, ClientSession(*streams) as session:
            hello = await session.initialize()
            yield (
                session,
                {
                    "revision": hello.protocolVersion,
                    "server": hello.serverInfo.name,
                    "capabilities": raw(hello.capabilities),
                    "instructions": hello.instructions,
                },
            )


async def walk(list_page, member):
    """All items of a list, page by page, and the number of pages; none when the server has no such list."""
    items, pages, cursor = [], 0, None
    while pages == 0 or cursor is not None:
        try:
            page = raw(await (list_page(cursor=cursor) if cursor is not None else list_page()))
        except MCPError as error:
            if error.error.code == METHOD_NOT_FOUND and pages == 0:
                return [], 0
            raise
        items += page[member]
        pages += 1
        cursor = page.get("nextCursor")
    return items, pages


async def read(client, uri):
    try:
        return raw(await client.read_resource(uri))
    except MCPError as error:
        return error_of(error)


async def get(client, prompt):
    required = [argument["name"] for argument in prompt.get("arguments", ()) if argument.get("required")]
    try:
        return raw(await client.get_prompt(prompt["name"], {name: f"a {name}" for name in required}))
    except MCPError as error:
        return error_of(error)


async def inspect(target):
    async with open_client(target) as (client, seen):
        lists = {
            "resources": (client.list_resources, "resources"),
            "templates": (client.list_resource_templates, "resourceTemplates"),
            "tools": (client.list_tools, "tools"),
            "prompts": (client.list_prompts, "prompts"),
        }
        seen["pages"] = {}
        for name, (list_page, member) in lists.items():
            seen[name], seen["pages"][name] = await walk(list_page, member)
        if target.get("read", True):
            seen["contents"] = {item["uri"]: await read(client, item["uri"]) for item in seen["resources"]}
            seen["messages"] = {prompt["name"]: await get(client, prompt) for prompt in seen["prompts"]}
        return seen


async def main():
    targets = [json.loads(argument) for argument in sys.argv[1:]]
    documents = {}

    async def see(number):
        documents[number] = await inspect(targets[number])

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            for number in range(len(targets)):
                group.start_soon(see, number)
    for number in range(len(targets)):
        print(json.dumps(documents[number], ensure_ascii=False))


if __name__ == "__main__":
    anyio.run(main)
