"""A fast reference upstream, behind mcpmux or alone as the baseline.

Promises: every answer is encoded before the first request comes, so that an exchange costs the transport and
little else; there are only those checks that a benchmark needs. It answers both eras; `--era legacy` refuses
`server/discover`, by which mcpmux recognizes the era. Over HTTP (JSON answers, or each in an event stream,
the default of the official libraries) or over standard input and output.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import click
import msgspec
import trio

from mcpmux.config import ServerTls
from mcpmux.errors import TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, SERVER_INFO
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR
from mcpmux.protocol.revisions import LEGACY as LEGACY_REVISIONS
from mcpmux.protocol.revisions import NEWEST, negotiate_legacy
from mcpmux.transports.http.message import HeaderFields, HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.inline import in_task
from mcpmux.transports.sse import encode_event
from mcpmux.transports.stdio import open_stdio_stream
from mcpmux.transports.tls import CurrentContext, server_context

MODERN, LEGACY = "modern", "legacy"
TEXT_BYTES = 1024  # of a listed resource, and of the tool's answer
LARGE_BYTES = 2 * 2**20
LARGE_URI = "bench:///large"
TOOL = "report"
MESSAGE_BYTES = 2**20  # longest request over standard input
SERVER = {"name": "mcpmux-benchmark-upstream", "version": "1"}
OFFERED: dict[str, Any] = {"capabilities": {"resources": {}, "tools": {}}}
JSON: HeaderFields = (("Content-Type", "application/json"),)
EVENTS: HeaderFields = (("Content-Type", "text/event-stream"),)
OPENED: HeaderFields = (*JSON, ("Mcp-Session-Id", "benchmark"))

_WORDS = "All work and no play makes a dull resource. "


def item_uri(number: int) -> str:
    """Return the URI of a listed resource."""
    return f"bench:///item/{number}"


class Params(msgspec.Struct):
    """The parameters that choose an answer."""

    uri: str | None = None
    cursor: str | None = None
    protocolVersion: str | None = None  # noqa: N815 - the protocol's spelling


class Asked(msgspec.Struct):
    """A request or notification, as far as it matters here."""

    method: str
    id: msgspec.Raw = msgspec.Raw()
    params: Params = msgspec.field(default_factory=Params)


class Site:
    """Every answer of one upstream, encoded. `answer` is all there is to it."""

    def __init__(self, era: str, items: int, page: int, ttl_ms: int = 0) -> None:
        """Encode all answers. `ttl_ms`: of all of them, which are public then; 0: no answer may be cached."""
        self._finish = partial(as_modern, ttl_ms) if era == MODERN else msgspec.json.encode
        self._contents = {uri: self._contents_of(uri, TEXT_BYTES) for uri in map(item_uri, range(items))}
        self._contents[LARGE_URI] = self._contents_of(LARGE_URI, LARGE_BYTES)
        self._pages = self._pages_of(items, page)
        self._fixed = self._fixed_answers(era)
        self._opened = {revision: self._opened_in(revision) for revision in LEGACY_REVISIONS}
        self._decode = msgspec.json.Decoder(Asked).decode

    def __repr__(self) -> str:
        return f"<Site {len(self._contents)} resources in {len(self._pages)} pages>"

    def answer(self, body: bytes) -> tuple[str, bytes | None]:
        """Return (method, encoded answer) of a message; None is the answer to a notification."""
        try:
            request = self._decode(body)
        except msgspec.DecodeError:
            return "", error_to(b"null", PARSE_ERROR, "Parse error")
        request_id, method, params = bytes(request.id), request.method, request.params
        if not request_id:
            return method, None
        if method == m.RESOURCES_READ:
            result = self._contents.get(params.uri or "")
        elif method == m.RESOURCES_LIST:
            result = self._pages.get(params.cursor or "")
        elif method == m.INITIALIZE:
            result = self._opened[negotiate_legacy(params.protocolVersion or "")]
        else:
            result = self._fixed.get(method)
            if result is None:
                return method, error_to(request_id, METHOD_NOT_FOUND, "Method not found")
        if result is None:
            return method, error_to(request_id, INVALID_PARAMS, "Nothing is there")
        return method, reply_to(request_id, result)

    def _contents_of(self, uri: str, size: int) -> bytes:
        return self._finish({"contents": [{"uri": uri, "mimeType": "text/plain", "text": _text(size, uri)}]})

    def _pages_of(self, items: int, page: int) -> dict[str, bytes]:
        """Return pages by cursor; the first page's cursor is ""."""
        pages = {}
        for start in range(0, items, page):
            end = min(start + page, items)
            result: dict[str, Any] = {"resources": [_listed(number) for number in range(start, end)]}
            if end < items:
                result["nextCursor"] = str(end)
            pages[str(start) if start else ""] = self._finish(result)
        return pages

    def _opened_in(self, revision: str) -> bytes:
        """Return the answer to `initialize` in the revision that was asked for."""
        return self._finish({"protocolVersion": revision, "serverInfo": SERVER, **OFFERED})

    def _fixed_answers(self, era: str) -> dict[str, bytes]:
        tool = {"name": TOOL, "inputSchema": {"type": "object"}}
        answers: dict[str, dict[str, Any]] = {
            m.PING: {},
            m.TEMPLATES_LIST: {"resourceTemplates": []},
            m.TOOLS_LIST: {"tools": [tool]},
            m.TOOLS_CALL: {"content": [{"type": "text", "text": _text(TEXT_BYTES)}]},
        }
        if era == MODERN:
            answers[m.DISCOVER] = {"supportedVersions": [NEWEST], **OFFERED}
        return {method: self._finish(result) for method, result in answers.items()}


def as_modern(ttl_ms: int, result: Mapping[str, Any]) -> bytes:
    """Encode a result of the modern era; `ttl_ms`: see Site."""
    freshness = {"ttlMs": ttl_ms, "cacheScope": "public" if ttl_ms else "private"}
    return msgspec.json.encode({"resultType": "complete", **result, **freshness, META: {SERVER_INFO: SERVER}})


def _text(size: int, begin: str = "") -> str:
    """Return a text that begins with `begin`: a capture scans equal texts once only."""
    return (begin + _WORDS * (size // len(_WORDS) + 1))[:size]


def _listed(number: int) -> dict[str, str]:
    return {
        "uri": item_uri(number),
        "name": f"item-{number}",
        "title": f"Item {number}",
        "description": "One of the resources of the benchmark's upstream.",
        "mimeType": "text/plain",
    }


def reply_to(request_id: bytes, result: bytes) -> bytes:
    """Return the answer with an encoded result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


def error_to(request_id: bytes, code: int, message: str) -> bytes:
    """Return the answer that is an error."""
    error = msgspec.json.encode({"code": code, "message": message})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, error)


def refuse(_status: int, sentence: str, _limit: str) -> tuple[HeaderFields, bytes]:
    """Return the answer to what is no request. See `serve_http`."""
    return JSON, error_to(b"null", INVALID_PARAMS, sentence)


class Delays(NamedTuple):
    """Seconds that an answer takes, as it would where work is done."""

    page: float = 0.0
    read: float = 0.0

    def of(self, method: str) -> float:
        """Return the seconds that the answer to a request takes."""
        return {m.RESOURCES_LIST: self.page, m.RESOURCES_READ: self.read}.get(method, 0.0)


async def handle(site: Site, delays: Delays, streams: bool, request: HttpRequest, reply: HttpReply) -> None:
    """Answer one HTTP request; with `streams`, in an event stream, whose end is a separate packet."""
    if request.method != "POST":
        await reply.send(405, ())
        return
    method, answer = site.answer(request.body)
    if answer is None:
        await reply.send(202, ())
        return
    seconds = delays.of(method)
    if seconds:
        await in_task()
        await trio.sleep(seconds)
    if method == m.INITIALIZE:
        await reply.send(200, OPENED, answer)
    elif streams:
        await reply.open(200, EVENTS, encode_event(answer, event="message"))
    else:
        await reply.send(200, JSON, answer)


async def serve_sites(
    site: Site, ports: list[int], delays: Delays, streams: bool, tls: CurrentContext | None
) -> None:
    """Serve `site` on every port, printing each URL, until cancelled. With `tls` over HTTPS."""
    handler = partial(handle, site, delays, streams)
    async with trio.open_nursery() as nursery:
        for port in ports:
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
            serve = partial(serve_http, refuse=refuse, stopping=trio.Event(), tls=tls, inline=True)
            await nursery.start(serve, listeners, handler)
            click.echo(f"{'https' if tls else 'http'}://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp")


async def serve_stdio(site: Site) -> None:
    """Serve the parent process until it closes our standard input."""
    async with open_stdio_stream(MESSAGE_BYTES) as pipe:
        with suppress(TransportClosed):
            while True:
                _, answer = site.answer(await pipe.receive())
                if answer is not None:
                    await pipe.send(answer)


@click.command()
@click.option("--era", type=click.Choice([MODERN, LEGACY]), default=MODERN, show_default=True)
@click.option("--items", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@click.option(
    "--page", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Items in a page."
)
@click.option("--page-ms", type=click.FloatRange(0, 10_000), default=0, help="What a page of a list takes.")
@click.option("--read-ms", type=click.FloatRange(0, 10_000), default=0, help="What a read takes.")
@click.option(
    "--ttl-ms", type=click.IntRange(0), default=0, help="How long answers may be used; modern only."
)
@click.option("--port", "ports", type=int, multiple=True, help="Serve HTTP there; 0 is any. May be repeated.")
@click.option("--streams", is_flag=True, help="Answer each request over HTTP in an event stream.")
@click.option("--tls", type=click.Path(exists=True), help="PEM file with key and certificate: serve HTTPS.")
@click.option("--stdio", is_flag=True, help="Serve standard input and output instead.")
@click.option("--core", type=int, help="Run on this processor core only.")
def main(
    era: str,
    items: int,
    page: int,
    page_ms: float,
    read_ms: float,
    ttl_ms: int,
    ports: tuple[int, ...],
    streams: bool,
    tls: str | None,
    stdio: bool,
    core: int | None,
) -> None:
    """Serve a fast MCP server to measure against. Prints one URL for each port."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    site = Site(era, items, page, ttl_ms)
    if stdio:
        trio.run(serve_stdio, site)
    else:
        delays = Delays(page_ms / 1000, read_ms / 1000)
        context = None if tls is None else server_context(ServerTls(certificate=tls))
        secured = None if context is None else lambda: context
        trio.run(serve_sites, site, list(ports or (0,)), delays, streams, secured)


if __name__ == "__main__":
    main()
