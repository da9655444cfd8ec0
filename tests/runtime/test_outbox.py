from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import raw
from mcpmux.runtime.client_outbox import DETAIL_LIMIT, ClientOutbox

KINDS = (m.TOOLS_CHANGED, m.PROMPTS_CHANGED, m.RESOURCES_CHANGED)


def update(uri: str) -> Event:
    return Event(m.RESOURCE_UPDATED, {"uri": raw(uri)})


events = st.one_of(
    st.sampled_from(["memo:1", "memo:2", "ü:3", ""]).map(update),
    st.sampled_from(KINDS).map(lambda kind: Event(kind, {})),
)


class Box(RuleBasedStateMachine):
    """The box against a list without doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.box = ClientOutbox(frozenset())
        self.model: list[Event] = []
        self.merged = 0

    @rule(event=events)
    def put(self, event: Event) -> None:
        new = event not in self.model
        assert self.box.put(event) is new
        if new:
            self.model.append(event)
        else:
            self.merged += 1

    @precondition(lambda self: self.model)
    @rule()
    def take(self) -> None:
        assert self.box.take_nowait() == self.model.pop(0)

    @precondition(lambda self: not self.model)
    @rule()
    def take_from_empty(self) -> None:
        assert self.box.take_nowait() is None

    @invariant()
    def counts_are_right(self) -> None:
        assert len(self.box.waiting) == len(self.model)
        assert self.box.merged == self.merged


TestBox = Box.TestCase


def test_updates_of_parts_are_kept_apart_up_to_a_limit():
    box = ClientOutbox(frozenset())
    whole = update("file:///dir")
    for number in range(10_000):
        box.put(update(f"file:///dir/{number}"), whole)
    taken = list(iter(box.take_nowait, None))
    assert taken == [*(update(f"file:///dir/{number}") for number in range(DETAIL_LIMIT)), whole]
    assert box.merged == 10_000 - DETAIL_LIMIT - 1


def test_each_task_has_its_latest_status_only():
    box = ClientOutbox(frozenset())
    statuses = [("a", "working"), ("b", "working"), ("a", "completed")]
    for task_id, status in statuses:
        box.put(Event("notifications/tasks/status", {"taskId": raw(task_id), "status": raw(status)}))
    taken = [box.take_nowait(), box.take_nowait(), box.take_nowait()]
    assert [event and (event.params["taskId"], event.params["status"]) for event in taken] == [
        (raw("a"), raw("completed")),
        (raw("b"), raw("working")),
        None,
    ]


def test_events_of_an_unknown_kind_do_not_stand_for_each_other():
    box = ClientOutbox(frozenset())
    first, second = (Event("vendor/thing", {"n": raw(number)}) for number in (1, 2))
    assert [box.put(event, is_known=False) for event in (first, second, first)] == [True, True, False]
    assert [box.take_nowait(), box.take_nowait(), box.take_nowait()] == [first, second, None]
    assert box.merged == 1


def test_events_of_an_unknown_kind_are_bounded():
    box = ClientOutbox(frozenset())
    kept = [
        box.put(Event("vendor/thing", {"n": raw(number)}), is_known=False)
        for number in range(DETAIL_LIMIT + 3)
    ]
    assert kept == [True] * DETAIL_LIMIT + [False] * 3
    assert (len(box.waiting), box.merged) == (DETAIL_LIMIT, 3)
