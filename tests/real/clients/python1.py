"""A client on the Python SDK 1.x, of any of its releases. Run by the SDK's Python."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from functools import partial

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from walk import ROOT, Refused, called, main, raw, sampled

try:
    from mcp.client.streamable_http import streamablehttp_client
except ImportError:  # before 2025-03-26
    streamablehttp_client = None

try:
    TemplateReference = types.ResourceTemplateReference
except AttributeError:  # its older name
    TemplateReference = types.ResourceReference

LISTING = {
    "resources/list": "list_resources",
    "resources/templates/list": "list_resource_templates",
    "tools/list": "list_tools",
    "prompts/list": "list_prompts",
}


@asynccontextmanager
async def open_streams(target):
    if "url" in target:
        async with streamablehttp_client(target["url"]) as (receiving, sending, _session_id):
            yield receiving, sending
    else:
        command, *args = target["command"]
        async with stdio_client(StdioServerParameters(command=command, args=args)) as streams:
            yield streams


async def sample(_context, params):
    return types.CreateMessageResult.model_validate(sampled(raw(params)))


async def list_roots(_context):
    return types.ListRootsResult.model_validate({"roots": [ROOT]})


async def decline(_context, _params):
    return types.ElicitResult(action="decline")


def answers(target):
    """Return the callbacks that answer servers' requests, or none if the client is not to offer that."""
    if not target.get("answers", True):
        return {}
    callbacks = {"sampling_callback": sample, "list_roots_callback": list_roots}
    if "elicitation_callback" in inspect.signature(ClientSession).parameters:  # since 2025-06-18
        callbacks["elicitation_callback"] = decline
    return callbacks


@asynccontextmanager
async def connect(target):
    left = False
    try:
        async with open_streams(target) as streams, ClientSession(*streams, **answers(target)) as session:
            yield await greet(session), partial(ask, session)
            left = True
    except* anyio.BrokenResourceError:
        # The SDK's reader fails at notifications of the server while its client leaves.
        if not left:
            raise


async def greet(session):
    hello = raw(await session.initialize())
    return {
        "revision": hello["protocolVersion"],
        "server": hello["serverInfo"]["name"],
        "capabilities": hello["capabilities"],
        "instructions": hello.get("instructions"),
    }


async def ask(session, method, params):
    try:
        return await request(session, method, params)
    except McpError as error:
        raise Refused(error.error.code, error.error.message, error.error.data) from error


async def request(session, method, params):
    if method in LISTING:
        list_page = getattr(session, LISTING[method])
        page = raw(await list_page(*params.values()))
        if not inspect.signature(list_page).parameters:  # an SDK without cursors sees first pages only
            page.pop("nextCursor", None)
        return page
    match method:
        case "resources/read":
            return raw(await session.read_resource(params["uri"]))
        case "prompts/get":
            return raw(await session.get_prompt(params["name"], params.get("arguments")))
        case "tools/call":
            return await called(session.call_tool, params)
        case "completion/complete":
            ref = params["ref"]
            kind = TemplateReference if ref["type"] == "ref/resource" else types.PromptReference
            return raw(await session.complete(kind.model_validate(ref), params["argument"]))
        case "resources/subscribe":
            return raw(await session.subscribe_resource(params["uri"]))
        case "resources/unsubscribe":
            return raw(await session.unsubscribe_resource(params["uri"]))
        case "ping":
            return raw(await session.send_ping())
    raise AssertionError(method)


if __name__ == "__main__":
    main(connect)
