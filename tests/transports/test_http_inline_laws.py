"""The laws of handlers that run inline, for any bytes at any time on a connection:

each request has one answer, its own, in the order of the requests, and its handler begins when that of the
one before has ended; one that was called off may have the empty answer instead; each handler is left exactly
once; no task waits when the connection has ended.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mcpmux.transports.inline import in_task, woken
from tests.transports.test_http_server import TEXT, serving

PATIENCE = 30
LEARNED = 3  # requests after which a head is known, so that the next is received for while the task sleeps
ANSWER = re.compile(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n(<\d+>)?", re.DOTALL)

STEPS = ("sleep", "task", "gate")
DEEDS = ("wake", "open", "call off", "turn")
PLANS = st.lists(st.sampled_from(STEPS), max_size=3)


class Errand:
    """One request at its handler, which takes the steps of `plan`."""

    def __init__(self, plan, reply):
        self.plan = plan
        self.reply = reply
        self.wake = None
        self.gate = trio.Event()
        self.is_called_off = False
        self.left = 0

    async def run(self, body):
        try:
            for step in self.plan:
                if step == "sleep":
                    await woken(self)
                else:
                    await in_task()
                    if step == "gate":
                        await self.gate.wait()
            await self.reply.send(200, TEXT, b"<%b>" % body)
        finally:
            self.left += 1

    def go_on(self):
        if self.wake is not None:
            self.wake()
        self.gate.set()


class Conversation:
    """A client that sends one request after the other, and reads everything."""

    def __init__(self, stream):
        self.plans = []
        self.errands = []
        self._stream = stream
        self._heard = b""

    async def handle(self, request, reply):
        assert all(errand.left for errand in self.errands)
        errand = Errand(self.plans[len(self.errands)], reply)
        self.errands.append(errand)
        await errand.run(request.body)

    def say(self, plan, more=b""):
        """Send at once, so that it may meet anything that happens in the same turn."""
        body = b"%d" % len(self.plans)
        self.plans.append(plan)
        head = b"POST / HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (more, len(body))
        data = head + body
        assert os.write(self._stream.socket.fileno(), data) == len(data)

    def do(self, deed):
        """Do something to the request whose turn it is."""
        if not self.errands or self.errands[-1].left:
            return
        errand = self.errands[-1]
        if deed == "wake" and errand.wake is not None:
            errand.wake()
        elif deed == "open":
            errand.gate.set()
        elif deed == "call off":
            errand.is_called_off = True
            errand.reply.call_off("taken back")

    async def hear(self):
        async for part in self._stream:
            self._heard += part

    async def end(self):
        self.say([], b"Connection: close\r\n")
        while len(self.errands) < len(self.plans) or not self.errands[-1].left:
            await trio.testing.wait_all_tasks_blocked()
            for errand in self.errands:
                errand.go_on()

    def check(self):
        answers = [(int(status), body) for status, body in ANSWER.findall(self._heard)]
        assert len(answers) == len(self.errands) == len(self.plans)
        for number, (errand, answer) in enumerate(zip(self.errands, answers, strict=True)):
            assert errand.left == 1
            assert errand.wake is None
            own = (200, b"<%d>" % number)
            assert answer == own or (errand.is_called_off and answer == (202, b""))


async def converse(deeds, knows):
    started: dict[Any, Any] = {}

    async def handle(request, reply):
        await started["conversation"].handle(request, reply)

    async with serving(handle, inline=True) as server, await server.connect() as stream:
        started["conversation"] = conversation = Conversation(stream)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conversation.hear)
                for _ in range(LEARNED if knows else 0):
                    conversation.say([])
                    await trio.testing.wait_all_tasks_blocked()
                for deed in deeds:
                    if isinstance(deed, list):
                        conversation.say(deed)
                    elif deed == "turn":
                        await trio.testing.wait_all_tasks_blocked()
                    else:
                        conversation.do(deed)
                await conversation.end()
        conversation.check()


@pytest.mark.usefixtures("received")
@pytest.mark.parametrize("knows", [True, False], ids=["known", "unknown"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@example([[], []])
@example([["sleep", "sleep"], "turn", "wake", "turn", "wake"])
@example([["sleep", "gate"], "turn", "wake", "turn", "open", "turn", ["sleep", "gate"]])
@example([["gate", "sleep"], "turn", "open", "turn", "wake"])
@example([["sleep", "gate"], [], "turn", "wake", "turn", "open"])
@example([["sleep"], "turn", [], "wake"])
@example([["sleep", "task"], "turn", "wake", "call off", []])
@example([["sleep"], ["sleep"], "turn", "wake", "call off"])
@example([["sleep", "gate"], "turn", "wake", "turn", "call off", "call off", ["sleep"]])
@given(st.lists(st.one_of(PLANS, st.sampled_from(DEEDS)), max_size=12))
def test_each_request_has_its_own_answer_whatever_comes_when(knows, deeds):
    trio.run(partial(converse, deeds, knows))
