"""One wait for many sockets: who is woken, when, and that others are not held up. With epoll and without."""

from __future__ import annotations

import errno
import os
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcpmux.transports import waiting as module
from mcpmux.transports.polling import open_readiness_poller
from mcpmux.transports.waiting import FEW, MOST_AT_ONCE, MOST_LINGERED, has_epoll

BOTH = pytest.mark.usefixtures("received")
EPOLL = pytest.mark.skipif(not has_epoll, reason="Linux only")
PATIENCE = 30


class Bell:
    """A descriptor that is readable when it has been rung."""

    def __init__(self):
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self.heard = 0
        self.event = trio.Event()

    def ring(self):
        os.eventfd_write(self.descriptor, 1)

    def hear(self):
        os.eventfd_read(self.descriptor)
        self.heard += 1
        self.event.set()

    def close(self):
        os.close(self.descriptor)


@contextmanager
def bells(poller, number):
    """Open as many watched sockets."""
    made = [Bell() for _ in range(number)]
    try:
        for bell in made:
            poller.watch(bell.descriptor, bell.hear)
        yield made
    finally:
        for bell in made:
            poller.forget(bell.descriptor)
            bell.close()


async def heard(bell):
    with trio.fail_after(PATIENCE):
        await bell.event.wait()
    bell.event = trio.Event()


@BOTH
async def test_who_is_watched_is_told_each_time():
    async with open_readiness_poller() as poller:
        with bells(poller, 3) as (first, second, silent):
            for _ in range(3):
                first.ring()
                second.ring()
                await heard(first)
                await heard(second)
        assert (first.heard, second.heard, silent.heard) == (3, 3, 0)


@BOTH
async def test_who_was_forgotten_is_not_told_even_when_both_were_ready():
    async with open_readiness_poller() as poller:
        with bells(poller, 2) as (first, second):
            for bell, other in ((first, second), (second, first)):

                def hear(bell=bell, other=other):
                    bell.hear()
                    poller.forget(other.descriptor)

                poller.forget(bell.descriptor)
                poller.watch(bell.descriptor, hear)
            first.ring()
            second.ring()
            with trio.move_on_after(PATIENCE):
                while not first.heard + second.heard:
                    await trio.lowlevel.checkpoint()
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        assert first.heard + second.heard == 1


@BOTH
async def test_a_mistake_of_one_does_not_touch_the_others():
    def fail() -> None:
        raise ZeroDivisionError

    async with open_readiness_poller() as poller:
        with bells(poller, 2) as (good, bad), capture_logs() as logs:
            poller.forget(bad.descriptor)
            poller.watch(bad.descriptor, fail)
            bad.ring()
            good.ring()
            await heard(good)
            good.ring()
            await heard(good)
    assert [entry["event"] for entry in logs] == ["what was received could not be taken"]


@BOTH
@pytest.mark.parametrize("number", [1, 200])
async def test_other_tasks_have_their_turn_however_much_there_is_to_tell(number):
    """Make each woken socket ready again."""
    count, turns, over = 0, [], False
    async with open_readiness_poller() as poller, trio.open_nursery() as nursery:
        with bells(poller, number) as rung:

            def hear_of(bell):
                def hear():
                    nonlocal count
                    count += 1
                    bell.hear()
                    if not over:
                        bell.ring()

                return hear

            for bell in rung:
                poller.forget(bell.descriptor)
                poller.watch(bell.descriptor, hear_of(bell))
                bell.ring()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
                turns.append(count)
            over = True
            nursery.cancel_scope.cancel()
    steps = [after - earlier for earlier, after in pairwise(turns)]
    assert max(steps) > 0
    most = MOST_AT_ONCE + MOST_LINGERED if module.has_epoll else number
    assert max(steps) <= 2 * most  # trio may give each task two turns in a row


@EPOLL
async def test_with_many_busy_connections_it_does_not_linger(monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", PATIENCE)
    async with open_readiness_poller() as poller:
        with bells(poller, FEW + 1) as rung, trio.fail_after(PATIENCE / 2):
            for bell in rung:
                bell.ring()
            for bell in rung:
                await heard(bell)


@EPOLL
async def test_who_was_woken_is_not_kept_waiting_by_lingering(monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", PATIENCE)  # no other task would get beyond that
    async with open_readiness_poller() as poller:
        with bells(poller, 1) as (bell,):
            poller.forget(bell.descriptor)

            def hear():
                bell.hear()
                poller.give_way()

            poller.watch(bell.descriptor, hear)
            with trio.fail_after(PATIENCE / 2):
                for _ in range(3):
                    bell.ring()
                    await heard(bell)


@EPOLL
async def test_something_that_comes_while_it_lingers_is_told_at_once(monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", PATIENCE)
    order: list[str] = []
    async with open_readiness_poller() as poller:
        with bells(poller, 2) as (first, second):

            def ring_second():
                if not order.count("lingers"):
                    order.append("lingers")
                    second.ring()

            def hear_second():
                second.hear()
                order.append("second")
                poller.give_way()

            poller.forget(second.descriptor)
            poller.watch(second.descriptor, hear_second)
            monkeypatch.setattr(os, "sched_yield", ring_second)
            first.ring()
            await heard(first)
            order.append("others")
    assert order == ["lingers", "second", "others"]


@EPOLL
async def test_what_the_system_cannot_watch_with_others_is_watched_apart(monkeypatch):
    async with open_readiness_poller() as poller:
        with bells(poller, 1) as (bell,), monkeypatch.context() as broken:
            await trio.testing.wait_all_tasks_blocked()  # it runs with the real one
            broken.setattr(poller, "_epoll", Full(poller._epoll))
            with bells(poller, 1) as (other,):
                for _ in range(3):
                    other.ring()
                    await heard(other)
            bell.ring()
            await heard(bell)
        assert repr(poller) == "<ReadinessPoller of 0>"


@BOTH
async def test_a_socket_forgotten_after_it_was_readable_is_left_alone():
    async with open_readiness_poller() as poller:
        with closing(Bell()) as bell:
            poller.watch(bell.descriptor, bell.hear)
            bell.ring()
            await trio.testing.wait_all_tasks_blocked()
            assert bell.heard == 1
            bell.ring()
            poller.forget(bell.descriptor)
        await trio.testing.wait_all_tasks_blocked()
        assert bell.heard == 1


class Full:
    """A poller of a system that watches too much already."""

    def __init__(self, poller):
        self._epoll = poller

    def register(self, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name):
        return getattr(self._epoll, name)


@BOTH
async def test_nothing_is_told_once_it_is_closed():
    with closing(Bell()) as bell:
        async with open_readiness_poller() as poller:
            poller.watch(bell.descriptor, bell.hear)
            poller.close()
            poller.forget(bell.descriptor)
            bell.ring()
            await trio.testing.wait_all_tasks_blocked()
        assert bell.heard == 0
        assert repr(poller) == "<ReadinessPoller of 0>"


@BOTH
async def test_who_is_cancelled_may_still_wait_for_what_comes():
    is_done = False
    with trio.CancelScope() as scope, closing(Bell()) as bell:
        async with open_readiness_poller() as poller:
            poller.watch(bell.descriptor, bell.hear)
            scope.cancel()
            with trio.CancelScope(shield=True):
                bell.ring()
                await heard(bell)
                is_done = True
    assert is_done
