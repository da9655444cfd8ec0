"""A server on the Python SDK 1.x with all that the conformance suite asks of the 2025 revisions, over HTTP.

It says `listening on http://127.0.0.1:PORT/mcp` on standard output.
"""

import contextlib

import anyio
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
from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import McpError
from mcp.shared.message import ServerMessageMetadata
from starlette.applications import Starlette
from starlette.routing import Mount

NOT_FOUND = -32002
ANSWERS = {
    "sampling/createMessage": types.CreateMessageResult,
    "elicitation/create": types.ElicitResult,
    "roots/list": types.ListRootsResult,
}
OWN_HOSTS = ["127.0.0.1:*", "localhost:*"]


class ChangingServer(Server):
    """Says that its lists change, which the transport would not say of itself."""

    def create_initialization_options(self, notification_options=None, experimental_capabilities=None):
        changing = NotificationOptions(tools_changed=True, prompts_changed=True)
        return super().create_initialization_options(changing, experimental_capabilities)


server = ChangingServer("everything-sdk1", "1.0")


@server.list_tools()
async def list_tools():
    return [types.Tool.model_validate(tool) for tool in TOOLS]


@server.call_tool(validate_input=False)
async def call_tool(name, arguments):
    ctx = server.request_context
    for text in EVERYTHING["logs"].get(name, ()):
        await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
    await push(ctx, name, arguments)
    if name == "test_tool_with_progress" and ctx.meta is not None and ctx.meta.progressToken is not None:
        for progress in PROGRESS:
            await ctx.session.send_progress_notification(
                ctx.meta.progressToken, progress, 100, related_request_id=str(ctx.request_id)
            )
    elif name == "test_reconnection":
        await ctx.close_sse_stream()
        await anyio.sleep(RECONNECT_SECONDS)
    elif name == "test_trigger_tool_change":
        await ctx.session.send_tool_list_changed()
    elif name == "test_trigger_prompt_change":
        await ctx.session.send_prompt_list_changed()
    return types.CallToolResult.model_validate(result_of(name))


async def push(ctx, name, arguments):
    """Ask what a tool or prompt asks by requests of our own, one after the other."""
    for requests in EVERYTHING["rounds"].get(name, []):
        for request in requests.values():
            await ctx.session.send_request(
                types.ServerRequest.model_validate(fill(request, arguments)),
                ANSWERS[request["method"]],
                metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
            )


@server.list_prompts()
async def list_prompts():
    return [types.Prompt.model_validate(prompt) for prompt in PROMPTS]


@server.get_prompt()
async def get_prompt(name, arguments):
    await push(server.request_context, name, {})
    return types.GetPromptResult.model_validate({"messages": messages_of(name, arguments or {})})


@server.list_resources()
async def list_resources():
    return [types.Resource.model_validate(resource) for resource in EVERYTHING["resources"]]


@server.list_resource_templates()
async def list_resource_templates():
    return [types.ResourceTemplate.model_validate(template) for template in EVERYTHING["resourceTemplates"]]


async def read_resource(request):
    """Read a resource. Registered without the SDK's decorator, which would encode the contents twice."""
    uri = str(request.params.uri)
    try:
        contents = contents_of(uri)
    except KeyError:
        raise McpError(
            types.ErrorData(code=NOT_FOUND, message="Resource not found", data={"uri": uri})
        ) from None
    return types.ServerResult(types.ReadResourceResult.model_validate({"contents": contents}))


server.request_handlers[types.ReadResourceRequest] = read_resource


@server.subscribe_resource()
async def subscribe(_uri):
    pass


@server.unsubscribe_resource()
async def unsubscribe(_uri):
    pass


@server.set_logging_level()
async def set_level(_level):
    pass


@server.completion()
async def complete(_ref, _argument, _context):
    return types.Completion(values=[])


manager = StreamableHTTPSessionManager(
    server,
    event_store=KeptEvents(),
    retry_interval=RETRY_MILLISECONDS,
    security_settings=TransportSecuritySettings(
        allowed_hosts=OWN_HOSTS, allowed_origins=[f"http://{host}" for host in OWN_HOSTS]
    ),
)


@contextlib.asynccontextmanager
async def lifespan(_app):
    async with manager.run():
        yield


async def handle(scope, receive, send):
    await manager.handle_request(scope, receive, send)


if __name__ == "__main__":
    anyio.run(serve, Starlette(routes=[Mount("/", app=handle)], lifespan=lifespan))
