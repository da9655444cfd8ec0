"""Clients of several replicas, which go on through every fault and note what they see.

A request that was refused, as busy or for want of a connection, is made again. One that may have been carried
out is made again only if it is read-only.
"""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

import h11
import trio

from tests.chaos.clients import ClientError, Connection, connect
from tests.chaos.cluster_laws import DONE, NOT_DONE, UNCLEAR, Laws
from tests.chaos.cluster_world import ERAS, token_of
from tests.peers.revision import LEGACY, MODERN, Json, make_fields, make_greeting, make_meta

HANG_SECONDS = 20.0  # in which any request has an answer, or its connection ends
AGAIN_SECONDS = 0.2  # about, until a client asks again
BUSY, LOST = -31003, -31001
UPDATED = "notifications/resources/updated"
PROGRESS = "notifications/progress"
SHARED = tuple(f"count:shared/{number}" for number in range(3))
STEPS = 5


class Answer(NamedTuple):
    """The outcome of one attempt. `message`: None without an answer. `status`: 0 when no head has come.

    `heard`: notifications on its way. `event_id`: of the last event. `reopened`: it was refused, or not sent,
    because there was no session any more; by now there is another one.
    """

    status: int
    message: Json | None
    heard: list[Json]
    event_id: str | None = None
    reopened: bool = False

    @property
    def outcome(self) -> str:
        """The client's knowledge about its request: DONE, NOT_DONE or UNCLEAR."""
        if self.message is not None and "result" in self.message:
            return DONE
        error = self.message.get("error") if self.message is not None else None
        if self.status == 503 or (error is not None and error["code"] == BUSY):
            return NOT_DONE
        if error is not None and error["code"] == LOST:
            return UNCLEAR if error.get("data", {}).get("mayHaveBeenCarriedOut") else NOT_DONE
        return UNCLEAR

    @property
    def is_strange(self) -> bool:
        """Whether a client need not expect this answer even during a fault."""
        if self.message is not None and "error" in self.message and self.status != 503:
            return self.message["error"]["code"] not in (BUSY, LOST)
        return self.status not in (0, 200, 202, 502, 503)


REOPENED = Answer(503, None, [], reopened=True)
"""The time to open a session is judged separately, as that takes many requests."""


class ChaosClient(ABC):
    """One client. `run` asks at random until `stopping` is set."""

    def __init__(self, name: str, principal: str, port: int, laws: Laws, seed: str) -> None:
        self.name, self.principal = name, principal
        self._port, self._laws = port, laws
        self.chance = random.Random(f"{seed} {name}")
        self._numbers = count(1)
        self.stopping = trio.Event()

    def __repr__(self) -> str:
        return f"{self.name} of {self.principal}"

    @property
    def info(self) -> Json:
        return {"name": self.name, "version": "1"}

    async def run(self, lanes: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(lanes):
                nursery.start_soon(self._ask_on)

    async def _ask_on(self) -> None:
        while not self.stopping.is_set():
            await trio.sleep(self.chance.uniform(0, 0.15))
            kinds = (self._read_count, self._read_own, self._work, self._work_long, self._write, self._list)
            await self.chance.choices(kinds, (8, 4, 4, 2, 1, 1))[0]()

    # Requests

    async def _read_count(self) -> None:
        uri = f"modern+{self.chance.choice(SHARED)}"
        due = self._laws.version_due(uri)
        version = await self._read(uri)
        if version < due:
            self._laws.break_law(f"{self} reads version {version} of {uri}, which had been {due} before")

    async def _read_own(self) -> None:
        uri = f"{self.chance.choice(ERAS)}+own:{self.name}/{next(self._numbers)}"
        reader = await self._read(uri)
        if uri.startswith("modern") and reader != self.name:
            self._laws.break_law(f"{self} has the answer of {reader}")

    async def _read(self, uri: str) -> Any:
        result = await self.insist("resources/read", {"uri": uri})
        [contents] = result["contents"]
        text = json.loads(contents["text"])
        if contents["uri"] != uri or text["uri"] != uri.partition("+")[2]:
            self._laws.break_law(f"{self} asks for {uri} and gets {contents}")
        return text["said"]

    async def _work(self) -> None:
        await self._call_work(self.chance.choice((0, 0, 20, 60)), 0)

    async def _work_long(self) -> None:
        await self._call_work(self.chance.choice((200, 600, 1200)), STEPS)

    async def _call_work(self, milliseconds: int, steps: int) -> None:
        arguments = {"ms": milliseconds, "steps": steps}
        era = self.chance.choice(ERAS)
        answer, sent = await self._call(era, "work", arguments)
        if answer is None:
            return
        expected = {**sent, "as": self.principal, "client": self.name}
        if era == "legacy":
            expected["client"] = None  # it has one session for all, and cannot tell who asks
        if answer != expected:
            self._laws.break_law(f"{self} wants {expected} and gets {answer}")

    async def _write(self) -> None:
        uri = self.chance.choice(SHARED)
        answer, sent = await self._call("modern", "write", {"uri": uri})
        if answer is None:
            return
        if (answer["id"], answer["uri"]) != (sent["id"], uri):
            self._laws.break_law(f"{self} writes {sent} and gets {answer}")
        self._laws.note_write(f"modern+{uri}", answer["version"])
        due = self._laws.version_due(f"modern+{uri}")
        version = await self._read(f"modern+{uri}")
        if version < due:
            self._laws.break_law(f"{self} reads version {version} of {uri} after {due}")

    async def _list(self) -> None:
        await self.insist("tools/list", {})

    async def insist(self, method: str, params: Json) -> Json:
        """Repeat a read-only request until there is a result, and return that."""
        began = time.monotonic()
        while True:
            answer = await self.attempt(method, params)
            if answer.outcome == DONE:
                assert answer.message is not None
                self._laws.note_operation(method, began)
                result: Json = answer.message["result"]
                return result
            self._laws.counts[f"again {method} {answer.status}"] += 1
            began = time.monotonic() if answer.reopened else began
            await self.pause()

    async def pause(self) -> None:
        await trio.sleep(self.chance.uniform(0.5, 1.5) * AGAIN_SECONDS)

    async def _call(self, era: str, tool: str, arguments: Json) -> tuple[Json | None, Json]:
        """Call a tool until it was not refused. Return its answer (None when it was lost) and its arguments.

        Each attempt has a new id, which distinguishes refused calls from those that were carried out.
        """
        began = time.monotonic()
        while True:
            attempted = time.monotonic()
            sent = {**arguments, "id": f"{self.name}/{next(self._numbers)}"}
            token = {"progressToken": sent["id"]} if arguments.get("steps") else {}
            answer = await self.attempt(
                "tools/call", {"name": f"{era}__{tool}", "arguments": sent, "_meta": token}
            )
            self._laws.note_call(sent["id"], answer.outcome, attempted)
            if answer.outcome == DONE:
                assert answer.message is not None
                self._laws.note_operation(tool if not token else f"long {tool}", began)
                self._judge_progress(sent, answer)
                return json.loads(answer.message["result"]["content"][0]["text"]), sent
            if answer.outcome == UNCLEAR:
                self._laws.note_operation(f"{tool} given up", began)
                return None, sent
            began = time.monotonic() if answer.reopened else began
            await self.pause()

    def _judge_progress(self, sent: Json, answer: Answer) -> None:
        progress = [message["params"] for message in answer.heard if message.get("method") == PROGRESS]
        steps = [params["progress"] for params in progress]
        if any(params["progressToken"] != sent["id"] for params in progress):
            self._laws.break_law(f"{self} hears of others: {progress}")
        if steps != list(range(1, sent.get("steps", 0) + 1)):
            self._laws.break_law(f"{self} hears of steps {steps} of {sent}")

    async def attempt(self, method: str, params: Json) -> Answer:
        """Ask once."""
        message = self.request(method, params)
        answer = await self.exchange("POST", message)
        answer_id = answer.message.get("id", message["id"]) if answer.message is not None else message["id"]
        if answer_id not in (message["id"], None):
            self._laws.break_law(f"{self} asks {message} and gets {answer}")
        if answer.is_strange:
            self._laws.break_law(f"{self} asks {message} and gets {answer}")
        return answer

    # HTTP

    @abstractmethod
    def request(self, method: str, params: Json) -> Json:
        """Make a request with a new id."""

    @abstractmethod
    def headers(self, message: Json | None) -> dict[str, str]:
        """Return the header fields of a message in the client's era."""

    async def exchange(self, verb: str, message: Json | None, more: dict[str, str] | None = None) -> Answer:
        """Make one HTTP exchange, up to the answer."""
        messages: list[Json] = []
        status, event_id = 0, None
        with trio.move_on_after(HANG_SECONDS) as patience:
            try:
                async with self.sent(verb, message, more) as connection:
                    status = connection.status
                    async with aclosing(connection.events()) as events:
                        async for said_id, received in events:
                            event_id = said_id or event_id
                            if received is not None and "method" not in received:
                                return Answer(status, received, messages, event_id)
                            if received is not None:
                                messages.append(received)
            except ClientError:
                if status != 200:
                    status = 0
        if patience.cancelled_caught:
            self._laws.break_law(f"{self} waits {HANG_SECONDS:g} s for {verb} {message}; so far {messages}")
        return Answer(status, None, messages, event_id)

    @asynccontextmanager
    async def sent(
        self, verb: str, message: Json | None, more: dict[str, str] | None = None
    ) -> AsyncIterator[Connection]:
        """Yield a connection on which the head of an answer has come. Raises ClientError."""
        headers = {"Host": f"127.0.0.1:{self._port}", "Authorization": f"Bearer {token_of(self.principal)}"}
        headers |= self.headers(message) | (more or {})
        self._laws.counts["requests"] += 1
        try:
            connection = await connect(self._port)
        except OSError as error:
            raise ClientError("haproxy does not listen") from error
        try:
            await connection.send(verb, headers, message, f"/mcp/{self.principal}")
            yield connection
        except (h11.RemoteProtocolError, trio.BrokenResourceError, json.JSONDecodeError) as error:
            raise ClientError(f"HTTP broke: {error!r}") from error
        finally:
            with trio.CancelScope(shield=True):
                await connection.stream.aclose()


class LegacyClient(ChaosClient):
    """It has a session with its own stream, and subscribes to `uris`."""

    def __init__(self, name: str, principal: str, port: int, laws: Laws, seed: str, uris: list[str]) -> None:
        super().__init__(name, principal, port, laws, seed)
        self._uris = uris
        self.session: str | None = None
        self._began = 0.0  # to open it
        self._opening = trio.Lock()
        self._is_subscribed = trio.Event()

    def request(self, method: str, params: Json) -> Json:
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}

    def headers(self, message: Json | None) -> dict[str, str]:
        return make_fields(LEGACY, message, self.session)

    async def open(self) -> None:
        """Open a session and subscribe."""
        async with self._opening:
            if self.session is not None:
                return
            began = time.monotonic()
            while self.session is None:
                attempted = time.monotonic()
                hello = make_greeting(LEGACY, self.info)
                try:
                    async with self.sent("POST", self.request("initialize", hello)) as connection:
                        answers = [message async for message in connection.messages()]
                        if connection.status == 200 and "result" in answers[-1]:
                            self.session, self._began = connection.headers["mcp-session-id"], attempted
                            break
                        if connection.status not in (502, 503):
                            self._laws.break_law(f"{self} says hello and gets {connection.status} {answers}")
                except ClientError:
                    pass
                await self.pause()
            self._laws.note_operation("initialize", began)
            session = self.session
        await self.tell_until(session, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        for uri in self._uris:
            await self.insist("resources/subscribe", {"uri": uri})
            if session == self.session:
                self._laws.note_subscribed(self.name, uri)

    async def tell_until(self, session: str, notification: Json) -> None:
        """Send a notification until a replica accepts it, or the session has ended."""
        began = time.monotonic()
        while session == self.session:
            answer = await self.exchange("POST", notification)
            if answer.status == 202:
                self._laws.note_operation("notification", began)
                return
            await self._look_at(answer, session)
            await self.pause()

    async def attempt(self, method: str, params: Json) -> Answer:
        if self.session is None:
            await self.open()
            return REOPENED
        session, began = self.session, time.monotonic()
        message = self.request(method, params)
        answer = await self.exchange("POST", message)
        if answer.message is None and answer.event_id is not None:
            answer = await self._resume(session, answer, began)
        if answer.message is not None and answer.message.get("id") not in (message["id"], None):
            self._laws.break_law(f"{self} asks {message} and gets {answer}")
        if await self._look_at(answer, session):
            return REOPENED  # a request in a session that is unknown is refused
        if answer.is_strange:
            self._laws.break_law(
                f"{self} asks {message} and gets {answer} after {time.monotonic() - began:.2f} s"
            )
        return answer

    async def _resume(self, session: str, answer: Answer, called: float) -> Answer:
        """Return the rest of the stream of a call whose connection has broken."""
        messages, event_id = list(answer.heard), answer.event_id
        began = time.monotonic()
        while session == self.session and event_id is not None:
            more = {"Last-Event-ID": event_id}
            rest = await self.exchange("GET", None, more)
            self._laws.counts["resumed call"] += 1
            if rest.event_id is not None and _number(rest.event_id) <= _number(event_id):
                self._laws.break_law(f"{self} hears event {rest.event_id} after {event_id}")
            messages += rest.heard
            event_id = rest.event_id or event_id
            if rest.message is not None and rest.status == 200:
                self._laws.note_operation("resuming a call", began)
                return Answer(200, rest.message, messages, event_id)
            if rest.status in (400, 404):
                if rest.status == 400:
                    self._laws.note_gone_stream(self.name, event_id, called)
                await self._look_at(rest, session)
                break
            await self.pause()
        return Answer(0, None, messages)

    async def _look_at(self, answer: Answer, session: str) -> bool:
        """Return whether an answer ends the session. Then there is soon another one."""
        if answer.status != 404:
            return False
        await self._lose(session)
        return True

    async def _lose(self, session: str) -> None:
        if session == self.session:
            self.session = None
            self._laws.note_lost_session(self.name, self._began)
        await self.open()

    async def listen(self) -> None:
        """Read the session's own stream until cancelled, from where it broke off."""
        last: str | None = None
        session: str | None = None
        began = time.monotonic()
        while True:
            if self.session != session or session is None:
                last, session = None, self.session
            if session is None:
                await self.open()
                continue
            try:
                more = {"Last-Event-ID": last} if last is not None else {}
                async with self.sent("GET", None, more) as connection:
                    if connection.status == 404:
                        await self._lose(session)
                    elif connection.status == 400:
                        self._laws.break_law(f"{self} cannot resume its stream after {last}")
                        last = None
                    elif connection.status == 200:
                        self._laws.note_operation("own stream", began)
                        async with aclosing(connection.events()) as events:
                            async for event_id, message in events:
                                last = self._take(event_id, message, last)
            except ClientError:
                pass
            began = time.monotonic()
            await self.pause()

    def _take(self, event_id: str | None, message: Json | None, last: str | None) -> str | None:
        if message is not None and message.get("method") == UPDATED:
            self._laws.note_heard(self.name, message["params"]["uri"])
        if event_id is None:
            return last
        if last is not None and _number(event_id) <= _number(last):
            self._laws.break_law(f"{self} hears event {event_id} after {last}")
        return event_id

    async def trespass(self, other: LegacyClient) -> None:
        """Ask in somebody else's session."""
        if other.session is None or other.principal == self.principal:
            return
        answer = await self.exchange(
            "POST", self.request("tools/list", {}), {"Mcp-Session-Id": other.session}
        )
        self._laws.counts["trespass"] += 1
        if answer.status not in (404, 502, 503, 0):
            self._laws.break_law(f"{self} gets {answer} in the session of {other}")

    async def close(self) -> None:
        """End the session."""
        session, began = self.session, time.monotonic()
        while session is not None:
            answer = await self.exchange("DELETE", None)
            if answer.status in (204, 404):
                self._laws.note_operation("DELETE", began)
                return
            await self.pause()


class ModernClient(ChaosClient):
    """It listens to `uris`."""

    def __init__(self, name: str, principal: str, port: int, laws: Laws, seed: str, uris: list[str]) -> None:
        super().__init__(name, principal, port, laws, seed)
        self._uris = uris

    def request(self, method: str, params: Json) -> Json:
        params = {**params, "_meta": {**make_meta(self.info), **params.get("_meta", {})}}
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}

    def headers(self, message: Json | None) -> dict[str, str]:
        return make_fields(MODERN, message)

    async def open(self) -> None:
        await self.insist("server/discover", {})

    async def listen(self) -> None:
        """Listen until cancelled, again whenever the listen ends. No change in between may be missed."""
        is_first = True
        began = time.monotonic()
        while True:
            wish = {"notifications": {"resourceSubscriptions": self._uris}}
            try:
                async with (
                    self.sent("POST", self.request("subscriptions/listen", wish)) as connection,
                    aclosing(connection.messages()) as messages,
                ):
                    async for message in messages:
                        if message.get("method") == "notifications/subscriptions/acknowledged":
                            self._laws.note_operation("listen", began)
                            for uri in self._uris if is_first else ():
                                self._laws.note_subscribed(self.name, uri)
                            is_first = False
                        elif message.get("method") == UPDATED:
                            self._laws.note_heard(self.name, message["params"]["uri"])
            except ClientError:
                pass
            began = time.monotonic()
            await self.pause()


def _number(event_id: str) -> int:
    return int(event_id.partition("-")[2])
