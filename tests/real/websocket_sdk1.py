"""The Python SDK 1.x over WebSocket, either side. Run by a Python that has it with `websockets`.

websocket_sdk1.py serve PORT      a server at ws://127.0.0.1:PORT/ws
websocket_sdk1.py visit URL       what a client sees of a server there, as one JSON document
"""

import json
import logging
import sys

import anyio
import mcp.types as types
from mcp import ClientSession

TOOL = types.Tool(name="count", inputSchema={"type": "object"})
NOTE = types.Resource(uri="memo:note", name="note")


def serve(port):
    import uvicorn
    from mcp.server.lowlevel import Server
    from mcp.server.websocket import websocket_server
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    server = Server("over-websocket")

    @server.list_tools()
    async def list_tools():
        return [TOOL]

    @server.list_resources()
    async def list_resources():
        return [NOTE]

    @server.read_resource()
    async def read_resource(uri):
        return f"text of {uri}"

    @server.subscribe_resource()
    async def subscribe(uri):
        await server.request_context.session.send_resource_updated(uri)

    @server.call_tool()
    async def call_tool(name, arguments):
        context = server.request_context
        for step in (1, 2):
            await context.session.send_progress_notification(context.meta.progressToken, step, 2)
        answer = await context.session.create_message([], max_tokens=1)
        return [types.TextContent(type="text", text=f"counted; the model said {answer.content.text}")]

    async def endpoint(websocket):
        async with websocket_server(websocket.scope, websocket.receive, websocket._send) as streams:
            await server.run(*streams, server.create_initialization_options())

    app = Starlette(routes=[WebSocketRoute("/ws", endpoint)])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="info")


async def visit(url):
    from mcp.client.websocket import websocket_client

    updates, progress = [], []
    updated = anyio.Event()

    async def hear(message):
        root = getattr(message, "root", None)
        if isinstance(root, types.ResourceUpdatedNotification):
            updates.append(str(root.params.uri))
            updated.set()

    async def sample(_context, _params):
        content = types.TextContent(type="text", text="hello")
        return types.CreateMessageResult(role="assistant", content=content, model="m")

    async def watch(done, total, _message):
        progress.append([done, total])

    with anyio.fail_after(60):
        async with (
            websocket_client(url) as streams,
            ClientSession(*streams, message_handler=hear, sampling_callback=sample) as session,
        ):
            initialized = await session.initialize()
            tools = (await session.list_tools()).tools
            resources = (await session.list_resources()).resources
            contents = (await session.read_resource(resources[0].uri)).contents
            result = await session.call_tool(tools[0].name, {}, progress_callback=watch)
            await session.subscribe_resource(resources[0].uri)
            await updated.wait()
    print(
        json.dumps(
            {
                "revision": initialized.protocolVersion,
                "tools": [tool.name for tool in tools],
                "resources": [str(resource.uri) for resource in resources],
                "text": contents[0].text,
                "result": result.content[0].text,
                "progress": progress,
                "updates": updates,
            }
        )
    )


if __name__ == "__main__":
    logging.captureWarnings(True)  # that WebSocket is deprecated there
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        anyio.run(visit, sys.argv[2])
