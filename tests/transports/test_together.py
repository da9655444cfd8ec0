"""Coroutines that run side by side: without tasks, with them, failed and cancelled, in any order."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.transports.inline import BUNCH, in_task, together, woken
from tests.inline import run_inline


class Boom(Exception):
    """The error of one of them."""


class One:
    """One member, which takes its `steps` in turn. `ended` counts its ends."""

    def __init__(self, *steps):
        self.steps = steps
        self.wake = None
        self.gate = trio.Event()
        self.taken = 0
        self.ended = 0

    async def work(self):
        try:
            for step in self.steps:
                if step == "sleep":
                    await woken(self)
                elif step == "gate":
                    await in_task()
                    await self.gate.wait()
                else:
                    raise Boom
                self.taken += 1
        finally:
            self.ended += 1

    def go_on(self):
        if self.wake is not None:
            self.wake()


def works(all_of):
    return together([work.work() for work in all_of])


async def in_no_task(all_of):
    await run_inline(works(all_of))


@pytest.mark.parametrize("run", [works, in_no_task], ids=["in a task", "inline"])
async def test_all_run_until_the_last_is_over(run):
    all_of = [One("sleep", "sleep"), One(), One("sleep")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, all_of)
        await trio.testing.wait_all_tasks_blocked()
        (task,) = nursery.child_tasks
        for index in (0, 2, 0):
            assert not all(work.ended for work in all_of)
            assert not task.child_nurseries, "they sleep without tasks"
            all_of[index].go_on()
    assert [work.ended for work in all_of] == [1, 1, 1]


async def test_one_that_needs_a_task_does_not_keep_the_others():
    all_of = [One("gate"), One("sleep")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_no_task, all_of)
        await trio.testing.wait_all_tasks_blocked()
        all_of[1].go_on()
        await trio.testing.wait_all_tasks_blocked()
        assert [work.ended for work in all_of] == [0, 1]
        all_of[0].gate.set()
    assert [work.ended for work in all_of] == [1, 1]


@pytest.mark.parametrize("run", [works, in_no_task], ids=["in a task", "inline"])
async def test_what_one_raises_ends_the_others(run):
    all_of = [One("sleep"), One("sleep", "raise"), One("sleep")]

    async def fail():
        with pytest.raises(Boom):
            await run(all_of)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        all_of[1].go_on()
    assert [(work.taken, work.ended, work.wake) for work in all_of] == [
        (0, 1, None),
        (1, 1, None),
        (0, 1, None),
    ]


async def test_whatever_else_has_come_gets_its_turn_between_many():
    turns = []

    async def other():
        while True:
            turns.append(sum(work.ended for work in all_of))
            await trio.lowlevel.checkpoint()

    all_of = [One() for _ in range(3 * BUNCH)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await works(all_of)
        nursery.cancel_scope.cancel()
    assert any(0 < turn < len(all_of) for turn in turns)


STEPS = ("sleep", "sleep", "gate", "raise")


async def live(scripts, deeds, inline):
    all_of = [One(*steps) for steps in scripts]
    raised: list[Any] = []

    async def run(scope):
        with scope:
            try:
                await (in_no_task if inline else works)(all_of)
            except* Boom as booms:
                raised.extend(booms.exceptions)

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(run, scope)
        await trio.testing.wait_all_tasks_blocked()
        for index, deed in deeds:
            member = all_of[index % len(all_of)]
            if deed == "open":
                member.gate.set()
            elif deed == "wake":
                member.go_on()
            else:
                scope.cancel()
            if deed != "wake":
                await trio.testing.wait_all_tasks_blocked()
        while nursery.child_tasks:
            for member in all_of:
                member.gate.set()
                member.go_on()
            await trio.testing.wait_all_tasks_blocked()
    assert all(member.wake is None for member in all_of)
    assert all(member.ended == 1 for member in all_of)
    if not raised and not scope.cancelled_caught:
        assert [member.taken for member in all_of] == [len(member.steps) for member in all_of]
    if raised:
        assert any(member.steps[member.taken : member.taken + 1] == ("raise",) for member in all_of)


SCRIPTS = st.lists(st.lists(st.sampled_from(STEPS), max_size=4), min_size=1, max_size=4)
DEEDS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(("wake", "wake", "open", "cancel"))), max_size=10
)


@example([["sleep"], ["gate"]], [(0, "wake"), (0, "cancel")], True)
@example([["sleep", "raise"], ["sleep"]], [(0, "wake")], False)
@given(SCRIPTS, DEEDS, st.booleans())
def test_each_ends_once_whatever_comes_in_whatever_order(scripts, deeds, inline):
    trio.run(partial(live, scripts, deeds, inline))
