"""Tasks that do one piece of work after the other."""

from __future__ import annotations

import gc
import weakref
from contextlib import asynccontextmanager
from contextvars import ContextVar

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.runtime.clerk import FREE_LIMIT, Clerks

MANY = 2 * FREE_LIMIT


class Desk:
    """Gives work that notes who did it, and how it went."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.clerks = Clerks()
        self.begun: list[object] = []
        self.done: list[object] = []
        self.cancelled: list[object] = []
        self.tasks: dict[object, trio.lowlevel.Task] = {}

    def give(self, name: object, *, seconds: float = 0, checkpoint: bool = True):
        async def work() -> None:
            self.begun.append(name)
            self.tasks[name] = trio.lowlevel.current_task()
            try:
                if checkpoint:
                    await trio.sleep(seconds)
            except trio.Cancelled:
                self.cancelled.append(name)
                raise
            self.done.append(name)

        return self.clerks.give(self.nursery, work)


@asynccontextmanager
async def open_desk():
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery)
        yield desk
        desk.clerks.dismiss()


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_all_work_begins_at_once_however_long_other_work_takes(autojump_clock):
    async with open_desk() as desk:
        for number in range(MANY):
            desk.give(number, seconds=10)
        await quiet()
        assert sorted(desk.begun) == list(range(MANY))
        await trio.sleep(10)
        for number in range(MANY, 2 * MANY):  # now that some are free
            desk.give(number, seconds=10)
        await quiet()
        assert len(desk.begun) == 2 * MANY


async def test_a_free_clerk_takes_the_next_work(autojump_clock):
    async with open_desk() as desk:
        for name in "abc":
            desk.give(name, seconds=1)
            await trio.sleep(2)
        assert desk.done == ["a", "b", "c"]
        assert len(set(desk.tasks.values())) == 1


async def test_only_so_many_clerks_stay_for_more_work(autojump_clock):
    async with open_desk() as desk:
        for number in range(MANY):
            desk.give(number)
        await trio.sleep(1)
        assert len(desk.done) == MANY
        assert len(desk.nursery.child_tasks) == FREE_LIMIT


async def test_cancelling_touches_no_other_work_and_the_clerk_goes_on(autojump_clock):
    async with open_desk() as desk:
        first, _ = desk.give("first", seconds=5), desk.give("second", seconds=5)
        await quiet()
        first.cancel("not wanted")
        await quiet()
        assert desk.cancelled == ["first"]
        desk.give("third", seconds=5)
        await trio.sleep(6)
        assert sorted(desk.done) == ["second", "third"]
        assert desk.tasks["third"] is desk.tasks["first"]


async def test_work_that_was_cancelled_before_it_began_ends_at_its_first_checkpoint(autojump_clock):
    async with open_desk() as desk:
        desk.give("first")
        await quiet()
        desk.give("second", seconds=5).cancel("not wanted")  # a free clerk is about to take it
        desk.give("third", seconds=5).cancel("not wanted")  # a new one
        await quiet()
        assert sorted(desk.begun) == ["first", "second", "third"]
        assert sorted(desk.cancelled) == ["second", "third"]


async def test_cancelling_what_is_done_does_nothing_to_the_work_that_follows(autojump_clock):
    async with open_desk() as desk:
        job = desk.give("first")
        await quiet()
        desk.give("second", seconds=5)
        await quiet()
        job.cancel("too late")
        await trio.sleep(6)
        assert desk.done == ["first", "second"]
        assert desk.tasks["first"] is desk.tasks["second"]


async def test_cancelling_work_that_never_waits_does_nothing_to_the_work_that_follows(autojump_clock):
    async with open_desk() as desk:
        desk.give("zeroth")  # from now on a clerk is free
        await quiet()
        desk.give("first", checkpoint=False).cancel("too late")
        await quiet()
        desk.give("second", seconds=5)  # whoever has done the first takes it, too
        await trio.sleep(6)
        assert desk.done == ["zeroth", "first", "second"]
        assert desk.tasks["first"] is desk.tasks["second"]
        assert not desk.cancelled


async def test_work_that_is_given_while_clerks_are_cancelled_is_still_begun():
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            desk = Desk(nursery)
            desk.give("before")
            await quiet()
            scope.cancel()  # the clerk that is free will not come back
            desk.give("after", seconds=1)
    assert desk.begun == ["before", "after"]
    assert desk.cancelled == ["after"]


async def test_clerks_work_in_the_context_of_their_peer_whoever_gives_the_work():
    name: ContextVar[str] = ContextVar("name", default="nobody")
    seen: list[str] = []

    async def work() -> None:
        seen.append(name.get())

    async with trio.open_nursery() as nursery:
        name.set("peer")
        clerks = Clerks()
        name.set("another")
        clerks.give(nursery, work)
        await quiet()
        clerks.give(nursery, work)
        clerks.dismiss()
    assert seen == ["peer", "peer"]


async def test_dismissed_clerks_finish_what_was_given_and_go(autojump_clock):
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery)
        desk.give("done before")
        await quiet()
        desk.give("worked on", seconds=5)
        desk.give("just given", seconds=5)
        desk.clerks.dismiss()
    assert sorted(desk.done) == ["done before", "just given", "worked on"]
    assert trio.current_time() < 6


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.none() | st.integers(0, 9)),
        min_size=1,
        max_size=20,
    )
)
def test_each_work_ends_as_it_would_in_a_task_of_its_own(plans: list[tuple[int, int, int | None]]):
    """Each plan: when it is given, how long it takes, after how long it is cancelled."""
    ended: dict[int, tuple[str, float]] = {}

    async def main() -> None:
        clerks = Clerks()

        async def follow(number: int, start: int, seconds: int, cancelled_after: int | None) -> None:
            async def work() -> None:
                how = "cancelled"
                try:
                    await trio.sleep(seconds * 2 + 1)
                    how = "done"
                finally:
                    assert number not in ended
                    ended[number] = how, round(trio.current_time() - began)

            await trio.sleep(start)
            began = trio.current_time()
            job = clerks.give(nursery, work)
            if cancelled_after is not None:
                await trio.sleep(cancelled_after * 2)
                job.cancel("planned")

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as planning:
                for number, plan in enumerate(plans):
                    planning.start_soon(follow, number, *plan)
            clerks.dismiss()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    for number, (_, seconds, cancelled_after) in enumerate(plans):
        takes = seconds * 2 + 1
        cut = cancelled_after is not None and cancelled_after * 2 < takes
        assert ended[number] == (("cancelled", (cancelled_after or 0) * 2) if cut else ("done", takes))


class Work:
    """Work of which it can be told whether anybody still has it."""

    async def __call__(self) -> None:
        await trio.sleep(1)


async def test_a_clerk_that_waits_keeps_nothing_of_what_it_has_done(autojump_clock):
    """What it did last may hold a client's whole request, and another one may never come."""
    async with open_desk() as desk:
        for cancelled in (False, True, False):
            work = Work()
            alive = weakref.ref(work)
            job = desk.clerks.give(desk.nursery, work)
            await quiet()
            if cancelled:
                job.cancel("for a test")
            del work, job
            await trio.sleep(2)
            await quiet()
            gc.collect()  # a cancellation leaves a circle of traceback and frame
            assert alive() is None
