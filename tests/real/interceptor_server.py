"""A server on the Python SDK 2.x that hosts interceptors, over stdio. Run by the SDK's Python."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


class InvokeParams(types.RequestParams):
    """The parameters of `interceptor/invoke`."""

    name: str
    event: str
    phase: str
    payload: dict[str, Any]
    context: dict[str, Any] | None = None


HOOK = {"events": ["tools/call"], "phase": "request"}
INTERCEPTORS = [
    {"name": "polite", "version": "1.0", "type": "mutation", "hook": HOOK},
    {"name": "no-secrets", "version": "1.0", "type": "validation", "hook": HOOK},
]


async def list_interceptors(_ctx: Any, _params: Any) -> dict[str, Any]:
    return {"interceptors": INTERCEPTORS}


async def invoke(_ctx: Any, params: InvokeParams) -> dict[str, Any]:
    arguments = params.payload["params"]["arguments"]
    if params.name == "polite":
        arguments["text"] = f"{arguments['text']}, please"
        return {"modified": True, "payload": params.payload}
    is_valid = "secret" not in arguments["text"]
    return {"valid": is_valid, "severity": "error", "messages": [{"message": "it has a secret"}]}


async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[])


server = Server("interceptors", version="1.0", on_list_tools=list_tools)
server.add_request_handler("interceptors/list", types.RequestParams, list_interceptors)
server.add_request_handler("interceptor/invoke", InvokeParams, invoke)


async def serve() -> None:
    async with stdio_server() as (receiving, sending):
        await server.run(receiving, sending, server.create_initialization_options())


anyio.run(serve)
