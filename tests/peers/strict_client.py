"""A client that speaks one revision, and judges all messages to and from it by that schema."""

from __future__ import annotations

import json
from typing import Any

import trio

from mcpmux.errors import TransportClosed
from tests.oracle import SchemaOracle
from tests.peers.client import ScriptedClient
from tests.peers.revision import MODERN, Json

PATIENCE = 30  # seconds, virtual ones over pipes

ANSWERS: dict[str, Json] = {
    "roots/list": {"roots": [{"uri": "file:///home", "name": "home"}]},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "ho"},
        "model": "m",
        "stopReason": "endTurn",
    },
    "elicitation/create": {"action": "accept", "content": {"name": "x", "sure": True}},
}


def all_capabilities(revision: str) -> Json:
    """Return everything that a client of a revision can offer."""
    offered: Json = {"roots": {} if revision == MODERN else {"listChanged": True}, "sampling": {}}
    if revision >= "2025-11-25":
        offered["elicitation"] = {"form": {}, "url": {}}
    elif revision >= "2025-06-18":
        offered["elicitation"] = {}
    return offered


def answer_to(question: Json) -> Json:
    """Return the answer of this client's user."""
    if question.get("params", {}).get("mode") == "url":
        return {"action": "accept"}
    return ANSWERS[question["method"]]


class StrictClient(ScriptedClient):
    """`run` has to run. `heard` has every notification, `questions` everything that it was asked."""

    def __init__(self, pipe: Any, revision: str) -> None:
        super().__init__(pipe)
        self.revision = revision
        self.capabilities = all_capabilities(revision)
        self.log_level: str | None = None
        self.heard: list[Json] = []
        self.questions: list[Json] = []
        self._answers: dict[Any, Json] = {}
        self._arrival = trio.lowlevel.ParkingLot()

    @property
    def modern(self) -> bool:
        return self.revision == MODERN

    async def run(self) -> None:
        """Hear until the stream ends."""
        while True:
            try:
                message = await self.receive_raw()
            except TransportClosed:
                return
            await self._take(message)
            self._arrival.unpark_all()

    async def _take(self, message: Json) -> None:
        method = None if "method" in message else self._methods[message["id"]]
        self.check(message, method)
        if method is not None:
            assert message["id"] not in self._answers, "answered twice"
            self._answers[message["id"]] = message
        elif "id" in message:
            assert not self.modern, "a request to a client of 2026-07-28"
            self.questions.append(message)
            await self.send({"id": message["id"], "result": answer_to(message)}, message["method"])
        else:
            self.heard.append(message)

    def check(self, message: Json, method: str | None) -> None:
        """Check also that a legacy client gets no field of 2026-07-28, which its loose schema would admit."""
        super().check(message, method)
        if not self.modern:
            assert not message.get("result", {}).keys() & {"resultType", "ttlMs", "cacheScope"}
            assert "io.modelcontextprotocol/" not in json.dumps(message.get("result", message))

    # Messages that it sends

    async def send(self, message: Json, method: str | None = None) -> None:
        """Send a message, which answers a request with `method` unless that is None."""
        if not message.get("method", "").startswith("vendor/"):
            SchemaOracle(self.revision).check_from_client({"jsonrpc": "2.0", **message}, method)
        await super().send(message)

    async def hello(self) -> Json:
        """Discover or initialize, and return what the server says about itself."""
        if self.modern:
            return await self.request("server/discover")
        return await self.initialize(self.revision)

    def params(self, params: Json | None = None, **meta: Any) -> Json:
        if self.modern and self.log_level:
            meta["io.modelcontextprotocol/logLevel"] = self.log_level
        return super().params(params, **meta)

    async def answer(self, request_id: int) -> Json:
        """Wait for the answer to a request that was started."""
        with trio.fail_after(PATIENCE):
            while request_id not in self._answers:
                await self._arrival.park()
        return self._answers[request_id]

    async def call(self, name: str, **arguments: Any) -> Json:
        """Call a tool; what is asked on the way is answered, as the era does it."""
        params: Json = {"name": name, "arguments": arguments}
        result = await self.request("tools/call", params)
        while result.get("resultType") == "input_required":
            questions = result["inputRequests"]
            self.questions += questions.values()
            again = {key: answer_to(question) for key, question in questions.items()}
            more = {"inputResponses": again, "requestState": result["requestState"]}
            result = await self.request("tools/call", params | more)
        return result

    async def cancel(self, request_id: int) -> None:
        await self.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})

    async def hear(self, method: str, **params: Any) -> Json:
        """Wait for a notification whose parameters have these members; it is taken out of `heard`."""
        with trio.fail_after(PATIENCE):
            while True:
                for message in self.heard:
                    received = message.get("params", {})
                    if message["method"] == method and params.items() <= received.items():
                        self.heard.remove(message)
                        return message
                await self._arrival.park()

    def was_answered(self, request_id: int) -> bool:
        return request_id in self._answers
