"""The lists and answers of the servers for the conformance suite, shared by both lines of the Python SDK.

Run by an SDK's Python, next to the server's own file. `everything.json` has all texts; a `$name` in it stands
for the argument of that name.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import uvicorn
from mcp.server.streamable_http import EventMessage, EventStore

EVERYTHING = json.loads(Path(__file__).with_name("everything.json").read_text())

TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, **tool} for name, tool in EVERYTHING["tools"].items()
]
PROMPTS = [
    {
        "name": name,
        "description": prompt["description"],
        "arguments": [{"name": argument, "required": True} for argument in prompt["arguments"]],
    }
    for name, prompt in EVERYTHING["prompts"].items()
]
DONE = {"content": [{"type": "text", "text": "done"}]}
PROGRESS = (0, 50, 100)
RETRY_MILLISECONDS = 100  # for a client whose stream was closed
RECONNECT_SECONDS = 0.2  # for that client to be back before the answer


def fill(value, arguments):
    """Return a value in which each `$name` is replaced by its argument."""
    match value:
        case str():
            for name, argument in arguments.items():
                value = value.replace(f"${name}", argument)
            return value
        case list():
            return [fill(item, arguments) for item in value]
        case dict():
            return {key: fill(item, arguments) for key, item in value.items()}
    return value


def result_of(tool):
    """Return the result of a tool once it has all that it needs; KeyError when there is no such tool."""
    if tool not in EVERYTHING["tools"]:
        raise KeyError(tool)
    return EVERYTHING["results"].get(tool, DONE)


def messages_of(prompt, arguments):
    """Return the messages of a prompt; KeyError when there is no such prompt."""
    return fill(EVERYTHING["messages"][prompt], arguments)


def contents_of(uri):
    """Return the contents of a resource; KeyError when there is no such resource."""
    return [{"uri": uri, **EVERYTHING["contents"][uri]}]


class KeptEvents(EventStore):
    """All events that were ever sent, so that a client can go on behind any of them."""

    def __init__(self):
        self._events = []

    async def store_event(self, stream_id, message):
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id, send_callback):
        last = int(last_event_id)
        stream = self._events[last - 1][0]
        for number, (stream_id, message) in enumerate(list(self._events[last:]), last + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def serve(app):
    """Serve an ASGI application on a free port, and say where."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])
