from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mcpmux.errors import TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, VERSION, Call, Event
from mcpmux.protocol.envelope import ErrorReply, Reply, Request, raw
from mcpmux.protocol.inflight import EVENT_LIMIT, Outgoing, Ticket

CALL = Call("tools/call", {}, {})


def progress(step: int) -> Event:
    return Event(m.PROGRESS, {"progress": raw(step)})


def log_message(number: int) -> Event:
    return Event(m.LOG_MESSAGE, {"data": raw(number)})


def answer(request_id: int) -> Reply:
    return Reply(request_id, raw({"for": request_id}))


class InFlight(RuleBasedStateMachine):
    """The table against a dictionary of what each ticket must have."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.outgoing = Outgoing()
        self.open_tickets: dict[int, Ticket] = {}
        self.answers: dict[int, object] = {}
        self.used: set[int] = set()

    @rule(target=tickets)
    def open(self) -> Ticket:
        ticket = self.outgoing.open(CALL)
        assert ticket.id not in self.used
        self.used.add(ticket.id)
        self.open_tickets[ticket.id] = ticket
        return ticket

    @rule(ticket=tickets, failed=st.booleans())
    def take_answer(self, ticket: Ticket, failed: bool) -> None:
        message = ErrorReply(ticket.id, -1, "no") if failed else answer(ticket.id)
        assert self.outgoing.take_answer(message) is (ticket.id in self.open_tickets)
        if ticket.id in self.open_tickets:
            self.answers[ticket.id] = message

    @rule(ticket=tickets)
    def take_event(self, ticket: Ticket) -> None:
        before = len(ticket.events)
        taken = self.outgoing.take_event(ticket.id, progress(1))
        assert taken is (ticket.id in self.open_tickets)
        assert len(ticket.events) == min(before + taken, EVENT_LIMIT)

    @rule(ticket=consumes(tickets))
    def close(self, ticket: Ticket) -> None:
        still_waited = ticket.id in self.open_tickets and ticket.id not in self.answers
        assert self.outgoing.close(ticket) is still_waited
        del self.open_tickets[ticket.id]

    @rule()
    def end(self) -> None:
        ended = TransportClosed("over")
        self.outgoing.fail_all(ended)
        for ticket_id in self.open_tickets:
            self.answers.setdefault(ticket_id, ended)

    @invariant()
    def everybody_has_the_own_answer(self) -> None:
        for ticket in self.open_tickets.values():
            assert ticket.answer is self.answers.get(ticket.id)
            assert self.outgoing.is_open(ticket.id)

    @invariant()
    def only_what_is_open_is_kept(self) -> None:
        assert len(self.outgoing) == len(self.open_tickets)
        assert repr(self.outgoing) == f"<Outgoing {len(self.open_tickets)} in flight>"
        assert list(self.outgoing) == list(self.open_tickets.values())


TestInFlight = InFlight.TestCase


@pytest.mark.parametrize("foreign", [None, True, "1", 0, 2, -1, 10**40])
def test_what_names_no_request_is_for_nobody(foreign):
    outgoing = Outgoing()
    ticket = outgoing.open(CALL)
    assert ticket.id == 1
    assert not outgoing.take_event(foreign, progress(1))
    assert not outgoing.is_open(foreign)
    assert not outgoing.take_answer(ErrorReply(foreign, -1, "no"))
    assert ticket.answer is None
    assert not ticket.events


def test_a_closed_ticket_swallows_its_late_answer_and_progress():
    outgoing = Outgoing()
    ticket = outgoing.open(CALL)
    assert outgoing.close(ticket) is True
    assert outgoing.take_answer(answer(ticket.id)) is False
    assert outgoing.take_event(ticket.id, progress(1)) is False
    assert outgoing.close(ticket) is True


def test_an_answer_that_came_survives_the_end_of_the_stream():
    outgoing = Outgoing()
    ticket = outgoing.open(CALL)
    outgoing.take_answer(answer(ticket.id))
    outgoing.fail_all(TransportClosed("over"))
    assert ticket.answer == answer(ticket.id)
    assert outgoing.close(ticket) is False


def test_whoever_waits_is_woken_by_each_event_and_by_the_answer():
    outgoing = Outgoing()
    ticket = outgoing.open(CALL)
    woken: list[str] = []
    ticket.wake = lambda: woken.append(repr(ticket))
    outgoing.take_event(ticket.id, progress(1))
    outgoing.take_answer(answer(ticket.id))
    assert woken == ["<Ticket 1 waiting, 1 events>", "<Ticket 1 answered, 1 events>"]


def test_what_the_server_asks_is_kept_until_it_is_answered():
    ticket = Ticket(1, CALL)
    woken: list[int] = []
    ticket.wake = lambda: woken.append(len(ticket.asked))
    first, second = Request(7, "roots/list", None), Request("7", "sampling/createMessage", None)
    ticket.ask(first)
    ticket.ask(second)
    assert list(ticket.asked.values()) == [first, second]  # ids of different types are different
    assert woken == [1, 2]
    assert ticket.answer is None


def call_of(client: object) -> Call:
    return Call("tools/call", {}, {}, client)


def test_what_names_no_request_is_for_the_oldest_when_all_are_of_one_client():
    outgoing = Outgoing()
    ann, ben = object(), object()
    assert outgoing.sole(m.LOG_MESSAGE) is None
    first = outgoing.open(call_of(ann))
    assert outgoing.sole(m.LOG_MESSAGE) is first
    second = outgoing.open(call_of(ann))
    assert outgoing.sole(m.LOG_MESSAGE) is first
    stranger = outgoing.open(call_of(ben))
    assert outgoing.sole(m.LOG_MESSAGE) is None
    outgoing.close(stranger)
    outgoing.close(first)
    assert outgoing.sole(m.LOG_MESSAGE) is second


def test_requests_of_clients_that_nobody_knows_are_told_apart():
    outgoing = Outgoing()
    only = outgoing.open(call_of(None))
    assert outgoing.sole(m.LOG_MESSAGE) is only
    outgoing.open(call_of(None))
    assert outgoing.sole(m.LOG_MESSAGE) is None


def test_a_log_message_of_a_modern_server_is_for_a_request_that_asked_for_some():
    """ "The server MUST NOT emit `notifications/message` for a request that does not include this field"."""
    outgoing = Outgoing()
    modern = {VERSION: raw("2026-07-28")}
    outgoing.open(Call("subscriptions/listen", {}, modern))
    assert outgoing.sole(m.LOG_MESSAGE) is None
    loud = outgoing.open(Call("tools/call", {}, {**modern, LOG_LEVEL: raw("info")}, object()))
    quiet = outgoing.open(Call("tools/call", {}, modern, object()))
    assert outgoing.sole(m.LOG_MESSAGE) is loud
    assert outgoing.sole("notifications/vendor/thing") is None
    outgoing.close(loud)
    assert outgoing.sole(m.LOG_MESSAGE) is quiet, "which is not to be, but there is no doubt whose it is"


steps = st.one_of(st.just("progress"), st.just("log"), st.just("other"))


@given(st.lists(steps, max_size=3 * EVENT_LIMIT))
def test_events_are_bounded_in_order_and_counted_when_lost(kinds: list[str]):
    ticket = Ticket(1, CALL)
    made = [
        progress(number)
        if kind == "progress"
        else log_message(number)
        if kind == "log"
        else Event(m.ACKNOWLEDGED, {"n": raw(number)})
        for number, kind in enumerate(kinds)
    ]
    for event in made:
        ticket.push(event)
    kept = list(ticket.events)
    assert len(kept) <= EVENT_LIMIT
    assert [event for event in made if any(event is one for one in kept)] == kept
    superseded = sum(event.method == m.PROGRESS for event in made)
    superseded -= sum(event.method == m.PROGRESS for event in kept)
    assert ticket.dropped <= len(made) - len(kept) <= ticket.dropped + superseded
    if len(made) <= EVENT_LIMIT:
        assert kept == made


def test_the_latest_progress_is_always_kept():
    ticket = Ticket(1, CALL)
    for number in range(1000):
        ticket.push(progress(number))
    assert ticket.events[-1] == progress(999)
    assert len(ticket.events) == EVENT_LIMIT
    assert ticket.dropped == 0


def test_progress_gets_in_among_log_messages_only():
    ticket = Ticket(1, CALL)
    for number in range(EVENT_LIMIT):
        ticket.push(log_message(number))
    ticket.push(log_message(EVENT_LIMIT))
    assert ticket.dropped == 1
    assert ticket.events[-1] == log_message(EVENT_LIMIT - 1)
    ticket.push(progress(1))
    assert ticket.dropped == 2
    assert ticket.events[0] == log_message(1)
    assert ticket.events[-1] == progress(1)


def test_the_deadline_of_a_ticket_may_move():
    class Moving:
        at = 5.0

    ticket = Outgoing().open(CALL)
    assert ticket.until == float("inf")
    ticket.deadline = moving = Moving()
    assert ticket.until == 5
    moving.at = 8
    assert ticket.until == 8


def test_a_ticket_that_is_cut_off_wakes_who_waits_and_the_peer_is_to_be_told():
    outgoing = Outgoing()
    ticket = outgoing.open(CALL)
    woken = []
    ticket.wake = lambda: woken.append(ticket.overdue)
    ticket.cut_off()
    assert woken == [True]
    assert outgoing.close(ticket)
