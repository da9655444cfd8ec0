"""Answers of web servers that are no answers in MCP, and what mcpmux is to say about them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from tests.peers.revision import Json
from tests.peers.web import JSON, SSE

HTML = (("Content-Type", "text/html"),)
PAGE = b"<html><body>Welcome to nginx!</body></html>"

Bad = Callable[[Json, Any], Awaitable[None]]


def status(code: int, body: bytes = b"", headers: Any = HTML) -> Bad:
    async def answer(_message: Json, reply: Any) -> None:
        await reply.send(code, headers, body)

    return answer


def stream(data: bytes) -> Bad:
    async def answer(_message: Json, reply: Any) -> None:
        await reply.open(200, SSE, data)

    return answer


async def say_nothing(_message: Json, _reply: Any) -> None:
    await trio.sleep_forever()


async def stream_for_ever(_message: Json, reply: Any) -> None:
    await reply.open(200, SSE, b": wait\n\n")
    await trio.sleep_forever()


async def answer_somebody_else(_message: Json, reply: Any) -> None:
    await reply.send(200, JSON, b'{"jsonrpc": "2.0", "id": "not ours", "result": {}}')


async def answer_with_a_list(message: Json, reply: Any) -> None:
    body: Json = {"jsonrpc": "2.0", "id": message.get("id"), "result": []}
    await reply.send(200, JSON, json.dumps(body).encode())


def saying(code: int) -> dict[str, Bad]:
    """Return answers of a status with each kind of body."""
    bodies = {
        "nothing": b"",
        "a page": PAGE,
        "garbage": b"\x00\xff\xfe",
        "a string": b'"Bad Request"',
        "an error without id": b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"No session"},"id":null}',
        "an error with a foreign id": b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"No"},"id":"s"}',
        "an error of its own": b'{"error":"unauthorized_client"}',
    }
    return {f"{code} with {name}": status(code, body) for name, body in bodies.items()}


SILENT = "did not answer"


def patience(words: str) -> Json:
    """Return an upstream's settings. Only silence has a short timeout: a busy machine may answer late."""
    return {"connect_timeout": 0.5} if words == SILENT else {}


# By name: how it answers, and a pattern of the words about it that its operator reads.
NO_ANSWER: dict[str, tuple[Bad, str]] = {
    "silence": (say_nothing, SILENT),
    "a stream that never says anything": (stream_for_ever, SILENT),
    "garbage": (status(200, b"\x00\xff\xfe\x80", JSON), "is no JSON-RPC response to the request"),
    "a page": (
        status(200, PAGE),
        r"is no JSON-RPC response .*MCP endpoint; it is of text/html .*Welcome",
    ),
    "nothing": (status(200), "its answer is empty: check that the URL is that of an MCP endpoint"),
    "a compressed answer": (
        status(200, gzip.compress(b"{}"), (*JSON, ("Content-Encoding", "gzip"))),
        r"its answer is compressed.*\(gzip\)",
    ),
    "an array": (status(200, b"[]", JSON), "is no JSON-RPC response to the request"),
    "a number": (status(200, b"7", JSON), "is no JSON-RPC response to the request"),
    "a result that is a list": (answer_with_a_list, "result is not an object"),
    "the answer to another request": (answer_somebody_else, "is no JSON-RPC response to the request"),
    "a stream that ends": (stream(b""), "stream ended without an answer"),
    "a stream of garbage": (stream(b"\xff\xfe\n\ndata: {\n\n"), "stream ended without an answer"),
    "an accepted request": (status(202), "it took the request and gave no answer"),
    "no content": (status(204), "HTTP status 204"),
    "a redirect": (
        status(307, b"", (("Location", "https://elsewhere.example/mcp"),)),
        "it redirects to 'https://elsewhere.example/mcp': give that URL",
    ),
    "a redirect to nowhere": (status(302), "HTTP status 302"),
    "a failure": (status(500, b"out of memory"), r"HTTP status 500 \(Internal Server Error\): out of memory"),
    "a bad gateway": (status(502, PAGE), r"HTTP status 502 \(Bad Gateway\): .*Welcome to nginx"),
    "too many requests": (status(429, b"slow down"), r"HTTP status 429 \(Too Many Requests\): slow down"),
    "a bad request": (status(400, PAGE), r"HTTP status 400 \(Bad Request\): .*Welcome to nginx"),
    "a wrong path": (status(404, PAGE), "nothing there speaks MCP: check the URL's path"),
    "a wrong method": (status(405), "nothing there accepts MCP messages: check the URL's path"),
}
DENIED: dict[str, tuple[Bad, str]] = {
    "no credentials": (status(401, PAGE), "give them in the upstream's `headers`"),
    "wrong credentials": (status(403, PAGE), "it refuses these credentials"),
}
