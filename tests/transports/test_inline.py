"""Coroutines that run without a task until they need one: each step of one's life, and any life there is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.transports.inline import Inline, in_task, woken

MINE = ContextVar("MINE", default=0)


@pytest.fixture(autouse=True)
def _mine():
    MINE.set(0)
    yield
    MINE.set(0)


class Spring:
    """A source."""

    def __init__(self):
        self.wake: Callable[[], None] | None = None

    def gush(self):
        assert self.wake is not None
        self.wake()


class Boom(Exception):
    """The error of a coroutine here."""


class Life:
    """A coroutine that is run inline: `told` is what it says, `changes` how often it was said to change."""

    def __init__(self, work):
        """`work(spring, say)` makes the coroutine."""
        self.spring = Spring()
        self.told: list[Any] = []
        self.changes = 0
        self.inline = Inline(work(self.spring, self.told.append), copy_context(), self._change)

    def _change(self):
        self.changes += 1


# Without an event loop


def test_it_shows_its_state():
    async def work(spring, _say):
        await woken(spring)
        await in_task()

    life = Life(work)
    life.inline.start()
    assert repr(life.inline) == "<Inline asleep>"
    life.spring.gush()
    assert repr(life.inline) == "<Inline waiting for a task>"
    life.inline.close()
    assert repr(life.inline) == "<Inline over>"


@pytest.mark.parametrize("begun", ["not begun", "asleep", "waiting for a task", "over"])
def test_closed_it_ends_as_a_generator_does(begun):
    async def work(spring, say):
        try:
            if begun != "over":
                await (woken(spring) if begun == "asleep" else in_task())
        finally:
            say(MINE.get())

    life = Life(work)
    if begun != "not begun":
        life.inline.start()
    MINE.set(7)
    for _ in range(2):
        life.inline.close()
        assert life.inline.is_over
        assert life.inline.error is None
        assert life.told == [0] * (begun != "not begun")  # in its own context
        assert (life.spring.wake, life.changes) == (None, 0)


# In a task


async def attend(life, scope=None):
    """Attend to it in a task like any other; whether that was cancelled."""
    scope = scope or trio.CancelScope()
    with scope:
        await life.inline
    return scope.cancelled_caught


@pytest.mark.parametrize("where", ["asleep", "asleep in task", "in task"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "while"])
async def test_cancelled_it_ends_as_any_task_does(where, before):
    async def work(spring, say):
        try:
            if where != "asleep":
                await in_task()
            if where == "in task":
                await trio.sleep_forever()
            await woken(spring)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.001)
            say("cancelled")
            raise
        finally:
            say("left")

    life = Life(work)
    life.inline.start()
    scope = trio.CancelScope()
    if before:
        scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attend, life, scope)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    assert scope.cancelled_caught
    assert life.told == ["cancelled", "left"]
    assert (life.inline.is_over, life.inline.error, life.spring.wake, life.changes) == (True, None, None, 0)


async def test_its_context_variables_stay_its_own_in_a_task():
    async def work(spring, say):
        MINE.set(1)
        await in_task()
        say(MINE.get())
        await woken(spring)
        MINE.set(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, say)
        say(MINE.get())

    async def note(say):
        say(MINE.get())

    life = Life(work)
    life.inline.start()
    MINE.set(7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attend, life)
        await trio.testing.wait_all_tasks_blocked()
        life.spring.gush()
    assert MINE.get() == 7
    assert life.told == [1, 2, 2]


class Large:
    """Something that is not to be kept."""


@pytest.mark.parametrize("sleeps", [True, False], ids=["after sleeping", "from the beginning"])
@pytest.mark.parametrize("how", ["raises", "raises unattended", "raises in task", "cancelled", "closed"])
async def test_what_it_had_goes_with_it_and_not_when_the_collector_comes(how, sleeps):
    had = []

    async def work(spring, _say):
        large = Large()
        had.append(weakref.ref(large))
        if sleeps:
            await woken(spring)
        if not how.startswith("raises") or how == "raises in task":
            await in_task()
            if how == "raises in task":
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep_forever()
        raise Boom(large)

    gc.collect()
    gc.disable()
    try:
        life = Life(work)
        if life.inline.start() and how != "cancelled":
            life.spring.gush()
        if how == "closed":
            life.inline.close()
        elif how == "cancelled":
            with trio.move_on_after(0):
                await life.inline
        elif how != "raises unattended":
            with suppress(Boom):
                await life.inline
        del life
        await trio.lowlevel.checkpoint()  # trio holds what it has raised here until it has another turn
        assert had[0]() is None
    finally:
        gc.enable()


# Any life

STEPS = ("sleep", "task", "gate", "turn", "raise")
DEEDS = ("wake", "attend", "cancel", "open", "turn", "wake and cancel")


class Script:
    """A coroutine that takes `steps`, and a task that may attend to it. `left`: how often it was left.

    Whatever waits for trio is preceded by `in_task`. `expected`: the changes that it is to be notified of.
    """

    def __init__(self, steps):
        self.steps = steps
        self.spring = Spring()
        self.gate = trio.Event()
        self.done = []
        self.left = 0
        self.changes = self.expected = 0
        self.scope = trio.CancelScope()
        self.attended = False
        self.raised = None
        self.inline = Inline(self._act(), copy_context(), self._change)

    def _change(self):
        self.changes += 1

    async def _act(self):
        try:
            for number, step in enumerate(self.steps, 1):
                MINE.set(number)
                await self._take(step)
                assert MINE.get() == number
                self.done.append(number)
        finally:
            self.left += 1
            assert MINE.get() == min(len(self.done) + 1, len(self.steps))

    async def _take(self, step):
        if step == "sleep":
            await woken(self.spring)
        elif step == "raise":
            raise Boom
        else:
            await in_task()
            if step == "gate":
                await self.gate.wait()
            elif step == "turn":
                await trio.lowlevel.checkpoint()

    def wake(self):
        if self.spring.wake is None:
            return
        count = len(self.done)
        self.spring.gush()
        # It runs on where it is woken, or in the task that attends to it, not in both.
        assert (len(self.done) > count) is not self.attended
        if not self.attended and not self.inline.is_asleep:
            self.expected += 1

    async def attend(self):
        try:
            with self.scope:
                await self.inline
        except Boom as boom:
            self.raised = boom

    def check(self):
        assert self.changes == self.expected <= 1
        assert self.done == [*range(1, len(self.done) + 1)]
        assert self.left == self.inline.is_over
        assert self.attended or {*self.steps[: len(self.done)]} <= {"sleep"}
        assert not (self.attended and self.inline.is_asleep)
        if self.inline.is_over or not (self.attended or self.inline.is_asleep):
            assert self.spring.wake is None
        if not self.attended and self.inline.is_asleep:
            assert self.spring.wake is not None


async def live(steps, deeds):
    script = Script(steps)
    MINE.set(7)
    asleep = script.inline.start()
    assert asleep == script.inline.is_asleep == (steps[:1] == ["sleep"])
    assert script.inline.is_over is (not steps or steps[0] == "raise")
    assert isinstance(script.inline.error, Boom) is (steps[:1] == ["raise"])
    script.check()
    async with trio.open_nursery() as nursery:
        for deed in (*deeds, "attend", "turn", "cancel", "turn"):
            if "wake" in deed:
                script.wake()
            if "cancel" in deed:
                script.scope.cancel()
            if deed == "attend" and not script.attended:
                script.attended = True
                nursery.start_soon(script.attend)
                await trio.testing.wait_all_tasks_blocked()
            elif deed == "open":
                script.gate.set()
            elif deed == "turn":
                await trio.testing.wait_all_tasks_blocked()
            if deed in ("attend", "turn"):
                script.check()
            assert MINE.get() == 7
    script.check()
    assert (script.inline.is_over, script.left) == (True, 1)
    whole = steps.index("raise") if "raise" in steps else len(steps)
    failed = script.raised is not None
    assert failed <= ("raise" in steps)
    assert len(script.done) == whole or (script.scope.cancelled_caught and len(script.done) < whole)
    assert failed == ("raise" in steps and len(script.done) == whole and not script.scope.cancelled_caught)


@example([], [])
@example(["task"], ["turn"])
@example(["raise"], ["turn"])
@example(["turn", "raise"], ["turn"])
@example(["sleep", "raise"], ["wake", "turn"])
@example(["sleep", "sleep", "task"], ["wake", "turn", "wake", "turn"])
@example(["sleep", "sleep", "sleep"], ["wake", "wake", "wake", "turn", "attend"])
@example(["sleep", "sleep", "sleep"], ["attend", "wake", "turn", "wake", "turn", "wake"])
@example(["sleep", "sleep"], ["wake", "attend", "wake and cancel"])
@example(["sleep", "gate"], ["cancel", "wake"])
@example(["sleep", "raise"], ["attend", "wake"])
@given(st.lists(st.sampled_from(STEPS), max_size=5), st.lists(st.sampled_from(DEEDS), max_size=10))
def test_any_life_is_lived_once_and_leaves_nothing_behind(steps, deeds):
    trio.run(partial(live, steps, deeds))
