from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.channels.tap import EXCHANGE, Said
from mcpmux.config.traffic import Redaction
from mcpmux.protocol.call import Call
from mcpmux.protocol.principal import ANYONE
from mcpmux.traffic.admin.ring import RECENT, ROW_BYTES, ROW_MESSAGES, SHARE, weight_of
from mcpmux.traffic.admin.view import BODY_BYTES, CUT_BYTES, LARGE, LiveView
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.reading.filters import LIVE_NAMES, parse_filter
from mcpmux.traffic.reading.histogram import ERROR
from mcpmux.traffic.reading.stats import EDGES, GROUPS_LIMIT, OTHERS, SHOWN_GROUPS, TimedCall, measure
from mcpmux.traffic.redaction.redactor import Redactor
from tests.examples import examples
from tests.traffic.admin_world import Traffic

SECRET = "sk-live-4242424242424242abcdef"
MIB = 2**20
NOW = datetime(2026, 11, 21, tzinfo=UTC)
LAST = 1000  # more rows than there are


def rows(traffic):
    return list(traffic.ring.before(traffic.ring.last + 1))


def own_rows(traffic):
    """Return the rows of mcpmux's own requests."""
    return list(traffic.ring.own.before(traffic.ring.own.last + 1))


def test_an_exchange_is_one_row_with_its_messages_on_both_legs():
    traffic = Traffic()
    exchange = traffic.exchange(ms=20)
    (row,) = rows(traffic)
    assert (row.exchange, row.status, row.upstreams, row.count) == (exchange, "ok", ("docs",), 4)
    assert row.ms == pytest.approx(20)
    assert [(kept.observed.leg.side, kept.observed.direction) for kept in row.messages] == [
        ("client", "in"),
        ("upstream", "out"),
        ("upstream", "in"),
        ("client", "out"),
    ]


ENDS = [
    ({"result": {}}, "ok", None),
    ({"result": {"isError": True}}, "tool_error", None),
    ({"error": {"code": -32602, "message": "no"}}, "error", -32602),
]


@pytest.mark.parametrize(("answer", "status", "code"), ENDS)
def test_a_row_says_how_its_exchange_went(answer, status, code):
    traffic = Traffic()
    traffic.exchange(answer=answer)
    (row,) = rows(traffic)
    assert (row.status, row.code) == (status, code)


def test_an_exchange_is_open_until_its_client_has_the_answer():
    traffic = Traffic()
    request, exchange = traffic.begin("tools/call", {"name": "docs__find"})
    EXCHANGE.set(exchange)
    traffic.message_passed(
        traffic.upstreams["docs"], "out", {"id": 9, "method": "tools/call", "params": {"name": "find"}}
    )
    traffic.message_passed(traffic.upstreams["docs"], "in", {"id": 9, "result": {}})
    assert rows(traffic)[0].status == "open"
    traffic.message_passed(traffic.client, "out", {"id": request, "result": {}})
    EXCHANGE.set(0)
    assert rows(traffic)[0].status == "ok"


def test_what_belongs_to_no_exchange_has_rows_of_its_own():
    traffic = Traffic()
    docs = traffic.upstreams["docs"]
    traffic.message_passed(docs, "out", {"id": 1, "method": "server/discover", "params": {}})
    traffic.message_passed(docs, "in", {"method": "notifications/tools/list_changed"})
    traffic.message_passed(docs, "in", {"id": 1, "result": {}})
    traffic.recorder.message_passed(docs, "in", b"no JSON")
    assert [(row.first.method, row.status, row.count) for row in reversed(rows(traffic))] == [
        ("notifications/tools/list_changed", "note", 1),
        (None, "invalid", 1),
    ]
    (own,) = own_rows(traffic)
    assert (own.first.method, own.status, own.count) == ("server/discover", "ok", 2)


def test_what_mcpmux_asks_by_itself_takes_no_place_from_what_clients_do():
    traffic = Traffic(rows=16)
    exchange = traffic.exchange()
    docs = traffic.upstreams["docs"]
    for number in range(100):
        traffic.message_passed(docs, "out", {"id": number, "method": "ping"})
        traffic.message_passed(docs, "in", {"id": number, "result": {}})
    assert [row.exchange for row in rows(traffic)] == [exchange]
    assert [row.count for row in own_rows(traffic)] == [2, 2]


def test_an_answer_to_nothing_is_no_open_row():
    """Such as the error for what was no JSON."""
    traffic = Traffic()
    error = {"jsonrpc": "2.0", "error": {"code": -32700, "message": "no JSON"}}
    traffic.recorder.message_passed(traffic.recorder.client("tcp"), "out", json.dumps(error).encode())
    (row,) = rows(traffic)
    assert (row.status, row.code) == ("error", -32700)


async def test_an_exchange_that_was_cut_off_is_cancelled():
    traffic = Traffic()
    _, exchange = traffic.begin("tools/call", {"name": "docs__find"})
    position = traffic.ring.position
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            request = Exchange(exchange, traffic.client, Call("tools/call", {}, {}), 0.0, [], {})
            await traffic.ring.ended(request, cancelled, 0.1)
            raise
    (row,) = rows(traffic)
    assert row.status == "cancelled"
    assert traffic.ring.changed_since(position)[0] == [row]


def test_a_client_that_takes_its_request_back_cancels_the_row():
    traffic = Traffic()
    request, _ = traffic.begin("tools/call", {"name": "docs__find"})
    traffic.message_passed(
        traffic.client, "in", {"method": "notifications/cancelled", "params": {"requestId": request}}
    )
    assert [(row.status, row.count) for row in rows(traffic)] == [("cancelled", 2)]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), max_size=120),
    st.integers(1, 12),
    st.integers(4_000, 60_000),
)
def test_the_ring_stays_within_its_bounds_and_its_rows_have_consecutive_numbers(
    messages, most_rows, most_bytes
):
    traffic = Traffic(most_rows, most_bytes)
    ring = traffic.ring
    waiting = []
    for sort, size in messages:
        padding = "x" * size
        if sort == 0:
            waiting.append(traffic.begin("tools/call", {"name": padding}))
        elif sort == 1 and waiting:
            traffic.message_passed(traffic.client, "out", {"id": waiting.pop(0)[0], "result": {"x": padding}})
        elif sort == 2:
            traffic.message_passed(
                traffic.upstreams["docs"], "in", {"method": "notifications/message", "params": {"x": padding}}
            )
        else:
            traffic.message_passed(traffic.upstreams["docs"], "out", {"id": size, "method": "ping"})
        assert ring._bytes <= most_bytes or len(ring._rows) + len(ring._unsorted) <= 1
        if size % 2:  # otherwise there is no reader so far
            check(ring, most_rows, most_bytes)
    check(ring, most_rows, most_bytes)


def check(ring, most_rows, most_bytes):
    ring.settle()
    kept = [row for number in range(ring.first, ring.last + 1) if (row := ring.row(number))]
    assert len(kept) == ring.last + 1 - ring.first
    assert len(kept) <= most_rows
    weight = sum(row.weight for row in kept)
    assert ring._bytes == weight
    assert weight <= most_bytes or len(kept) == 1
    assert ring.row(ring.first - 1) is None
    for row in kept:
        assert row.weight == ROW_BYTES + sum(weight_of(message.observed) for message in row.messages)
        assert [message.position for message in row.messages] == sorted(
            message.position for message in row.messages
        )
    assert {key for key in ring._growing if key > 0} == {row.exchange for row in kept if row.exchange}


def test_a_reader_gets_each_message_once_and_a_count_of_missed_ones():
    traffic = Traffic()
    traffic.exchange()
    ring = traffic.ring
    first, position, missed = ring.messages_since(0, 3)
    rest, position, more_missed = ring.messages_since(position, 3)
    assert [kept.position for kept in first + rest] == [1, 2, 3, 4]
    assert (position, missed + more_missed) == (4, 0)
    for _ in range(RECENT // 4 + 10):
        traffic.exchange()
    messages, position, missed = traffic.ring.messages_since(position, 5)
    assert missed == 40
    assert [kept.position for kept in messages] == [45, 46, 47, 48, 49]
    assert position == 49
    assert ring.changed_since(4)[1] == 40


def test_a_listen_that_lasts_does_not_grow_without_bound():
    traffic = Traffic(size=64 * MIB)
    _, exchange = traffic.begin("subscriptions/listen", {})
    EXCHANGE.set(exchange)
    for number in range(2 * ROW_MESSAGES):
        traffic.message_passed(
            traffic.client,
            "out",
            {"method": "notifications/resources/updated", "params": {"uri": f"u:{number}"}},
        )
    EXCHANGE.set(0)
    (row,) = rows(traffic)
    assert len(row.messages) <= ROW_MESSAGES
    assert row.messages[0].observed.method == "subscriptions/listen"
    assert row.count == 2 * ROW_MESSAGES + 1
    assert row.messages[-1].observed.target == f"u:{2 * ROW_MESSAGES - 1}"


async def test_a_message_that_is_too_large_leaves_its_size():
    traffic = Traffic(size=MIB)
    traffic.exchange(answer={"result": {"text": "x" * (MIB // SHARE)}})
    messages = await traffic.view.messages(rows(traffic)[0])
    assert [message.gone for message in messages] == [False, False, True, True]
    assert messages[2].record.size > MIB // SHARE
    assert messages[2].record.message is None
    assert messages[2].record.text is None


async def test_long_messages_are_cut_beside_others_and_whole_by_themselves():
    traffic = Traffic()
    traffic.exchange(answer={"result": {"text": "x" * (BODY_BYTES + 1)}})
    row = rows(traffic)[0]
    answer = (await traffic.view.messages(row))[2]
    assert answer.cut
    assert len(answer.record.text or "") == CUT_BYTES
    whole = await traffic.view.whole(row, answer.record.seq)
    assert whole is not None and not whole.cut
    assert whole.record.message is not None
    assert len(json.loads(bytes(whole.record.message))["result"]["text"]) == BODY_BYTES + 1
    assert await traffic.view.whole(row, 99) is None


async def test_nothing_is_shown_but_redacted():
    traffic = Traffic()
    traffic.client.name = f"client {SECRET}"
    traffic.exchange(
        "resources/read", {"uri": f"docs+file:///{SECRET}", "name": "", "api_key": "hunter2hunter2"}
    )
    row = rows(traffic)[0]
    shown = repr(traffic.view.summary(row)) + repr(await traffic.view.messages(row))
    assert "[redacted" in shown
    assert SECRET not in shown
    assert "hunter2" not in shown
    assert SECRET.encode() in row.first.data


async def test_values_redacted_by_path_are_not_shown_beside_the_message():
    traffic = Traffic()
    redactor = Redactor(Redaction(paths=("params.uri",)))
    view = LiveView(traffic.ring, redactor, traffic.run)
    traffic.exchange("resources/read", {"uri": "docs+file:///private", "name": ""})
    assert "private" not in repr(view.summary(rows(traffic)[0]))


async def test_what_is_no_json_inside_is_shown_as_text():
    traffic = Traffic()
    bad = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"x":\xff\xfe}}'
    traffic.recorder.message_passed(traffic.upstreams["docs"], "in", bad)
    (message,) = await traffic.view.messages(rows(traffic)[0])
    assert message.record.message is None
    assert "\ufffd" in (message.record.text or "")


FILTERS = [
    ("method=tools/call", [1, 3]),
    ("upstream=search", [2]),
    ("status!=ok", [2, 3]),
    ("status=error|tool_error", [2, 3]),
    ("duration>200ms", [1]),
    ("uri~*.md", [2]),
    ("client=example-client", [1, 2, 3]),
    ("leg=upstream kind=notification", [4]),
    ("text~needle", [3]),
    ("needle", [3]),
    ("tools/call !needle", [1]),
    ("a.md -32602", [2]),
    ("#2", [2]),
    ("exchange=2", [2]),
]


@pytest.mark.parametrize(("text", "expected"), FILTERS)
async def test_the_filter_language_finds_rows(text, expected):
    traffic = Traffic()
    traffic.exchange(ms=300)
    missing = {"error": {"code": -32602, "message": "no"}}
    traffic.exchange("resources/read", {"uri": "search+file:///a.md", "name": ""}, "search", answer=missing)
    traffic.exchange(answer={"result": {"isError": True, "content": [{"type": "text", "text": "a NEEDLE"}]}})
    traffic.message_passed(traffic.upstreams["docs"], "in", {"method": "notifications/tools/list_changed"})
    rows, _ = await traffic.view.find(parse_filter(text, NOW), LAST, 100)
    assert sorted(row.row for row in rows) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("view=coding", [2, 3]),
        ("view=coding?*", [3]),
        ("view~FIND", [3]),
        ("view=?*", [4]),
        ("view=", [1]),
        ("view!=coding", [4]),
        ("!view=coding upstream=docs", [1, 4]),
    ],
)
async def test_rows_are_found_by_the_view_of_their_client(text, expected):
    traffic = Traffic()
    for view in ("", "coding", "coding?tools=find*", "?upstreams=docs"):
        traffic.exchange(view=view)
    rows, _ = await traffic.view.find(parse_filter(text, NOW, LIVE_NAMES), LAST, 100)
    assert sorted(row.row for row in rows) == expected


async def test_an_exchange_whose_request_has_not_been_looked_at_has_its_view():
    traffic = Traffic()
    request = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}'
    envelope = Said("request", 1, "tools/call")
    traffic.recorder.message_passed(traffic.client, "in", request)
    number = traffic.recorder.exchange_of(traffic.client, 1, request, envelope)
    await traffic.recorder.admit(
        traffic.client, number, Call("tools/call", {}, {}, principal=ANYONE.within("coding"))
    )
    (row,) = rows(traffic)
    assert (row.exchange, row.view, row.status) == (number, "coding", "open")


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize(
    ("size", "count"),
    [(100, 2000), (100_000, 100), (1_000_000, 100)],
    ids=["short", "long", "too large to keep"],
)
def test_what_is_held_is_what_is_counted(size: int, count: int, is_read: bool):
    limit = 4 * MIB
    tracemalloc.start()
    try:
        traffic = Traffic(size=limit)
        for number in range(count):
            uri = f"file:///{number}" + "y" * size
            traffic.exchange("resources/read", {"uri": uri}, answer={"result": {"contents": []}})
            if is_read:
                traffic.ring.settle()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.3 * limit


def test_without_a_reader_the_newest_exchanges_are_kept():
    traffic = Traffic(size=64 * 2**10)
    for _ in range(500):
        newest = traffic.exchange()
    kept = [row.exchange for row in rows(traffic)]
    assert kept == list(range(newest, newest - len(kept), -1))
    assert 8 <= len(kept) < 500
    assert traffic.ring.position == 2000
    assert {row.count for row in rows(traffic)[:-1]} == {4}


async def turns_during(work):
    """Return how often another task runs meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await work
        nursery.cancel_scope.cancel()
    return turns


async def test_other_tasks_run_while_many_messages_get_their_rows():
    traffic = Traffic()
    for _ in range(3000):
        traffic.exchange()
    assert await turns_during(traffic.view.caught_up()) > 5
    assert len(rows(traffic)) == 3000


async def test_other_tasks_run_while_long_messages_are_searched():
    traffic = Traffic()
    traffic.exchange(
        params={"name": "docs__x", "text": "x" * LARGE}, answer={"result": {"text": "x" * LARGE}}
    )
    search = traffic.view.find(parse_filter("text~absent", NOW), LAST, 100)
    assert await turns_during(search) >= rows(traffic)[0].count


def test_what_a_client_narrows_its_view_to_counts_as_memory():
    traffic = Traffic(size=64 * 2**10)
    for _ in range(100):
        traffic.exchange(view=f"coding?tools={'x' * 4000}")
    assert 0 < traffic.ring.last - traffic.ring.first + 1 <= 16


async def test_a_filter_finds_no_secret():
    traffic = Traffic()
    traffic.exchange(params={"name": "docs__x", "password": "hunter2hunter2"}, view=f"coding?tools={SECRET}")
    assert SECRET not in repr(traffic.view.summary(rows(traffic)[0]))
    assert (await traffic.view.find(parse_filter(f"view~{SECRET}", NOW, LIVE_NAMES), LAST, 100))[0] == []
    assert (await traffic.view.find(parse_filter("text~hunter2", NOW), LAST, 100))[0] == []


async def test_walking_the_pages_shows_every_row_once():
    traffic = Traffic()
    for _ in range(25):
        traffic.exchange()
    everything = parse_filter("  ", NOW)
    seen: list[int] = []
    position: int | None = LAST
    while position is not None:
        page, position = await traffic.view.find(everything, position, 7)
        seen += [row.row for row in page]
    assert seen == list(range(25, 0, -1))
    assert (await traffic.view.find(everything, 1, 7))[1] is None


def test_durations_are_counted_where_they_belong():
    timed = [TimedCall(1000 + i, "docs", "tools/call", float(i), i % 10 == 0) for i in range(100)]
    older = TimedCall(999, "docs", "tools/call", 5.0, False)
    stats = measure([older, *timed], 2000, 1000, 4, 1.0)
    (group,) = stats.groups
    assert (group.count, group.errors, group.most) == (100, 10, 99.0)
    assert group.p50 == pytest.approx(49, rel=ERROR)
    assert group.p90 == pytest.approx(89, rel=ERROR)
    assert sum(group.buckets) == 100
    assert group.buckets[EDGES.index(1.0)] == 1  # 1 ms is in the bucket that ends with it
    assert [slot.count for slot in stats.slots] == [100, 0, 0, 0]
    assert stats.slots[1].p50 is None


def test_a_row_that_was_dropped_meanwhile_is_shown_without_its_texts():
    traffic = Traffic(rows=1)
    traffic.exchange(answer={"error": {"code": 1, "message": "no"}})
    (row,) = rows(traffic)
    traffic.exchange()
    assert traffic.ring.first == 2
    shown = traffic.view.summary(row)
    assert (shown.row, shown.arguments, shown.words) == (1, "", "")


def test_durations_are_counted_by_name_the_longest_first():
    calls = [
        TimedCall(1, "", "tools/call", 5.0, False, "docs__find", 1),
        TimedCall(1, "", "tools/call", 9.0, True, "docs__find", 2),
        TimedCall(1, "docs", "tools/call", 8.0, True),
        TimedCall(1, "", "prompts/get", 20.0, False, "ask", 3),
        TimedCall(1, "", "tools/list", 99.0, False),
    ]
    names = measure(calls, 2, 2, 1, 0.002).names
    assert [(group.method, group.name, group.slowest, group.count, group.errors) for group in names] == [
        ("prompts/get", "ask", 3, 1, 0),
        ("tools/call", "docs__find", 2, 2, 1),
    ]
    many = [TimedCall(1, "", "tools/call", float(i), False, f"t{i}", i) for i in range(3 * GROUPS_LIMIT)]
    names = measure(many, 2, 2, 1, 0.002).names
    assert (len(names), names[0].name, names[0].slowest) == (SHOWN_GROUPS, OTHERS, 3 * GROUPS_LIMIT - 1)
    assert sum(group.count for group in names) < 3 * GROUPS_LIMIT


def test_groups_are_bounded():
    calls = [TimedCall(1, "docs", f"vendor/{i}", 1.0, False) for i in range(2 * SHOWN_GROUPS)]
    stats = measure(calls, 2, 2, 1, 0.002)
    assert len(stats.groups) == SHOWN_GROUPS + 1
    assert stats.groups[0].method == OTHERS
