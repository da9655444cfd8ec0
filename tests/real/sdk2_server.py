"""A server on the Python SDK 2.x with everything that a proxy could get wrong. Run by the SDK's Python.

    sdk2_server.py stdio
    sdk2_server.py http PORT        PORT 0 takes a free one

Over HTTP it prints `listening on http://127.0.0.1:PORT/mcp` on standard output as soon as it can be
connected to. Over stdio it is ready from the start and prints no such line.
"""

from __future__ import annotations

import base64
import socket
import sys

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError

PAGE_SIZE = 2  # small, so that every list has several pages

RESOURCES = [
    types.Resource(uri="memo://text", name="text", title="A text", mime_type="text/plain", size=5),
    types.Resource(uri="memo://blob", name="blob", mime_type="application/octet-stream"),
    types.Resource(
        uri="memo://many", name="many", annotations=types.Annotations(audience=["user"], priority=0.5)
    ),
    types.Resource(uri="urn:example:opaque", name="opaque", _meta={"example.com/kept": [1, {"deep": None}]}),
    types.Resource(uri="file:///dir%20with%20spaces/%C3%BCmlaut.txt", name="escaped"),
]
CONTENTS: dict[str, list[types.TextResourceContents | types.BlobResourceContents]] = {
    "memo://text": [types.TextResourceContents(uri="memo://text", mime_type="text/plain", text="héllo")],
    "memo://blob": [
        types.BlobResourceContents(uri="memo://blob", blob=base64.b64encode(bytes(range(256))).decode())
    ],
    "memo://many": [
        types.TextResourceContents(uri="memo://many", text="first"),
        types.TextResourceContents(uri="memo://many/2", text="second", _meta={"example.com/kept": True}),
        types.BlobResourceContents(uri="memo://many/3", mime_type="image/png", blob="AAAA"),
    ],
    "urn:example:opaque": [types.TextResourceContents(uri="urn:example:opaque", text="opaque")],
    "file:///dir%20with%20spaces/%C3%BCmlaut.txt": [
        types.TextResourceContents(uri="file:///dir%20with%20spaces/%C3%BCmlaut.txt", text="escaped")
    ],
}
TEMPLATES = [
    types.ResourceTemplate(uri_template="memo://note/{name}", name="note", mime_type="text/plain"),
    types.ResourceTemplate(uri_template="memo://search{?q,page}", name="search"),
    types.ResourceTemplate(uri_template="memo://path{/parts*}", name="path"),
]
TEXT_ARGUMENT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NO_ARGUMENTS = {"type": "object"}
TOOLS = [
    types.Tool(name="echo", description="Returns its text", input_schema=TEXT_ARGUMENT),
    types.Tool(
        name="measure",
        input_schema=TEXT_ARGUMENT,
        output_schema={
            "type": "object",
            "properties": {"length": {"type": "integer"}},
            "required": ["length"],
        },
    ),
    types.Tool(
        name="link", description="A resource link and an embedded resource", input_schema=NO_ARGUMENTS
    ),
    types.Tool(name="count", description="Reports progress 1 to 3 of 3", input_schema=NO_ARGUMENTS),
    types.Tool(name="fail", description="Answers with isError", input_schema=NO_ARGUMENTS),
    types.Tool(
        name="touch",
        description="Says that a resource was updated",
        input_schema={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    ),
    types.Tool(name="announce", description="Says that the resource list changed", input_schema=NO_ARGUMENTS),
]
PROMPTS = [
    types.Prompt(name="simple", description="No arguments"),
    types.Prompt(
        name="review",
        arguments=[
            types.PromptArgument(name="code", description="What to review", required=True),
            types.PromptArgument(name="language"),
        ],
    ),
    types.Prompt(name="with_resource", description="Embeds a resource"),
]

bus = InMemorySubscriptionBus()


def page_of(items, params):
    """Return one page and the cursor of the next. The cursor of the first page is absent, not empty."""
    cursor = params.cursor if params is not None else None
    if cursor is not None and not (cursor.isdecimal() and int(cursor) < len(items)):
        raise MCPError(types.INVALID_PARAMS, f"Invalid cursor: {cursor!r}")
    start = int(cursor or 0)
    end = start + PAGE_SIZE
    return items[start:end], str(end) if end < len(items) else None


async def list_resources(_ctx, params):
    page, cursor = page_of(RESOURCES, params)
    return types.ListResourcesResult(resources=page, next_cursor=cursor)


async def list_resource_templates(_ctx, params):
    page, cursor = page_of(TEMPLATES, params)
    return types.ListResourceTemplatesResult(resource_templates=page, next_cursor=cursor)


async def read_resource(_ctx, params):
    if params.uri in CONTENTS:
        return types.ReadResourceResult(contents=CONTENTS[params.uri])
    if params.uri.startswith(("memo://note/", "memo://search?", "memo://path/")):
        text = f"made for {params.uri}"
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])
    raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri})


async def list_tools(_ctx, params):
    page, cursor = page_of(TOOLS, params)
    return types.ListToolsResult(tools=page, next_cursor=cursor)


def text_result(text, **fields):
    return types.CallToolResult(content=[types.TextContent(text=text)], **fields)


async def call_tool(ctx, params):
    arguments = params.arguments or {}
    match params.name:
        case "echo":
            return text_result(arguments["text"], _meta={"example.com/kept": 1})
        case "measure":
            length = len(arguments["text"])
            return text_result(f'{{"length": {length}}}', structured_content={"length": length})
        case "link":
            return types.CallToolResult(
                content=[
                    types.ResourceLink(uri="memo://text", name="text"),
                    types.EmbeddedResource(resource=CONTENTS["memo://many"][1]),
                ]
            )
        case "count":
            for done in (1, 2, 3):
                await ctx.session.report_progress(done, 3, f"step {done}")
            return text_result("counted")
        case "fail":
            return text_result("it failed", is_error=True)
        case "touch":
            await bus.publish(ResourceUpdated(uri=arguments["uri"]))
            return text_result("touched")
        case "ask":  # not listed, as clients have no answer for it
            if params.request_state is not None:
                return text_result(f"{params.request_state} {params.input_responses}")
            form = types.ElicitRequestFormParams(
                message="?", requested_schema={"type": "object", "properties": {}}
            )
            return types.InputRequiredResult(
                input_requests={"it": types.ElicitRequest(params=form)}, request_state="asked"
            )
        case "grow":  # not listed, as it changes what other tests compare
            RESOURCES.append(types.Resource(uri=f"memo://grown/{len(RESOURCES)}", name="grown"))
            return text_result("grown, without a word")
        case "announce":
            await bus.publish(ResourcesListChanged())
            return text_result("announced")
    raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")


async def list_prompts(_ctx, params):
    page, cursor = page_of(PROMPTS, params)
    return types.ListPromptsResult(prompts=page, next_cursor=cursor)


def message(content):
    return types.PromptMessage(role="user", content=content)


async def get_prompt(_ctx, params):
    arguments = params.arguments or {}
    match params.name:
        case "simple":
            return types.GetPromptResult(messages=[message(types.TextContent(text="Hello"))])
        case "review":
            if "code" not in arguments:
                raise MCPError(types.INVALID_PARAMS, "Missing argument: code")
            text = f"Review this {arguments.get('language', 'code')}: {arguments['code']}"
            return types.GetPromptResult(
                description="A review", messages=[message(types.TextContent(text=text))]
            )
        case "with_resource":
            embedded = types.EmbeddedResource(resource=CONTENTS["memo://text"][0])
            return types.GetPromptResult(messages=[message(embedded)])
    raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")


async def complete(_ctx, params):
    """Complete from the reference's name, so that a test sees that the reference arrived whole."""
    owner = getattr(params.ref, "uri", None) or params.ref.name
    values = [f"{params.argument.value}-{params.argument.name}-{owner}"]
    return types.CompleteResult(completion=types.Completion(values=values, total=1, has_more=False))


server = Server(
    "sdk2-server",
    version="1.0",
    title="A server on the Python SDK 2.x",
    instructions="Read memo://text first.",
    on_list_resources=list_resources,
    on_list_resource_templates=list_resource_templates,
    on_read_resource=read_resource,
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
    on_subscriptions_listen=ListenHandler(bus),
)


async def serve_stdio():
    async with stdio_server() as (receiving, sending):
        await server.run(receiving, sending, server.create_initialization_options())


async def serve_http(port):
    listener = socket.create_server(("127.0.0.1", port))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stdio"]:
            anyio.run(serve_stdio)
        case ["http", port]:
            anyio.run(serve_http, int(port))
        case _:
            sys.exit(__doc__)
