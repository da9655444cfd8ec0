"""Of workers what is not shown for replicas alike: their messages to each other through the supervisor."""

from __future__ import annotations

import math

from mcpmux.cluster.letter import INSIDE, LEFT
from tests.cluster.nodes import LEASE
from tests.cluster.test_nodes import subscribable
from tests.cluster.workers import open_workers


async def test_that_a_worker_has_ended_the_others_hear_before_they_ask():
    async with open_workers(a=subscribable(), b=subscribable()) as workers:
        members = workers["b"].node.members
        members.lease = math.inf  # no more renewals by the clock, except one that has begun
        await members.changed(LEASE)
        members.renew_soon()
        await members.changed(LEASE)
        assert members.others
        await workers["a"].kill()
        while members.others:
            await members.changed(LEASE)


async def test_every_worker_knows_how_all_are():
    async with open_workers(a=subscribable(), b=subscribable()) as workers:
        await workers["a"].client.initialize()
        states = await workers["b"].node.describe_all()
        rows = [(state.name, state.state, state.sessions, state.trouble) for state in states]
        assert rows == [("worker 2", INSIDE, 0, None), ("worker 1", INSIDE, 1, None)]
        (there,) = workers["b"].node.members.others
        await workers["a"].node.leave()
        assert (await workers["b"].node._client.ask_state(there)).state == LEFT
