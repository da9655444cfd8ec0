"""An upstream whose resource changes on demand: a POST to `/change` is one change.

Promises: each listen is notified by one write; the answer to `/change` is the time when that began, in
nanoseconds of the machine's monotonic clock, which all its processes share. It speaks the modern era alone,
and keeps no more of the protocol than a subscriber of one resource needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import click
import trio

from benchmarks.upstream import EVENTS, JSON, as_modern, error_to, refuse, reply_to
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, SUBSCRIPTION_ID
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Request, decode_fields, decode_message, encode_notification, raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import NEWEST
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.sse import encode_event

URI = "bench:///changing"
CHANGE_PATH = "/change"


class Notifier:
    """One resource, and who listens to it: open replies with what goes around each of their messages."""

    def __init__(self) -> None:
        self._listens: dict[HttpReply, Fields] = {}

    def __repr__(self) -> str:
        return f"<Notifier {len(self._listens)} listens>"

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one HTTP request."""
        if request.path == CHANGE_PATH:
            await reply.send(200, JSON, b"%d" % await self._change())
            return
        message = decode_message(request.body) if request.method == "POST" else None
        if not isinstance(message, Request):
            await reply.send(405 if message is None else 202, ())
        elif message.method == m.LISTEN:
            await self._listen(message, reply)
        elif message.method in ANSWERS:
            await reply.send(200, JSON, reply_to(bytes(raw(message.id)), ANSWERS[message.method]))
        else:
            await reply.send(404, JSON, error_to(bytes(raw(message.id)), METHOD_NOT_FOUND, message.method))

    async def _change(self) -> int:
        began = time.monotonic_ns()
        for reply, meta in list(self._listens.items()):
            params = {"uri": raw(URI), META: raw(meta)}
            await reply.write(encode_event(encode_notification(m.RESOURCE_UPDATED, params)))
        return began

    async def _listen(self, request: Request, reply: HttpReply) -> None:
        """Agree to everything, then keep the stream open until the client goes."""
        meta = {SUBSCRIPTION_ID: raw(request.id)}
        agreed = {"notifications": decode_fields(request.params)["notifications"], META: raw(meta)}
        await reply.open(200, EVENTS, encode_event(encode_notification(m.ACKNOWLEDGED, agreed)))
        self._listens[reply] = meta
        try:
            await trio.sleep_forever()
        finally:
            del self._listens[reply]


RESULTS: Mapping[str, Mapping[str, Any]] = {
    m.DISCOVER: {"supportedVersions": [NEWEST], "capabilities": {"resources": {"subscribe": True}}},
    m.RESOURCES_LIST: {"resources": [{"uri": URI, "name": "changing"}]},
    m.TEMPLATES_LIST: {"resourceTemplates": []},
    m.RESOURCES_READ: {"contents": [{"uri": URI, "mimeType": "text/plain", "text": "changed"}]},
}
ANSWERS = {method: as_modern(0, result) for method, result in RESULTS.items()}


async def serve() -> None:
    """Serve on any port, printing the URL, until cancelled."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    click.echo(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp")
    await serve_http(listeners, Notifier().handle, refuse=refuse, stopping=trio.Event())


@click.command()
@click.option("--core", type=int, help="Run on this processor core only.")
def main(core: int | None) -> None:
    """Serve one resource that changes on demand. Prints its URL."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    trio.run(serve)


if __name__ == "__main__":
    main()
