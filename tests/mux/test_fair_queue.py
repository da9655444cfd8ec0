from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcpmux.mux.fair_queue import FairQueue
from tests.examples import examples

CLIENTS = "abcd"


def filled(slots, room, waiting):
    """Return a queue whose slots are taken, with (client, number) waiting in that order."""
    queue = FairQueue[Any](slots, room)
    for _ in range(slots):
        assert queue.enter()
    for item in waiting:
        assert queue.enqueue(item[0], item) is None
    return queue


def turns(queue):
    """Choose who gets the slots, in order."""
    return [queue.leave() for _ in range(queue.waiting)]


def test_clients_take_turns_and_each_keeps_its_order():
    waiting = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)]
    assert turns(filled(1, 10, waiting)) == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]


def test_newcomer_takes_the_place_of_the_newest_of_whoever_has_most():
    queue = filled(1, 4, [("a", 1), ("b", 1), ("a", 2), ("a", 3)])
    assert queue.enqueue("c", ("c", 1)) == ("a", 3)
    assert turns(queue) == [("a", 1), ("b", 1), ("c", 1), ("a", 2)]


def test_withdrawn_gets_no_turn_and_says_so_once():
    queue = filled(1, 10, [("a", 1), ("a", 2), ("b", 1)])
    assert queue.withdraw("a", ("a", 1))
    assert not queue.withdraw("a", ("a", 1))
    assert not queue.withdraw("z", ("z", 1))
    assert turns(queue) == [("a", 2), ("b", 1)]


@given(slots=st.integers(1, 100), room=st.integers(0, 100), parts=st.integers(1, 40))
def test_parts_are_the_whole_and_less_than_one_more_each(slots, room, parts):
    queue = FairQueue[Any](slots, room)
    queue.divide(7)
    assert queue.divide(parts) == []
    assert queue.slots >= 1
    assert slots <= queue.slots * parts < slots + parts
    assert room <= queue.room * parts < room + parts
    queue.divide(1)
    assert (queue.slots, queue.room) == (slots, room)


@given(
    loads=st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(1, 30)), min_size=1, max_size=12),
    slots=st.integers(1, 3),
)
def test_no_client_is_ever_a_turn_ahead_of_one_that_waits(loads, slots):
    waiting = [(client, (index, n)) for index, (client, count) in enumerate(loads) for n in range(count)]
    queue = filled(slots, len(waiting), waiting)
    left = Counter(client for client, _ in waiting)
    served: Counter[str] = Counter()
    for client, _ in turns(queue):
        served[client] += 1
        left[client] -= 1
        assert all(served[client] - served[other] <= 1 for other in left if left[other])


class Machine(RuleBasedStateMachine):
    """The queue beside a plain list of who waits, in the order of arrival."""

    @initialize(slots=st.integers(1, 3), room=st.integers(0, 8))
    def open(self, slots, room):
        self.queue = FairQueue[Any](slots, room)
        self.waiting = []
        self.running = 0
        self.most_running, self.most_waiting = slots, room  # more was let in by a larger part of before
        self.passed_over: Counter[str] = Counter()
        self.number = 0

    def of(self, client):
        return [item for item in self.waiting if item[0] == client]

    @rule(client=st.sampled_from(CLIENTS))
    def ask(self, client):
        free = self.running < self.queue.slots
        assert self.queue.enter() is free
        if free:
            self.running += 1
            return
        self.number += 1
        item = (client, self.number)
        clients = {waiter for waiter, _ in self.waiting} | {client}
        share = self.queue.room // len(clients)
        had = len(self.of(client))
        displaced = self.queue.enqueue(client, item)
        if displaced is None:
            assert len(self.waiting) < self.queue.room
        elif displaced == item:
            assert len(self.waiting) >= self.queue.room
            most = max((len(self.of(waiter)) for waiter in clients), default=0)
            assert had >= share or most <= had + 1
            return
        else:
            assert len(self.waiting) >= self.queue.room
            assert displaced == self.of(displaced[0])[-1]
            assert len(self.of(displaced[0])) > had + 1
            self.waiting.remove(displaced)
        self.waiting.append(item)

    @precondition(lambda self: self.running)
    @rule()
    def finish(self):
        running = self.running
        following = self.queue.leave()
        if following is None:
            assert not self.waiting or running > self.queue.slots
            self.running -= 1
            return
        assert running <= self.queue.slots
        self.gets_a_turn(following)

    def gets_a_turn(self, following):
        client = following[0]
        assert following == self.of(client)[0]
        self.waiting.remove(following)
        others = {waiter for waiter, _ in self.waiting} - {client}
        self.passed_over = Counter({other: self.passed_over[other] + 1 for other in others})
        # Whoever waits is passed over at most once by each of the others.
        assert all(count < len(CLIENTS) for count in self.passed_over.values())

    @rule(parts=st.integers(1, 4))
    def share(self, parts):
        for following in self.queue.divide(parts):
            self.running += 1
            assert self.running <= self.queue.slots
            self.gets_a_turn(following)
        self.most_running = max(self.running, self.queue.slots)
        self.most_waiting = max(len(self.waiting), self.queue.room)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data):
        item = data.draw(st.sampled_from(self.waiting))
        assert self.queue.withdraw(item[0], item)
        self.waiting.remove(item)
        if not self.of(item[0]):
            self.passed_over.pop(item[0], None)

    @invariant()
    def bounded_and_busy(self):
        if not hasattr(self, "queue"):
            return
        assert self.queue.running == self.running <= self.most_running
        assert self.queue.waiting == len(self.waiting) <= self.most_waiting
        self.most_running = max(self.running, self.queue.slots)  # there is no way back above the part
        self.most_waiting = max(len(self.waiting), self.queue.room)
        assert not self.waiting or self.running >= self.queue.slots


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
