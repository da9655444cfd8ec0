"""What workers do that replicas do not: they hear at once that one has ended."""

from __future__ import annotations

import math

from tests.cluster.nodes import LEASE
from tests.cluster.test_nodes import subscribable
from tests.cluster.workers import open_workers


async def test_that_a_worker_has_ended_the_others_hear_before_they_ask():
    async with open_workers(a=subscribable(), b=subscribable()) as workers:
        members = workers["b"].node.members
        members.lease = math.inf  # it asks once more by itself, if at all
        await members.changed(LEASE)
        members.renew_soon()
        await members.changed(LEASE)
        assert members.others
        await workers["a"].kill()
        while members.others:
            await members.changed(LEASE)
