"""A server on the Python SDK 2.x with all that the conformance suite asks for, in both eras, over HTTP.

It asks by pushing requests in a session, where the suite expects that, and by its result otherwise. It says
`listening on http://127.0.0.1:PORT/mcp` on standard output.
"""

from typing import Any

import anyio
import mcp_types as types
from everything import (
    EVERYTHING,
    PROGRESS,
    PROMPTS,
    RECONNECT_SECONDS,
    RETRY_MILLISECONDS,
    TOOLS,
    KeptEvents,
    contents_of,
    fill,
    messages_of,
    result_of,
    serve,
)
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel

PUSHED: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
}
OFFERED_BY = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}

bus = InMemorySubscriptionBus()


async def list_tools(_ctx, _params):
    return types.ListToolsResult.model_validate({"tools": TOOLS})


async def call_tool(ctx, params):
    for text in EVERYTHING["logs"].get(params.name, ()):
        await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
    match params.name:
        case name if name in EVERYTHING["pushed"]:
            await push(ctx, name, params.arguments)
        case "test_missing_capability":
            if ctx.session.client_capabilities.sampling is None:
                needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
                raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "Needs sampling", needed)
        case "test_tool_with_progress":
            for progress in PROGRESS:
                await ctx.session.report_progress(progress, 100)
        case "test_reconnection":
            if ctx.close_sse_stream is not None:
                await ctx.close_sse_stream()
            await anyio.sleep(RECONNECT_SECONDS)
        case "test_trigger_tool_change":
            await bus.publish(ToolsListChanged())
        case "test_trigger_prompt_change":
            await bus.publish(PromptsListChanged())
    return next_question(ctx, params, params.name) or result(params.name)


def result(tool):
    try:
        return types.CallToolResult.model_validate(result_of(tool))
    except KeyError:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {tool}") from None


async def push(ctx, tool, arguments):
    """Ask what a tool asks by requests of our own; an error when there is no session for that."""
    for request in EVERYTHING["rounds"][tool][0].values():
        request_type, result_type = PUSHED[request["method"]]
        request = request_type.model_validate(fill(request, arguments or {}))
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        await ctx.session.send_request(request, result_type, metadata=related)


def next_question(ctx, params, name):
    """Return a result with the questions that are left to ask; None when all are answered."""
    rounds = EVERYTHING["rounds"].get(name, [])
    if name in EVERYTHING["pushed"] or name == "test_missing_capability":
        return None
    number = int(params.request_state or 0)
    if number < len(rounds) and rounds[number].keys() <= (params.input_responses or {}).keys():
        number += 1
    if number >= len(rounds):
        return None
    offered = ctx.session.client_capabilities
    requests = {
        key: request
        for key, request in rounds[number].items()
        if getattr(offered, OFFERED_BY[request["method"]]) is not None
    }
    question = {"inputRequests": requests, "requestState": str(number)}
    return types.InputRequiredResult.model_validate(question)


async def list_prompts(_ctx, _params):
    return types.ListPromptsResult.model_validate({"prompts": PROMPTS})


async def get_prompt(ctx, params):
    if params.name not in EVERYTHING["messages"]:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    messages = {"messages": messages_of(params.name, params.arguments or {})}
    return next_question(ctx, params, params.name) or types.GetPromptResult.model_validate(messages)


async def list_resources(_ctx, _params):
    return types.ListResourcesResult.model_validate({"resources": EVERYTHING["resources"]})


async def list_resource_templates(_ctx, _params):
    templates = {"resourceTemplates": EVERYTHING["resourceTemplates"]}
    return types.ListResourceTemplatesResult.model_validate(templates)


async def read_resource(_ctx, params):
    try:
        return types.ReadResourceResult.model_validate({"contents": contents_of(params.uri)})
    except KeyError:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri}) from None


async def complete(_ctx, _params):
    return types.CompleteResult(completion=types.Completion(values=[]))


async def accept(_ctx, _params):
    return types.EmptyResult()


server = Server(
    "everything-sdk2",
    version="1.0",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_resource_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=accept,
    on_unsubscribe_resource=accept,
    on_subscriptions_listen=ListenHandler(bus),
    on_completion=complete,
    on_set_logging_level=accept,
)
server.middleware.append(
    RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="everything-sdk2")
)

if __name__ == "__main__":
    anyio.run(serve, server.streamable_http_app(event_store=KeptEvents(), retry_interval=RETRY_MILLISECONDS))
