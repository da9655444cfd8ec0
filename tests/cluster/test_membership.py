"""A replica enters and leaves the cluster, and logs it. Its state machine is pure, and has laws."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcpmux.cluster.membership import Membership, MemberState, MemberStep, Standing
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import MemoryStore, Store
from tests.cluster.nodes import LEASE, Line

STRANGER = "another replica has another `cursor_key`, or is not of this version"


def member(store: Store, key: str = "key of this cluster") -> Membership:
    return Membership(store, ClusterSeal(key.encode()), "a", "http://127.0.0.1:1", LEASE)


async def test_a_store_that_is_away_at_the_start_is_told_of_once():
    line = Line(MemoryStore(trio.current_time))
    line.is_cut = True
    replica = member(cast("Store", line))
    with capture_logs() as logs:
        for _ in range(3):
            await replica.renew()
    (event,) = logs
    assert (event["event"], event["reason"]) == ("the store of the cluster is away", "the store is cut off")


async def test_a_replica_with_another_key_is_told_of_once():
    store = MemoryStore(trio.current_time)
    stranger, replica = member(store, "key of another cluster"), member(store)
    with capture_logs() as logs:
        for _ in range(3):
            await stranger.renew()
            await replica.renew()
        await stranger.leave()
        await replica.renew()
        await member(store, "key of another cluster").renew()
        await replica.renew()
    events = [log["event"] for log in logs if log["event"] == STRANGER]
    assert len(events) == 4  # each has told of the other, and both later ones of each other


GRANTED, REFUSED, REGAINED, LEAVING = MemberStep
JOINING, RETURNING, MEMBER, LEFT = MemberState


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([], JOINING),
        ([REFUSED], JOINING),
        ([GRANTED], RETURNING),
        ([GRANTED, GRANTED], RETURNING),  # what is here could not be regained
        ([GRANTED, REFUSED], JOINING),
        ([GRANTED, REGAINED], MEMBER),
        ([GRANTED, REGAINED, GRANTED], MEMBER),
        ([GRANTED, REGAINED, REFUSED], JOINING),
        ([GRANTED, REGAINED, REFUSED, GRANTED], RETURNING),
        ([LEAVING], LEFT),
        ([GRANTED, REGAINED, LEAVING], LEFT),
    ],
)
def test_a_replica_is_a_member_once_it_has_its_sessions_again(steps: list[MemberStep], state: MemberState):
    standing = Standing()
    for step in steps:
        standing.take(step, 1.0)
    assert standing.state is state
    assert standing.is_inside(0.5) == (state is MEMBER)
    assert not standing.is_inside(1.0)


@given(st.lists(st.sampled_from(MemberStep)), st.lists(st.sampled_from(MemberStep)))
def test_a_replica_that_has_left_stays_outside(before: list[MemberStep], after: list[MemberStep]):
    standing = Standing()
    for step in (*before, LEAVING, *after):
        standing.take(step, math.inf)
    assert standing.state is LEFT
    assert not standing.is_inside(0.0)


def test_what_is_remembered_counts_once_all_others_know_of_the_replica():
    standing = Standing()
    standing.take(GRANTED, 1.0)
    standing.take(REGAINED, 1.0)
    standing.take(GRANTED, 2.0)
    results = [standing.is_told_of_changes(now) for now in (0.5, 1.0, 1.9, 2.0)]
    assert results == [False, True, True, False]


class SlowStore:
    """A store whose next renewal takes until `go_on`, on the way there or on the way back."""

    def __init__(self, store: MemoryStore, *, on_the_way_back: bool) -> None:
        self._store, self._is_back = store, on_the_way_back
        self.is_slow = False
        self.waits, self.go_on = trio.Event(), trio.Event()

    async def renew(self, *arguments: Any, **named: Any) -> Any:
        if not self._is_back:
            await self._wait()
        answer = await self._store.renew(*arguments, **named)
        if self._is_back:
            await self._wait()
        return answer

    async def _wait(self) -> None:
        if self.is_slow:
            self.waits.set()
            await self.go_on.wait()

    async def leave(self, replica: str) -> None:
        await self._store.leave(replica)


@pytest.mark.parametrize("on_the_way_back", [False, True])
async def test_a_renewal_under_way_does_not_bring_back_a_replica_that_leaves(on_the_way_back: bool):
    store = MemoryStore(trio.current_time)
    slow = SlowStore(store, on_the_way_back=on_the_way_back)
    replica = member(cast("Store", slow))
    await replica.renew()
    assert replica.is_inside
    slow.is_slow = True
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replica.renew)
            await slow.waits.wait()
            await replica.leave()
            slow.is_slow = False
            slow.go_on.set()
    assert not replica.is_inside
    assert (await store.members()).leases == []
