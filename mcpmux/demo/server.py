"""The framework of the bundled servers: lists and responses, served on standard input and output.

It serves modern clients (2026-07-28) and legacy ones alike, unless it is to know one old revision only. It
lists in pages, and refuses unknown methods. Its description is in a file of TOML next to its module.
"""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import resources
from itertools import islice
from types import MappingProxyType
from typing import Any

import trio

from mcpmux import __version__
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    META,
    PROGRESS_TOKEN,
    SERVER_INFO,
    VERSION,
    Call,
    Event,
    Notify,
    check_call,
    upgrade_result,
)
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Request, decode_any, raw
from mcpmux.protocol.era import downgrade_error, downgrade_result
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import SUPPORTED, negotiate_legacy
from mcpmux.transports.inline import in_task
from mcpmux.transports.message_stream import MessageStream
from mcpmux.transports.stdio import open_stdio_stream

LINGER_SECONDS = 1.0  # to answer requests from before the client closed its side
MESSAGE_BYTES = 2**20  # longest request

Json = dict[str, Any]

Report = Callable[[float, float, str], Awaitable[None]]
"""Sends (progress, total, message) to the client if it wants progress."""

Answer = Callable[[Json, Report], Awaitable[Json]]
"""Takes the params of a request or the arguments of a tool; returns the result or raises RpcError."""

Answers = Mapping[str, Answer]

Read = Callable[[str], list[Json] | None]
"""The contents at a URI, None when there are none."""


def describe(name: str) -> Json:
    """Return the contents of the file next to the module of a bundled server."""
    return tomllib.loads(resources.files("mcpmux.demo").joinpath(f"{name}.toml").read_text("utf-8"))


class DemoServer:
    """One server. `about`: the contents of the file next to its module.

    Members of `about`: `instructions`; lists under their names in results, such as `tools`; how long a page
    is; `revision`: the only one that the server speaks, a legacy one; without it, all.
    """

    def __init__(
        self, name: str, about: Json, read: Read, tools: Answers, answers: Answers = MappingProxyType({})
    ) -> None:
        """`tools`: what they do, by name. `answers`: further methods -> their results."""
        self._info = raw({"name": f"mcpmux-demo-{name}", "version": __version__})
        self._page_size = about.get("page_size", 100)
        self._revision = about.get("revision")
        self._contents = read
        self._tools = tools
        self._answers = {m.RESOURCES_READ: self._read, m.TOOLS_CALL: self._call, **answers}
        self._lists = {
            method: about[list_.items] for method, list_ in m.LISTS.items() if list_.items in about
        }
        offered = {m.LISTS[method].capability for method in self._lists}
        if m.COMPLETE in answers:
            offered.add("completions")
        capabilities = raw({capability: {} for capability in sorted(offered)})
        self._facts = {"capabilities": capabilities, "instructions": raw(about.get("instructions", ""))}

    async def serve(self, messages: MessageStream) -> None:
        """Serve the client at the other end until it is gone and every request is answered."""
        async with open_duplex_channel(
            messages, lambda _: None, self.answer, linger=LINGER_SECONDS
        ) as channel:
            await channel.ended.wait()

    async def answer(self, request: Request, notify: Notify) -> Fields:
        """Answer one request in its era. Raises RpcError."""
        await in_task()  # tools sleep
        call = Call.of(request.method, request.payload)
        if self._revision is None and (VERSION in call.meta or call.method == m.DISCOVER):
            check_call(call)
            return await self._exchange(call, notify)
        if call.method == m.INITIALIZE:
            revision = self._revision or negotiate_legacy(call.text("protocolVersion") or "")
            return {"protocolVersion": raw(revision), **self._facts, "serverInfo": self._info}
        if call.method == m.PING:
            return {}
        try:
            return downgrade_result(await self._exchange(call, notify))
        except RpcError as error:
            raise downgrade_error(call.method, error) from None

    async def _exchange(self, call: Call, notify: Notify) -> Fields:
        """Return the result in the shape of 2026-07-28."""
        params = {key: decode_any(value) for key, value in call.params.items()}
        result: Json
        if call.method == m.DISCOVER and self._revision is None:
            result = {"supportedVersions": SUPPORTED, **self._facts}
        elif call.method in self._lists:
            result = self._page(call.method, params)
        elif call.method in self._answers:
            result = await self._answers[call.method](params, partial(_report, call, notify))
        else:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        fields = {key: raw(value) for key, value in result.items()}
        fields[META] = raw({SERVER_INFO: self._info})
        return upgrade_result(call.method, fields)

    async def _read(self, params: Json, _report: Report) -> Json:
        uri = required_text(params, "uri")
        contents = self._contents(uri)
        if contents is None:
            raise unknown("Resource", "uri", uri)
        return {"contents": contents}

    async def _call(self, params: Json, report: Report) -> Json:
        name, arguments = required_text(params, "name"), object_at(params, "arguments")
        if name not in self._tools:
            raise unknown("Tool", "name", name)
        return await self._tools[name](arguments, report)

    def _page(self, method: str, params: Json) -> Json:
        cursor = "0" if params.get("cursor") is None else params["cursor"]
        if not isinstance(cursor, str) or not cursor.isdecimal() or len(cursor) >= 10:
            raise RpcError(INVALID_PARAMS, "Invalid cursor")
        items, start = self._lists[method], int(cursor)
        end = start + self._page_size
        result: Json = {m.LISTS[method].items: list(islice(items, start, end))}
        if end < len(items):
            result["nextCursor"] = str(end)
        return result


async def _report(call: Call, notify: Notify, progress: float, total: float, message: str) -> None:
    if call.wants_progress:
        params = {"progress": raw(progress), "total": raw(total), "message": raw(message)}
        await notify(Event(m.PROGRESS, {PROGRESS_TOKEN: call.meta[PROGRESS_TOKEN], **params}))


def required_text(params: Json, key: str) -> str:
    """Return the string at `key`. Raises RpcError if there is none."""
    value = params.get(key)
    if isinstance(value, str):
        return value
    raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be a string')


def object_at(params: Json, key: str) -> Json:
    """Return the object at `key`, or an empty one. Raises RpcError if it is something else."""
    value = params.get(key, {})
    if isinstance(value, dict):
        return value
    raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be an object')


def unknown(kind: str, key: str, value: str) -> RpcError:
    """Return the error for something that does not exist: `unknown("Resource", "uri", "book:///x")`."""
    return RpcError(INVALID_PARAMS, f"{kind} not found: {value}", {key: value})


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def tool_failure(reason: str) -> Json:
    """Return the result of a tool that failed, with the reason for the model."""
    return {"content": [text_block(reason)], "isError": True}


def run_server(server: DemoServer) -> None:
    """Serve the program that started this process, until it closes standard input."""

    async def serve() -> None:
        async with open_stdio_stream(MESSAGE_BYTES) as messages:
            await server.serve(messages)

    trio.run(serve)
