"""Changes resources and measures the time until every subscriber is notified.

One change at a time: the next comes when all are notified of the last one, or `patience` is over. The call
that changes a resource is counted like every other request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, islice
from random import Random

import trio
from attrs import define, field

from mcpmux.bench.answer import TIMEOUT, Answer
from mcpmux.bench.drive import Record, Work
from mcpmux.bench.operation import bind
from mcpmux.bench.plan import Plan
from mcpmux.bench.results import FanOut
from mcpmux.bench.session import Session
from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import Notification, members_of, text_of
from mcpmux.traffic.outcome import OK
from mcpmux.traffic.reading.histogram import Histogram

AGREE_SECONDS = 10.0  # for the server's word on a subscription
FAILURES = 10  # changes in a row that may fail before it is given up
CHANGES = 100  # of resources by default
PAUSE_SECONDS = 0.05  # between changes: a duplicate that comes later would count as a delivery of the next


@define(eq=False, repr=False)
class Push(Work):
    """One measurement of fan-out: the first session makes the changes, the others subscribe."""

    _plan: Plan
    _sessions: Sequence[Session]
    _uris: tuple[str, ...]
    _count: Record
    deliveries: Deliveries = field(init=False)
    _to_tell: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.deliveries = Deliveries(len(self._sessions) - 1, len(self._uris))

    def hear(self, subscriber: int, notification: Notification) -> None:
        """Take a notification that a subscriber has received."""
        uri = text_of(members_of(notification.params).get("uri"))
        if notification.method == m.RESOURCE_UPDATED and uri is not None:
            self.deliveries.hear(subscriber, uri, trio.current_time())
            self._to_tell.set()

    async def run(self, started: float) -> None:
        """Subscribe, then make changes in turn. Raises McpmuxError when a subscription is not taken."""
        async with trio.open_nursery() as nursery:
            with self._scope:
                async with trio.open_nursery() as asking:
                    for session in self._sessions[1:]:
                        asking.start_soon(nursery.start, self._listen, session)
                with trio.move_on_after(self._plan.measured):
                    await self._make()
            nursery.cancel_scope.cancel()
        self.ended = trio.current_time()

    async def _listen(self, session: Session, task_status: trio.TaskStatus[None]) -> None:
        """Count the changes of a resource. Started once the server has agreed."""
        with trio.move_on_after(AGREE_SECONDS) as agreeing:

            def agree() -> None:
                agreeing.deadline = math.inf
                task_status.started()

            try:
                await session.listen(self._uris, agree)
                if session.modern:
                    self.stop("the server has ended a subscription")
            except McpmuxError as error:
                if math.isinf(agreeing.deadline):
                    self.stop(f"a subscription broke off: {error.in_full}")
                elif isinstance(error, RpcError):
                    raise RemoteProtocolError(f"it refuses a subscription: {error.message}") from None
                else:
                    raise
        if agreeing.cancelled_caught:
            raise RemoteProtocolError(f"it did not take a subscription within {AGREE_SECONDS:g} s")

    async def _make(self) -> None:
        plan, random, failures = self._plan, Random(self._plan.seed), 0
        assert plan.push is not None
        makers = cycle([(uri, bind(plan.push, (uri,))) for uri in self._uris])
        for number, (uri, make) in enumerate(islice(makers, plan.count or CHANGES), 1):
            ask = make(number, random)
            began = trio.current_time()
            self.deliveries.change(uri, began)
            answer = Answer(TIMEOUT, 0, 0)
            with trio.move_on_after(plan.timeout):
                answer = await self._sessions[0].perform(ask)
            self._count(ask.operation, began, began, trio.current_time(), *answer[:3])
            if answer.outcome != OK:
                self.deliveries.withdraw(uri)
                failures += 1
                if failures >= FAILURES:
                    self.stop("the changes fail")
            else:
                failures = 0
                with trio.move_on_after(plan.timeout):
                    while not self.deliveries.complete(uri):
                        self._to_tell = trio.Event()
                        await self._to_tell.wait()
            await trio.sleep(plan.think or PAUSE_SECONDS)


@define(eq=False, repr=False)
class Deliveries:
    """Which of `subscribers`, numbered from 0, has heard of which change of `resources`, and when.

    A change of a resource is open until the next change of the same resource: a notification meanwhile is
    about it. The first one is its delivery, every further one a duplicate. Notifications before the first
    change of a resource are not counted.
    """

    _subscribers: int
    _resources: int
    _changes: int = 0
    _duplicates: int = 0
    _delay: Histogram = field(factory=Histogram)
    _open: dict[str, tuple[float, set[int]]] = field(factory=dict)  # since when, and who has heard of it

    def change(self, uri: str, now: float) -> None:
        """Note that a resource is about to be changed."""
        self._changes += 1
        self._open[uri] = now, set()

    def withdraw(self, uri: str) -> None:
        """Take back a change that did not happen."""
        self._changes -= 1
        del self._open[uri]

    def hear(self, subscriber: int, uri: str, now: float) -> None:
        """Note that a subscriber knows of a change of a resource."""
        if uri not in self._open:
            return
        changed, receivers = self._open[uri]
        if subscriber in receivers:
            self._duplicates += 1
        else:
            receivers.add(subscriber)
            self._delay.record(now - changed)

    def complete(self, uri: str) -> bool:
        """Return whether all subscribers know of the last change of a resource."""
        return uri in self._open and len(self._open[uri][1]) >= self._subscribers

    def results(self) -> FanOut:
        """Return the counts and delays."""
        return FanOut(
            subscribers=self._subscribers,
            resources=self._resources,
            changes=self._changes,
            expected=self._changes * self._subscribers,
            deliveries=self._delay.count,
            duplicates=self._duplicates,
            delay=self._delay.freeze(),
        )
