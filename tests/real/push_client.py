"""A real SDK's client that subscribes, and prints its notifications as JSON lines. Run by the SDK's Python.

    push_client.py '{"url": "http://127.0.0.1:8000/mcp", "mode": "legacy", "uris": ["memo://text"]}'

`mode` is for the SDK 2.x only, as in `clients`. A session of the 2025 revisions subscribes to each URI,
a client of 2026-07-28 opens one listen. The first document is `{"agreed": [URI, …]}`; then each notification
as `{"method": …, "uri": …}`, until the program is ended. A URI on a line of standard input is read at once:
`{"read": URI, "text": …}`.
"""

from __future__ import annotations

import json
import sys

import anyio

try:
    from mcp import Client
    from mcp.client.subscriptions import ResourceUpdated

    SDK = 2
except ImportError:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    SDK = 1

MODERN = "2026-07-28"


def say(**document):
    print(json.dumps(document), flush=True)


async def tell(message):
    """Print a message that the server sends in a session of the 2025 revisions."""
    notification = getattr(message, "root", message)
    method = getattr(notification, "method", None)
    if method is not None:
        uri = getattr(notification.params, "uri", None)
        say(method=method, uri=str(uri) if uri is not None else None)


async def subscribe(session, uris):
    for uri in uris:
        await session.subscribe_resource(uri)
    say(agreed=uris)
    await obey(session)
    await anyio.sleep_forever()


async def obey(session):
    async for line in anyio.wrap_file(sys.stdin):
        uri = line.strip()
        result = await session.read_resource(uri)
        say(read=uri, text=result.contents[0].text)


async def listen(client, uris):
    async with (
        anyio.create_task_group() as reading,
        client.listen(resource_subscriptions=uris, resources_list_changed=True) as events,
    ):
        reading.start_soon(obey, client)
        say(agreed=list(events.honored.resource_subscriptions or ()))
        async for event in events:
            if isinstance(event, ResourceUpdated):
                say(method="notifications/resources/updated", uri=event.uri)
            else:
                say(method="notifications/resources/list_changed", uri=None)
    sys.exit("the listen has ended")


async def main():
    target = json.loads(sys.argv[1])
    if SDK == 1:
        async with (
            streamable_http_client(target["url"]) as (receiving, sending, *_),
            ClientSession(receiving, sending, message_handler=tell) as session,
        ):
            await session.initialize()
            await subscribe(session, target["uris"])
    async with Client(target["url"], mode=target["mode"], cache=None, message_handler=tell) as client:
        if client.protocol_version == MODERN:
            await listen(client, target["uris"])
        else:
            await subscribe(client, target["uris"])


if __name__ == "__main__":
    anyio.run(main)
