"""A client on the Python SDK 2.x, which speaks both eras. Run by the SDK's Python."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from walk import ROOT, Refused, called, main, raw, sampled

LISTING = {
    "resources/list": Client.list_resources,
    "resources/templates/list": Client.list_resource_templates,
    "tools/list": Client.list_tools,
    "prompts/list": Client.list_prompts,
}


def server_of(target):
    if "url" in target:
        return target["url"]
    command, *args = target["command"]
    return StdioServerParameters(command=command, args=args)


async def sample(_context, params):
    return types.CreateMessageResult.model_validate(sampled(raw(params)))


async def list_roots(_context):
    return types.ListRootsResult.model_validate({"roots": [ROOT]})


async def decline(_context, _params):
    return types.ElicitResult(action="decline")


ANSWERS: dict[str, Any] = {
    "sampling_callback": sample,
    "list_roots_callback": list_roots,
    "elicitation_callback": decline,
}


@asynccontextmanager
async def connect(target):
    answers = ANSWERS if target.get("answers", True) else {}
    async with Client(server_of(target), mode=target.get("mode", "auto"), cache=None, **answers) as client:

        async def ask(method, params):
            try:
                if method == "tools/call":
                    return await called(client.call_tool, params)
                return raw(await request(client, method, params))
            except MCPError as error:
                raise Refused(error.error.code, error.error.message, error.error.data) from error

        yield (
            {
                "revision": client.protocol_version,
                "server": client.server_info and client.server_info.name,
                "capabilities": raw(client.server_capabilities),
                "instructions": client.instructions,
            },
            ask,
        )


async def request(client, method, params):
    if method in LISTING:
        return await LISTING[method](client, **params)
    match method:
        case "resources/read":
            return await client.read_resource(params["uri"])
        case "prompts/get":
            return await client.get_prompt(params["name"], params.get("arguments"))
        case "completion/complete":
            ref = params["ref"]
            kind = types.ResourceTemplateReference if ref["type"] == "ref/resource" else types.PromptReference
            return await client.complete(kind.model_validate(ref), params["argument"])
        case "resources/subscribe":
            return await client.subscribe_resource(params["uri"])
        case "resources/unsubscribe":
            return await client.unsubscribe_resource(params["uri"])
        case "ping":
            return await client.send_ping()
    raise AssertionError(method)


if __name__ == "__main__":
    main(connect)
