from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mcpmux.channels.pending import EVENT_LIMIT, PendingRequest, PendingRequests
from mcpmux.errors import RemoteProtocolError, TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, PROGRESS_TOKEN, VERSION, Call, Event, encode_call
from mcpmux.protocol.envelope import ErrorReply, Reply, Request, raw
from mcpmux.protocol.raw_json import Raw
from mcpmux.transports.waiting import Deadline

CALL = Call("tools/call", {}, {PROGRESS_TOKEN: raw("mine")})


def progress(step: int) -> Event:
    return Event(m.PROGRESS, {"progress": raw(step)})


def log_message(number: int) -> Event:
    return Event(m.LOG_MESSAGE, {"data": raw(number)})


def answer(request_id: int) -> Reply:
    return Reply(request_id, raw({"for": request_id}))


class InFlight(RuleBasedStateMachine):
    """The table against a dictionary of what each ticket must have."""

    all_pending = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.pending_requests = PendingRequests()
        self.open_tickets: dict[int, PendingRequest] = {}
        self.answers: dict[int, object] = {}
        self.used: set[int] = set()

    @rule(target=all_pending)
    def open(self) -> PendingRequest:
        pending = self.pending_requests.open(PendingRequest(CALL))
        assert pending.id not in self.used
        self.used.add(pending.id)
        self.open_tickets[pending.id] = pending
        return pending

    @rule(pending=all_pending, failed=st.booleans())
    def take_answer(self, pending: PendingRequest, failed: bool) -> None:
        message = ErrorReply(pending.id, -1, "no") if failed else answer(pending.id)
        assert self.pending_requests.take_answer(message) is (pending.id in self.open_tickets)
        if pending.id in self.open_tickets:
            self.answers[pending.id] = message

    @rule(pending=all_pending)
    def take_event(self, pending: PendingRequest) -> None:
        count = len(pending.events)
        taken = self.pending_requests.take_event(pending.id, progress(1))
        assert taken is (pending.id in self.open_tickets)
        assert len(pending.events) == min(count + taken, EVENT_LIMIT)

    @rule(pending=consumes(all_pending))
    def close(self, pending: PendingRequest) -> None:
        still_waited = pending.id in self.open_tickets and pending.id not in self.answers
        assert self.pending_requests.close(pending) is still_waited
        del self.open_tickets[pending.id]

    @rule()
    def end(self) -> None:
        ended = TransportClosed("over")
        self.pending_requests.fail_all(ended)
        for ticket_id in self.open_tickets:
            self.answers.setdefault(ticket_id, ended)

    @invariant()
    def everybody_has_the_own_answer(self) -> None:
        for pending in self.open_tickets.values():
            expected = self.answers.get(pending.id)
            if isinstance(expected, TransportClosed):  # each has its own one
                assert isinstance(pending.answer, TransportClosed)
                assert pending.answer is not expected
            else:
                assert pending.answer is expected
            assert self.pending_requests.is_open(pending.id)

    @invariant()
    def only_what_is_open_is_kept(self) -> None:
        assert len(self.pending_requests) == len(self.open_tickets)
        assert repr(self.pending_requests) == f"<PendingRequests {len(self.open_tickets)} in flight>"
        assert list(self.pending_requests) == list(self.open_tickets.values())


TestInFlight = InFlight.TestCase


@pytest.mark.parametrize("foreign", [None, True, "01", "1.0", "²", "", "1" * 30, 0, 2, -1, 10**40])
def test_what_names_no_request_is_for_nobody(foreign):
    pending_requests = PendingRequests()
    pending = pending_requests.open(PendingRequest(CALL))
    assert pending.id == 1
    assert not pending_requests.take_event(foreign, progress(1))
    assert not pending_requests.is_open(foreign)
    assert not pending_requests.take_answer(ErrorReply(foreign, -1, "no"))
    assert pending.answer is None
    assert not pending.events


def test_an_id_that_comes_back_as_text_is_the_same_id():
    pending_requests = PendingRequests()
    pending = pending_requests.open(PendingRequest(CALL))
    assert pending_requests.take_event("1", progress(1))
    assert pending_requests.is_open("1")
    assert pending_requests.take_answer(Reply("1", Raw(b"{}")))
    assert pending.answer == Reply("1", Raw(b"{}"))


def test_an_answer_without_an_id_is_for_the_only_call():
    unread = RemoteProtocolError("the answer cannot be read")
    pending_requests = PendingRequests()
    assert not pending_requests.fail_unread(None, unread)
    pending_requests.open(PendingRequest(Call("subscriptions/listen", {}, {})))  # which stays open
    first, second = (pending_requests.open(PendingRequest(CALL)) for _ in range(2))
    assert not pending_requests.fail_unread(None, unread)
    assert pending_requests.fail_unread(str(second.id), unread)
    assert first.answer is None
    assert pending_requests.fail_unread(None, unread)
    assert first.answer is second.answer is unread


def test_a_late_answer_is_told_from_one_that_matches_nothing():
    pending_requests = PendingRequests()
    pending_requests.close(pending_requests.open(PendingRequest(CALL)))
    used = [token for token in (1, "1", 2, "2", 0, "x", None, True) if pending_requests.was_used(token)]
    assert used == [1, "1"]


def test_a_closed_ticket_swallows_its_late_answer_and_progress():
    pending_requests = PendingRequests()
    pending = pending_requests.open(PendingRequest(CALL))
    assert pending_requests.close(pending) is True
    assert pending_requests.take_answer(answer(pending.id)) is False
    assert pending_requests.take_event(pending.id, progress(1)) is False
    assert pending_requests.close(pending) is False  # the peer is notified once


@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_renews_the_deadline_and_goes_on_where_it_is_wanted(wanted, autojump_clock):
    pending = PendingRequest(CALL if wanted else CALL.with_meta({}))
    pending.deadline = deadline = Deadline(10.0, 0.0, 60.0)
    began, woken = deadline.at, []
    pending.wake = lambda: woken.append(True)
    await trio.sleep(3)
    pending.push(Event(m.LOG_MESSAGE, {}))
    assert deadline.at == began
    pending.push(progress(1))
    assert deadline.at == began + 3
    assert len(pending.events) == len(woken) == (2 if wanted else 1)


@pytest.mark.parametrize("method", [m.TOOLS_CALL, m.RESOURCES_READ])
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("asks_progress", [True, False])
def test_a_tool_call_asks_for_progress_in_any_case(method, wanted, asks_progress):
    call = Call(method, {}, {PROGRESS_TOKEN: raw("mine")} if wanted else {})
    sent = encode_call(7, call, asks_progress=asks_progress)
    has_token = wanted or (asks_progress and method == m.TOOLS_CALL)
    assert (b'"progressToken":7' in sent) == has_token


def test_whoever_waits_is_woken_by_each_event_and_by_the_answer():
    pending_requests = PendingRequests()
    pending = pending_requests.open(PendingRequest(CALL))
    woken: list[tuple[bool, int]] = []
    pending.wake = lambda: woken.append((pending.answer is None, len(pending.events)))
    pending_requests.take_event(pending.id, progress(1))
    pending_requests.take_answer(answer(pending.id))
    assert woken == [(True, 1), (False, 1)]


def test_what_the_server_asks_is_kept_until_it_is_answered():
    pending = PendingRequest(CALL)
    woken: list[int] = []
    pending.wake = lambda: woken.append(len(pending.asked))
    first, second = Request(7, "roots/list", None), Request("7", "sampling/createMessage", None)
    pending.ask(first)
    pending.ask(second)
    assert list(pending.asked.values()) == [first, second]  # ids of different types are different
    assert woken == [1, 2]
    assert pending.answer is None


def call_of(client: object) -> Call:
    return Call("tools/call", {}, {}, client)


def test_an_unaddressed_message_is_for_the_oldest_request_of_one_client():
    pending_requests = PendingRequests()
    ann, ben = object(), object()
    assert pending_requests.sole(m.LOG_MESSAGE) is None
    first = pending_requests.open(PendingRequest(call_of(ann)))
    assert pending_requests.sole(m.LOG_MESSAGE) is first
    second = pending_requests.open(PendingRequest(call_of(ann)))
    assert pending_requests.sole(m.LOG_MESSAGE) is first
    stranger = pending_requests.open(PendingRequest(call_of(ben)))
    assert pending_requests.sole(m.LOG_MESSAGE) is None
    pending_requests.close(stranger)
    pending_requests.close(first)
    assert pending_requests.sole(m.LOG_MESSAGE) is second


def test_requests_of_clients_that_nobody_knows_are_told_apart():
    pending_requests = PendingRequests()
    only = pending_requests.open(PendingRequest(call_of(None)))
    assert pending_requests.sole(m.LOG_MESSAGE) is only
    pending_requests.open(PendingRequest(call_of(None)))
    assert pending_requests.sole(m.LOG_MESSAGE) is None


def test_a_modern_log_message_is_for_a_request_with_a_level():
    """ "The server MUST NOT emit `notifications/message` for a request that does not include this field"."""
    pending_requests = PendingRequests()
    modern = {VERSION: raw("2026-07-28")}
    pending_requests.open(PendingRequest(Call("subscriptions/listen", {}, modern)))
    assert pending_requests.sole(m.LOG_MESSAGE) is None
    hears = {**modern, LOG_LEVEL: raw("info")}
    loud = pending_requests.open(PendingRequest(Call("tools/call", {}, hears, object())))
    quiet = pending_requests.open(PendingRequest(Call("tools/call", {}, modern, object())))
    assert pending_requests.sole(m.LOG_MESSAGE) is loud
    assert pending_requests.sole("notifications/vendor/thing") is None
    pending_requests.close(loud)
    assert pending_requests.sole(m.LOG_MESSAGE) is quiet, (
        "which is not to be, but there is no doubt whose it is"
    )


steps = st.one_of(st.just("progress"), st.just("log"), st.just("other"))


@given(st.lists(steps, max_size=3 * EVENT_LIMIT))
def test_events_are_bounded_in_order_and_counted_when_lost(kinds: list[str]):
    pending = PendingRequest(CALL)
    made = [
        progress(number)
        if kind == "progress"
        else log_message(number)
        if kind == "log"
        else Event(m.ACKNOWLEDGED, {"n": raw(number)})
        for number, kind in enumerate(kinds)
    ]
    for event in made:
        pending.push(event)
    kept = list(pending.events)
    assert len(kept) <= EVENT_LIMIT
    assert [event for event in made if any(event is kept_event for kept_event in kept)] == kept
    superseded = sum(event.method == m.PROGRESS for event in made)
    superseded -= sum(event.method == m.PROGRESS for event in kept)
    assert pending.dropped <= len(made) - len(kept) <= pending.dropped + superseded
    if len(made) <= EVENT_LIMIT:
        assert kept == made


def test_the_latest_progress_is_always_kept():
    pending = PendingRequest(CALL)
    for number in range(1000):
        pending.push(progress(number))
    assert pending.events[-1] == progress(999)
    assert len(pending.events) == EVENT_LIMIT
    assert pending.dropped == 0


def test_progress_gets_in_among_log_messages_only():
    pending = PendingRequest(CALL)
    for number in range(EVENT_LIMIT):
        pending.push(log_message(number))
    pending.push(log_message(EVENT_LIMIT))
    assert pending.dropped == 1
    assert pending.events[-1] == log_message(EVENT_LIMIT - 1)
    pending.push(progress(1))
    assert pending.dropped == 2
    assert pending.events[0] == log_message(1)
    assert pending.events[-1] == progress(1)


async def test_the_deadline_of_a_request_may_move(autojump_clock):
    pending = PendingRequests().open(PendingRequest(CALL))
    assert pending.until == float("inf")
    pending.deadline = deadline = Deadline(5.0, 0.0, 60.0)
    assert pending.until == deadline.at
    await trio.sleep(3)
    deadline.renew()
    assert pending.until == trio.current_time() + 5


def test_a_ticket_cut_off_wakes_its_waiter_and_is_cancelled():
    pending_requests = PendingRequests()
    pending = pending_requests.open(PendingRequest(CALL))
    woken = []
    pending.wake = lambda: woken.append(pending.overdue)
    pending.cut_off()
    assert woken == [True]
    assert pending_requests.close(pending)
