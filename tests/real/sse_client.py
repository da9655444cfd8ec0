"""The Python SDK 1.x as a client over HTTP+SSE. Prints JSON for each server. Run by the SDK's Python.

sse_client.py http://127.0.0.1:8000/sse …
"""

from __future__ import annotations

import json
import sys

import anyio
from mcp import ClientSession, McpError, types
from mcp.client.sse import sse_client

SECONDS = 90  # for one server; a client that hangs should report it, not be killed
DOCUMENT = "demo://resource/static/document/features.md"


def raw(model):
    """Return a model in its form on the wire."""
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


async def sample(_context, _params):
    content = types.TextContent(type="text", text="sampled")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


async def decline(_context, _params):
    return types.ElicitResult(action="decline")


async def see(url):
    progress, updated = [], anyio.Event()

    async def note_progress(done, total, _message):
        progress.append([done, total])

    async def hear(message):
        if getattr(getattr(message, "root", None), "method", "") == "notifications/resources/updated":
            updated.set()

    with anyio.fail_after(SECONDS):
        async with (
            sse_client(url) as streams,
            ClientSession(
                *streams, sampling_callback=sample, elicitation_callback=decline, message_handler=hear
            ) as session,
        ):
            hello = await session.initialize()

            async def call(name, **arguments):
                return raw(await session.call_tool(name, arguments, progress_callback=note_progress))

            seen = {
                "revision": hello.protocolVersion,
                "tools": raw(await session.list_tools())["tools"],
                "resources": raw(await session.list_resources())["resources"],
                "templates": raw(await session.list_resource_templates())["resourceTemplates"],
                "prompts": raw(await session.list_prompts())["prompts"],
                "contents": raw(await session.read_resource(DOCUMENT))["contents"],
                "called": await call("trigger-long-running-operation", duration=0.05, steps=2),
                "progress": list(progress),
                "sampled": await call("trigger-sampling-request", prompt="x", maxTokens=5),
                "declined": await call("trigger-elicitation-request"),
                "pong": raw(await session.send_ping()),
            }
            try:
                await session.get_prompt("no-such-prompt")
            except McpError as error:
                seen["error"] = error.error.code
            await session.subscribe_resource(DOCUMENT)
            await call("toggle-subscriber-updates")
            await updated.wait()
            await call("toggle-subscriber-updates")
    print(json.dumps(seen), flush=True)


async def main():
    for url in sys.argv[1:]:
        await see(url)


if __name__ == "__main__":
    anyio.run(main)
