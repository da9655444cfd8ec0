"""A server that speaks one revision, offers all that this revision has, and judges the messages that it gets.

Its own messages are judged, too: a test must not rest on a server that no revision knows.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from tests.oracle import SchemaOracle
from tests.peers.http_server import HttpFace
from tests.peers.revision import CAPABILITIES, MODERN, Json
from tests.peers.server import CACHE, RpcFailure
from tests.peers.subscribable import Subscribable

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
OPENINGS = ("initialize", "server/discover")
ITEMS = 23  # resources; more than a page of mcpmux, which is more than a page of the server
SERVER_PAGE = 5
WATCHED = "memo:watched"
PICTURE = "iVBORw0KGgo="
SOUND = "UklGRg=="
SCHEMA: Json = {"type": "object", "properties": {"length": {"type": "integer"}}, "required": ["length"]}
FORM: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": "Name"}, "sure": {"type": "boolean"}},
    "required": ["name"],
}
QUESTIONS: dict[str, Json] = {
    "roots": {"method": "roots/list"},
    "sampling": {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
            "maxTokens": 5,
        },
    },
    "elicitation": {
        "method": "elicitation/create",
        "params": {"message": "Who are you?", "requestedSchema": FORM},
    },
    "page": {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in"},
    },
}
"""What the tool `ask` asks, by the value of its argument."""

FIRST_WITH = {
    "roots": "2024-11-05",
    "sampling": "2024-11-05",
    "elicitation": "2025-06-18",
    "page": "2025-11-25",
}
"""The revision that a question came with."""


def text(value: str) -> Json:
    return {"type": "text", "text": value}


class StrictServer(Subscribable):
    """`asked`: the method of each question that it asked, by id; `stopped`: calls that were taken back."""

    def __init__(self, revision: str) -> None:
        uris = [WATCHED, *(f"memo:{number}" for number in range(1, ITEMS))]
        super().__init__(revision, uris=uris, capabilities=self._all_of(revision))
        self.page_size = SERVER_PAGE
        self.lists = {
            "resources/list": ("resources", [self._described(uri, uri=uri) for uri in uris]),
            "resources/templates/list": (
                "resourceTemplates",
                [self._described("by number", uriTemplate="memo:{number}")],
            ),
            "tools/list": ("tools", self._tools()),
            "prompts/list": (
                "prompts",
                [self._described("greet", arguments=[{"name": "who", "required": True}])],
            ),
        }
        self.asked: dict[str, str] = {}
        self.began = trio.Event()
        self.stopped = trio.Event()
        self._declared: Json = {}
        self._answers: dict[str, trio.MemorySendChannel[Json]] = {}
        self._requests: dict[Any, str] = {}

    def _all_of(self, revision: str) -> Json:
        offered: Json = {
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "logging": {},
        }
        return offered | ({"completions": {}} if revision >= "2025-03-26" else {})

    def _described(self, name: str, **more: Any) -> Json:
        """Return an item with every describing member that the revision has."""
        item: Json = {"name": name, "description": f"about {name}", **more}
        if self.revision >= "2025-06-18":
            item |= {"title": name.title(), "_meta": {"example.com/kept": 1.0}}
        if self.revision >= "2025-11-25":
            item["icons"] = [{"src": "https://example.com/icon.png", "mimeType": "image/png"}]
        return item

    def _tools(self) -> list[Json]:
        names = ["count", "measure", "link", "sound", "ask", "wait", "complain"]
        tools = [self._described(name, inputSchema={"type": "object"}) for name in names]
        for tool in tools:
            if self.revision >= "2025-03-26":
                tool["annotations"] = {"title": tool["name"], "readOnlyHint": True}
            if self.revision >= "2025-06-18" and tool["name"] == "measure":
                tool["outputSchema"] = SCHEMA
        return tools

    # Messages that it receives

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        self._requests[message["id"]] = method
        if method == "initialize" and not self.modern:
            self._declared = params["capabilities"]
        handlers: dict[str, Callable[[Json, Json], Awaitable[Json]]] = {
            "resources/read": self._read,
            "completion/complete": self._complete,
            "prompts/get": self._get_prompt,
            "tools/call": self._call,
        }
        if not self.modern:
            handlers["logging/setLevel"] = self._set_level
        if method not in handlers:
            return await super().handle(method, params, message)
        result = await handlers[method](params, message)
        if self.modern:
            result = {"resultType": "complete", **result}
            result |= CACHE if method == "resources/read" else {}
        return result

    def take_answer(self, message: Json) -> None:
        self._answers[message["id"]].send_nowait(message)

    def judge(self) -> None:
        """Check all messages so far by the revision. Raises AssertionError.

        An opening question is one of the revision that it offers, as ours is not known yet.
        """
        for message in self.seen:
            method = message.get("method")
            if method in OPENINGS:
                offered = message["params"].get("protocolVersion", MODERN)
                SchemaOracle(offered).check_from_client(message)
            elif method is not None:
                self.oracle.check_from_client(message)
            else:
                self.oracle.check_from_client(message, self.asked[message["id"]])

    # Messages that it sends

    async def send(self, message: Json, about: Any = None) -> None:
        """Check and send. `about`: the request of a message, which only a transport with streams can show."""
        method = self._requests.get(message.get("id")) if "method" not in message else None
        if method is None or (method not in OPENINGS and not method.startswith("vendor/")):
            self.oracle.check_from_server({"jsonrpc": "2.0", **message}, method)
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        if isinstance(self._pipe, HttpFace):
            await self._pipe.send(data, about)
        else:
            await self._pipe.send(data)

    async def _read(self, params: Json, _message: Json) -> Json:
        uri = params["uri"]
        if uri == "memo:1":
            return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": PICTURE}]}
        if not uri.startswith("memo:"):
            code = -32602 if self.modern else -32002
            raise RpcFailure(code, "Resource not found", {"uri": uri})
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"the text of {uri}"}]}

    async def _complete(self, params: Json, _message: Json) -> Json:
        arguments_known = params.get("context", {}).get("arguments", {})
        value = "-".join([params["argument"]["value"], *arguments_known.values()])
        return {"completion": {"values": [value], "total": 1, "hasMore": False}}

    async def _get_prompt(self, params: Json, _message: Json) -> Json:
        resource = {"type": "resource", "resource": {"uri": "memo:2", "text": "embedded"}}
        blocks = [text(params["arguments"]["who"]), resource]
        blocks += [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]
        return {"messages": [{"role": "user", "content": block} for block in blocks]}

    async def _set_level(self, _params: Json, _message: Json) -> Json:
        return {}

    async def _call(self, params: Json, message: Json) -> Json:
        name, arguments = params["name"], params.get("arguments", {})
        tools = {
            "count": self._count,
            "measure": self._measure,
            "link": self._link,
            "sound": self._sound,
            "ask": self._ask,
            "wait": self._wait,
            "complain": self._complain,
        }
        if name not in tools:
            raise RpcFailure(-32602, f"Unknown tool: {name}")
        return await tools[name](arguments, params, message["id"])

    async def _count(self, _arguments: Json, params: Json, about: Any) -> Json:
        token = params["_meta"]["progressToken"]
        for step in (1, 2, 3):
            progress = {"progressToken": token, "progress": step, "total": 3}
            if self.revision >= "2025-03-26":
                progress["message"] = f"step {step}"
            await self.send({"method": "notifications/progress", "params": progress}, about)
        return {"content": [text("counted")]}

    async def _measure(self, arguments: Json, _params: Json, _about: Any) -> Json:
        measured = {"length": len(arguments["text"])}
        result: Json = {"content": [text(json.dumps(measured))]}
        return result | ({"structuredContent": measured} if self.revision >= "2025-06-18" else {})

    async def _link(self, _arguments: Json, _params: Json, _about: Any) -> Json:
        if self.revision < "2025-06-18":
            return {"content": [text("see memo:3")]}
        return {"content": [self._described("three", type="resource_link", uri="memo:3")]}

    async def _sound(self, _arguments: Json, _params: Json, _about: Any) -> Json:
        if self.revision < "2025-03-26":
            return {"content": [text("a sound")]}
        return {"content": [{"type": "audio", "data": SOUND, "mimeType": "audio/wav"}]}

    async def _wait(self, _arguments: Json, _params: Json, _about: Any) -> Json:
        self.began.set()
        try:
            await trio.sleep_forever()
        finally:
            self.stopped.set()
        raise AssertionError

    async def _complain(self, _arguments: Json, params: Json, about: Any) -> Json:
        if not self.modern or LOG_LEVEL in params["_meta"]:
            log = {"level": "warning", "logger": "it", "data": {"why": "asked to"}}
            await self.send({"method": "notifications/message", "params": log}, about)
        return {"content": [text("complained")]}

    async def _ask(self, arguments: Json, params: Json, about: Any) -> Json:
        """Ask the client, if this revision can ask that, and this client can be asked; tell its answer."""
        what = arguments["what"]
        declared = params["_meta"][CAPABILITIES] if self.modern else self._declared
        if self.revision < FIRST_WITH[what] or not self._offers(declared, what):
            return {"content": [text("not asked")]}
        question = QUESTIONS[what]
        if self.modern:
            if "inputResponses" not in params:
                return {
                    "resultType": "input_required",
                    "inputRequests": {"it": question},
                    "requestState": "s",
                }
            assert params["requestState"] == "s"
            answer = params["inputResponses"]["it"]
        else:
            answer = await self._question(question, about)
        return {"content": [text(json.dumps(answer))]}

    def _offers(self, declared: Json, what: str) -> bool:
        if what == "page":
            return "url" in declared.get("elicitation", {})
        return what in declared

    async def _question(self, question: Json, about: Any) -> Json:
        number = f"ask-{len(self.asked)}"
        self.asked[number] = question["method"]
        send, receive = trio.open_memory_channel[Json](1)
        self._answers[number] = send
        question = json.loads(json.dumps(question))
        if question.get("params", {}).get("mode") == "url":
            question["params"]["elicitationId"] = number
        await self.send({"id": number, **question}, about)
        message = await receive.receive()
        return message.get("result") or {"error": message["error"]["code"]}
