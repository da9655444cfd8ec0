"""An upstream whose resource changes on demand: a POST to `/change` is one change.

Promises: each listen is notified by one write; the answer to `/change` is the time when that began, in
nanoseconds of the machine's monotonic clock, which all its processes share. It speaks the modern era alone,
and keeps no more of the protocol than a subscriber of one resource needs.
"""

from __future__ import annotations

import os
import time
from typing import Any

import click
import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, SERVER_INFO, SUBSCRIPTION_ID
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import (
    Request,
    decode_fields,
    decode_message,
    encode_error,
    encode_notification,
    encode_reply,
    raw,
)
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import NEWEST
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.sse import encode_event

URI = "bench:///changing"
CHANGE_PATH = "/change"
SERVER = {"name": "mcpmux-benchmark-notifier", "version": "1"}
JSON = (("Content-Type", "application/json"),)
STREAM = (("Content-Type", "text/event-stream"),)


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
        elif (result := _answers().get(message.method)) is not None:
            await reply.send(200, JSON, encode_reply(message.id, result))
        else:
            error = RpcError(METHOD_NOT_FOUND, "Method not found")
            await reply.send(404, JSON, encode_error(message.id, error))

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
        await reply.open(200, STREAM, encode_event(encode_notification(m.ACKNOWLEDGED, agreed)))
        self._listens[reply] = meta
        try:
            await trio.sleep_forever()
        finally:
            del self._listens[reply]


def _answers() -> dict[str, dict[str, Any]]:
    resources = {"resources": [{"uri": URI, "name": "changing"}]}
    discovered = {"supportedVersions": [NEWEST], "capabilities": {"resources": {"subscribe": True}}}
    contents = {"contents": [{"uri": URI, "mimeType": "text/plain", "text": "changed"}]}
    answers: dict[str, dict[str, Any]] = {
        m.DISCOVER: discovered,
        m.RESOURCES_LIST: resources,
        m.TEMPLATES_LIST: {"resourceTemplates": []},
        m.RESOURCES_READ: contents,
    }
    common = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", META: {SERVER_INFO: SERVER}}
    return {method: {**common, **result} for method, result in answers.items()}


async def serve() -> None:
    """Serve on any port, printing the URL, until cancelled."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    click.echo(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp")
    await serve_http(listeners, Notifier().handle, refuse=_refuse, stopping=trio.Event())


def _refuse(_status: int, sentence: str, _limit: str) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return JSON, encode_error(None, RpcError(METHOD_NOT_FOUND, sentence))


@click.command()
@click.option("--core", type=int, help="Run on this processor core only.")
def main(core: int | None) -> None:
    """Serve one resource that changes on demand. Prints its URL."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    trio.run(serve)


if __name__ == "__main__":
    main()
