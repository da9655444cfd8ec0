"""The keeper: contents of a record, and no record lost on a slow, full or dying disk."""

from __future__ import annotations

import errno
import json
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import outcome
import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from mcpmux.channels.tap import NO_HEADERS
from mcpmux.config import Audit as AuditSettings
from mcpmux.config import Redaction
from mcpmux.errors import Refused, RpcError, TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_INFO
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR, UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.audit import opening
from mcpmux.traffic.audit.chain import AuditFiles, AuditUnusable, verify
from mcpmux.traffic.audit.journal import BACKLOG_LIMIT, GROUP_LIMIT, QUIET_ROUNDS, RETRY_SECONDS, Audit
from mcpmux.traffic.audit.opening import FLUSH_SECONDS, append_in_thread, open_audit
from mcpmux.traffic.audit.record_maker import NAME_LIMIT, TARGETS_LIMIT, TEXT_LIMIT, RecordMaker, trace_id
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.telemetry.prometheus import audit_gauges
from tests.traffic.audit_world import WALL, call_of, fields, leg_of, open_world, read_log

FULL = OSError(errno.ENOSPC, "No space left on device")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def exchange_of(call: Any, upstreams: tuple[str, ...] = (), headers: Any = NO_HEADERS) -> Exchange:
    return Exchange(7, leg_of("desk"), call, 0.0, list(upstreams), headers)


def record_of(exchange: Exchange, outcome: Fields | BaseException) -> dict[str, Any]:
    return encoded(lambda maker: maker.end(exchange, outcome, 0.25))


def encoded(make: Callable[[RecordMaker], Any], rules: Redaction | None = None) -> dict[str, Any]:
    maker = RecordMaker("run", Redactor(rules), lambda: WALL)
    record = json.loads(maker.encode([make(maker)])[0])
    assert isinstance(record, dict)
    return record


OUTCOMES: dict[str, tuple[Fields | BaseException, dict[str, Any]]] = {
    "result": (fields({"a": 1}), {"outcome": "ok", "answered": 7}),
    "nothing": ({}, {"outcome": "ok", "answered": 2}),
    "question": (
        fields({"resultType": "input_required"}),
        {"outcome": "input_required", "answered": 31},
    ),
    "error": (RpcError(-32602, "no", 1), {"outcome": "invalid_params", "code": -32602, "answered": 39}),
    "upstream away": (RpcError(UPSTREAM_UNAVAILABLE, ""), {"outcome": "unavailable", "code": -31001}),
    "upstream slow": (RpcError(UPSTREAM_TIMEOUT, ""), {"outcome": "timeout", "code": -31002}),
    "client away": (TransportClosed("x"), {"outcome": "broken", "error": "TransportClosed"}),
    "refused": (
        Refused(-32600, "no", "no-writes"),
        {"outcome": "refused", "code": -32600, "decision": "refused", "rule": "no-writes"},
    ),
}


@pytest.mark.parametrize(("outcome", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes_are_told_apart(outcome, expected):
    record = record_of(exchange_of(call_of("tools/call", name="x")), outcome)
    assert expected.items() <= record.items()
    assert not {"code", "error", "rule"} - expected.keys() & record.keys()


async def test_a_cancelled_exchange_is_told_from_a_broken_one():
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            record = record_of(exchange_of(call_of("tools/list")), cancelled)
            raise
    assert record["outcome"] == "cancelled"


TARGETS = {
    "uri": (call_of("resources/read", uri="memo:1"), "memo:1"),
    "name": (call_of("prompts/get", name="hello"), "hello"),
    "template": (call_of("completion/complete", ref={"type": "ref/resource", "uri": "memo:{x}"}), "memo:{x}"),
    "prompt": (call_of("completion/complete", ref={"type": "ref/prompt", "name": "hello"}), "hello"),
    "prompt with a URI": (
        call_of("completion/complete", ref={"type": "ref/prompt", "name": "hello", "uri": "memo:1"}),
        "hello",
    ),
    "none": (call_of("tools/list"), None),
    "no text": (call_of("resources/read", uri=5), None),
    "no ref": (call_of("completion/complete", ref=[1]), None),
}


@pytest.mark.parametrize(("call", "target"), TARGETS.values(), ids=TARGETS)
def test_the_target_is_what_the_request_is_about(call, target):
    assert record_of(exchange_of(call), {}).get("target") == target


def test_the_uris_of_a_listen_are_in_its_record_and_bounded():
    uris = [f"memo:{number}" for number in range(TARGETS_LIMIT + 2)]
    record = record_of(exchange_of(call_of(m.LISTEN, notifications={"resourceSubscriptions": uris})), {})
    assert (record["targets"], record["more_targets"]) == (uris[:TARGETS_LIMIT], 2)
    malformed: list[Any] = [{}, [], 1, {"resourceSubscriptions": 1}]
    for wrong in malformed:
        assert "targets" not in record_of(exchange_of(call_of(m.LISTEN, notifications=wrong)), {})


def test_texts_of_strangers_are_cleaned_and_cut():
    call = call_of("x" * 1000, {CLIENT_INFO: {"name": "c" * 1000}}, uri="s3cret" + "u" * 10_000)
    leg = leg_of()
    exchange = Exchange(7, leg, call, 0.0, [], NO_HEADERS)
    record = encoded(lambda maker: maker.begin(exchange), Redaction(patterns={"x": "s3cret"}))
    mask = "[redacted: x]"
    assert record["target"] == mask + "u" * (TEXT_LIMIT - len(mask) - 1) + "…"
    assert record["client"] == "c" * (NAME_LIMIT - 1) + "…"
    assert record["method"] == "x" * (NAME_LIMIT - 1) + "…"


@pytest.mark.parametrize("malformed", [1, [], {"name": 1}, {}])
def test_a_client_without_a_proper_name_has_none(malformed):
    exchange = Exchange(7, leg_of(), call_of("tools/list", {CLIENT_INFO: malformed}), 0.0, [], NO_HEADERS)
    assert "client" not in encoded(lambda maker: maker.begin(exchange))


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        TRACE,
        PARENT.upper(),
        f"ff-{PARENT[3:]}",
        PARENT.replace(TRACE, "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        PARENT + "x",
        PARENT + "\n",
    ],
)
def test_a_malformed_trace_is_none(malformed):
    assert trace_id(malformed) is None


def test_a_trace_of_a_later_version_is_understood():
    assert trace_id(f"cc-{PARENT[3:]}-what-comes-later") == TRACE


async def test_an_answer_waits_until_its_record_is_written(autojump_clock):
    async with open_world() as world, trio.open_nursery() as nursery:
        world.disk.seconds = 3.0
        began = trio.current_time()
        nursery.start_soon(world.exchange, 1)
        await wait_all_tasks_blocked()
        assert world.answered == []
        await trio.sleep(2.9)
        assert world.answered == []
        await trio.sleep(0.2)
        assert world.answered == [1]
        assert trio.current_time() - began == pytest.approx(3.1)
        (record,) = world.disk.of_kind("exchange")
        assert (record["exchange"], record["upstreams"], record["ms"]) == (1, ["docs"], 0.0)
        assert record["time"].startswith("2027-01-15T08:00:0")


async def test_what_waits_for_a_slow_disk_is_written_together(autojump_clock):
    async with open_world() as world, trio.open_nursery() as nursery:
        world.disk.seconds = 1.0
        began = trio.current_time()
        for number in range(100):
            nursery.start_soon(world.exchange, number)
    assert [len(group) for group in world.disk.groups if group[0]["kind"] == "exchange"] in ([1, 99], [100])
    assert sorted(world.answered) == list(range(100))
    assert trio.current_time() - began <= 3.0


async def test_exchanges_that_end_one_behind_the_other_share_a_write(autojump_clock):
    async def late(number: int) -> None:
        await world.recorder.admit(leg_of(), number, call_of("tools/list"))
        for _ in range(number):
            await trio.lowlevel.checkpoint()
        await world.recorder.ended(number, {})
        world.answered.append(number)

    async with open_world() as world, trio.open_nursery() as nursery:
        for number in range(GROUP_LIMIT + 10):
            nursery.start_soon(late, number)
    sizes = [len(group) for group in world.disk.groups if group[0]["kind"] == "exchange"]
    assert sizes == [GROUP_LIMIT, 10]
    assert sorted(world.answered[:GROUP_LIMIT]) == list(range(GROUP_LIMIT))


async def test_always_writes_each_record_by_itself(autojump_clock):
    async with open_world(sync="always") as world, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(world.exchange, number)
    assert [len(group) for group in world.disk.groups] == [1] * 6


async def test_a_slow_disk_holds_clients_back_and_loses_nothing(autojump_clock):
    """Clients ask without end; what waits is no more than the limit and one for each that is at work."""
    rounds, clients, most = 4, 2 * BACKLOG_LIMIT, 0

    async def client(first: int) -> None:
        nonlocal most
        for number in range(first, first + rounds):
            await world.exchange(number)
            most = max(most, len(world.audit._backlog))

    async with open_world() as world:
        world.disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(client, number * rounds)
    assert sorted(record["exchange"] for record in world.disk.of_kind("exchange")) == list(
        range(clients * rounds)
    )
    assert sorted(world.answered) == list(range(clients * rounds))
    assert most <= BACKLOG_LIMIT + clients


async def test_with_a_full_backlog_no_exchange_is_begun(autojump_clock):
    async with open_world() as world, trio.open_nursery() as nursery:
        world.disk.seconds = 10.0
        for number in range(BACKLOG_LIMIT):
            nursery.start_soon(world.exchange, number)
        await wait_all_tasks_blocked()
        nursery.start_soon(world.exchange, BACKLOG_LIMIT)
        with trio.move_on_after(5) as scope:
            await world.recorder.admit(leg_of(), 99_999, call_of("tools/list"))
        assert scope.cancelled_caught
        assert len(world.audit._backlog) == BACKLOG_LIMIT
        assert gauge_of(world.audit) == BACKLOG_LIMIT + 1
    assert gauge_of(world.audit) == 0
    assert len(world.disk.of_kind("exchange")) == BACKLOG_LIMIT + 1


def gauge_of(audit: Audit) -> float:
    """Return the metric of exchanges that are held back."""
    return gauges_of(audit)["mcpmux_audit_held_back"]


def gauges_of(audit: Audit) -> dict[str, float]:
    return {family.name: family.samples[()] for family in audit_gauges(audit)}


async def test_a_cancelled_exchange_leaves_a_record_even_when_the_disk_is_slow(autojump_clock):
    async with open_world() as world:
        world.disk.seconds = 10.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.exchange, 1)
            nursery.start_soon(world.exchange, 2, "tools/list", 1000.0)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    outcomes = {record["exchange"]: record["outcome"] for record in world.disk.of_kind("exchange")}
    assert outcomes == {1: "ok", 2: "cancelled"}


@pytest.mark.parametrize("end", ["slow", "full"])
async def test_what_has_no_answer_waits_for_nothing(autojump_clock, end):
    async with open_world() as world:
        world.disk.seconds, world.disk.error = 10.0, FULL if end == "full" else None
        await world.recorder.admit(leg_of(), 1, call_of("tools/list"))
        await world.recorder.ended(1, TransportClosed("gone"))
        assert trio.current_time() == 0.0
        await world.recorder.admit(leg_of(), 2, call_of("tools/list"))
        await trio.sleep(15 if end == "full" else 0)
        await world.recorder.ended(2, TransportClosed("gone"))
        world.disk.error = None
    assert [record["error"] for record in world.disk.of_kind("exchange")] == ["TransportClosed"] * 2


async def test_a_listen_has_records_of_its_beginning_and_its_end(autojump_clock):
    async with open_world() as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.exchange, 1, m.LISTEN, 86_400.0)
        await trio.sleep(1)
        (begun,) = world.disk.records
        assert (begun["kind"], begun["exchange"], begun["method"]) == ("begin", 1, m.LISTEN)
        await trio.sleep(86_400)
        assert world.disk.records[1]["ms"] == 86_400_000.0
    assert [record["kind"] for record in world.disk.records] == ["begin", "exchange", "close"]


async def test_a_full_disk_refuses_exchanges_and_tells_the_gap(autojump_clock):
    with capture_logs() as logs:
        async with open_world() as world:
            await world.exchange(1)
            await world.recorder.admit(leg_of(), 2, call_of("tools/call", name="x"))
            assert gauges_of(world.audit)["mcpmux_audit_failing"] == 0
            world.disk.error = FULL
            with pytest.raises(
                RpcError, match=r"\(no space left on device\), so the answer is withheld"
            ) as raised:
                await world.recorder.ended(2, {})
            assert raised.value.code == INTERNAL_ERROR
            for number in (3, 4):
                with pytest.raises(Refused, match=r"so nothing was done; try again") as refused:
                    await world.exchange(number)
                assert (refused.value.code, refused.value.rule) == (BUSY, "audit")
            assert world.answered == [1]
            await trio.sleep(100)
            assert gauges_of(world.audit)["mcpmux_audit_failing"] == 1
            world.disk.error = None
            await trio.sleep(RETRY_SECONDS + 0.1)
            assert gauges_of(world.audit)["mcpmux_audit_failing"] == 0
            await world.exchange(5)
    records = [(record["kind"], record.get("exchange")) for record in world.disk.records]
    assert records == [("exchange", 1), ("exchange", 2), ("gap", None), ("exchange", 5), ("close", None)]
    (gap,) = world.disk.of_kind("gap")
    assert (gap["refused"], gap["late"], gap["lost"]) == (2, 1, 0)
    assert gap["reason"] == "no space left on device"
    assert gap["ms"] == pytest.approx(100_000, abs=2000)
    errors = [event for event in logs if event["log_level"] == "error"]
    assert {event["event"] for event in errors} == {"audit log cannot be written; exchanges are refused"}
    assert len(errors) == 2  # at first, and again after a minute
    assert [event["event"] for event in logs if event["log_level"] == "warning"] == [
        "audit log can be written again"
    ]


async def test_a_full_disk_lets_exchanges_go_on_where_that_is_wanted(autojump_clock):
    extra = 10
    with capture_logs() as logs:
        async with open_world(on_full="continue") as world:
            world.disk.error = FULL
            for number in range(BACKLOG_LIMIT + extra):
                await world.exchange(number)
            await world.exchange(99_999, m.LISTEN)
            assert len(world.answered) == BACKLOG_LIMIT + extra + 1
            assert len(world.audit._backlog) == BACKLOG_LIMIT
            world.disk.error = None
    assert [record["exchange"] for record in world.disk.of_kind("exchange")] == list(range(BACKLOG_LIMIT))
    (gap,) = world.disk.of_kind("gap")
    assert (gap["refused"], gap["late"], gap["lost"]) == (
        0,
        BACKLOG_LIMIT + 1,
        extra + 2,
    )  # `close` is late, too
    assert "exchanges go on UNAUDITED" in next(e["event"] for e in logs if e["log_level"] == "error")


async def test_those_who_wait_when_the_disk_gets_full_are_told(autojump_clock):
    """With a full backlog and a slow disk that then fails, everybody gets an answer at once."""
    refusals: list[RpcError] = []

    async def client(number: int) -> None:
        try:
            await world.exchange(number)
        except RpcError as error:
            refusals.append(error)

    async with open_world() as world:
        world.disk.seconds, world.disk.error = 10.0, FULL
        async with trio.open_nursery() as nursery:
            for number in range(BACKLOG_LIMIT):
                nursery.start_soon(client, number)
            await wait_all_tasks_blocked()
            for number in range(5):
                nursery.start_soon(client, BACKLOG_LIMIT + number)
        assert trio.current_time() == pytest.approx(10.0)
        codes = sorted(error.code for error in refusals)
        assert codes == [INTERNAL_ERROR] * BACKLOG_LIMIT + [BUSY] * 5
        world.disk.error = None
    assert len(world.disk.of_kind("exchange")) == BACKLOG_LIMIT
    assert world.disk.of_kind("gap")[0]["refused"] == 5


async def test_a_listen_that_cannot_be_noted_is_refused_and_told(autojump_clock):
    async with open_world() as world:
        world.disk.error = FULL
        with pytest.raises(Refused):
            await world.exchange(1, m.LISTEN)
        world.disk.error = None
    kinds = [record["kind"] for record in world.disk.records]
    assert kinds == ["begin", "exchange", "close", "gap"]
    assert world.disk.records[1]["rule"] == "audit"


async def test_files_hold_all_answers_and_end_with_the_reported_head(tmp_path, monkeypatch):
    settings = AuditSettings(directory=str(tmp_path / "deep" / "log"))
    monkeypatch.setattr(opening, "log", structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger))
    with capture_logs() as logs:
        for run in ("first", "second"):
            async with open_audit(settings, run, wall=lambda: 0.5) as audit:
                exchange = exchange_of(call_of("tools/list"))
                await audit.admit(exchange)
                await audit.ended(exchange, {}, 0.1)
                assert read_log(tmp_path / "deep" / "log")[-1]["method"] == "tools/list"
    records = read_log(tmp_path / "deep" / "log")
    kinds = [(record["run"], record["kind"]) for record in records]
    assert kinds == [(run, kind) for run in ("first", "second") for kind in ("open", "exchange", "close")]
    assert [record.get("file") for record in records if record["kind"] == "open"] == [1, None]
    assert records[0]["time"] == "1970-01-01T00:00:00.500000Z"
    assert [log["event"] for log in logs] == ["audit log opened", "audit log closed"] * 2
    assert logs[-1] == {
        "event": "audit log closed",
        "log_level": "info",
        "record": 6,
        "head": records[-1]["hash"],
    }
    assert verify(tmp_path / "deep" / "log", None, anchor=records[2]["hash"]).anchored


async def test_a_crash_around_it_still_leaves_the_whole_log(tmp_path):
    with pytest.raises(ExceptionGroup):
        async with open_audit(AuditSettings(directory=str(tmp_path)), "run") as audit:
            await audit.admit(exchange_of(call_of("tools/list")))
            raise RuntimeError("boom")
    assert [record["kind"] for record in read_log(tmp_path)] == ["open", "close"]


async def test_a_cancellation_around_it_still_leaves_the_whole_log(tmp_path):
    with trio.CancelScope() as scope:
        async with open_audit(AuditSettings(directory=str(tmp_path)), "run") as audit:
            scope.cancel()
            await audit.ended(exchange_of(call_of("tools/list")), {}, 0.1)
    assert [record["kind"] for record in read_log(tmp_path)] == ["open", "exchange", "close"]


async def test_a_disk_that_stays_full_does_not_keep_us_from_stopping(tmp_path, autojump_clock, monkeypatch):
    """At the one seam to the files."""

    async def fail(files: object, bodies: object) -> None:
        raise FULL

    monkeypatch.setattr(opening, "append_in_thread", fail)
    with capture_logs() as logs:
        async with open_audit(AuditSettings(directory=str(tmp_path)), "run"):
            pass
    assert trio.current_time() == pytest.approx(FLUSH_SECONDS)
    assert [log["event"] for log in logs if log["event"].startswith("audit log could not")] == [
        logs[-1]["event"]
    ]
    assert logs[-1]["event"] == "audit log could not be finished in time"
    assert "1 waiting, failing: no space left on device" in logs[-1]["state"]


async def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditUnusable, match=r"cannot open the audit log in .*file/log: not a directory"):
        async with open_audit(AuditSettings(directory=str(tmp_path / "file" / "log")), "run"):
            pass


async def test_a_record_that_is_alone_is_written_without_a_thread(tmp_path, monkeypatch):
    in_threads: list[int] = []

    async def append(files: AuditFiles, bodies: Sequence[bytes]) -> None:
        in_threads.append(len(bodies))
        files.append(bodies)

    monkeypatch.setattr(opening, "QUICK_SECONDS", math.inf)
    monkeypatch.setattr(opening, "append_in_thread", append)
    async with open_audit(AuditSettings(directory=str(tmp_path)), "run") as audit:
        exchanges = [exchange_of(call_of("tools/list")) for _ in range(3)]
        for exchange in exchanges:
            await audit.admit(exchange)
        for exchange in exchanges:
            await audit.ended(exchange, {}, 0.1)
        kinds = [record["kind"] for record in read_log(tmp_path)]
        assert (kinds, in_threads) == (["open", "exchange", "exchange", "exchange"], [1, 1])
    assert verify(tmp_path, None).fault is None


async def test_a_slow_disk_is_not_waited_for_in_the_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "QUICK_SECONDS", 0.0)
    names: list[str | None] = []
    start_thread = trio.lowlevel.start_thread_soon

    def start(work: Any, deliver: Any, name: str | None = None) -> None:
        names.append(name)
        start_thread(work, deliver, name)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start)
    async with open_audit(AuditSettings(directory=str(tmp_path)), "run") as audit:
        exchange = exchange_of(call_of("tools/list"))
        await audit.admit(exchange)
        await audit.ended(exchange, {}, 0.1)
        assert "audit" in names


class SlowFiles:
    """Files whose writes end when they are let; see AuditFiles."""

    def __init__(self) -> None:
        self.let = [threading.Event(), threading.Event()]
        self.ended = threading.Event()

    def append(self, bodies: Any) -> None:
        assert self.let[int(bodies[0])].wait(timeout=60)
        self.ended.set()
        raise FULL


async def test_a_write_that_was_given_up_is_not_taken_for_the_next():
    files = SlowFiles()
    append = partial(append_in_thread, cast("AuditFiles", files))
    with trio.CancelScope() as scope:
        scope.cancel()
        await append([b"0"])
    assert scope.cancelled_caught
    errors: list[OSError] = []

    async def write() -> None:
        try:
            await append([b"1"])
        except OSError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        files.let[0].set()
        await trio.to_thread.run_sync(files.ended.wait)
        await wait_all_tasks_blocked(0.01)
        assert errors == []
        files.let[1].set()
    assert errors == [FULL]


def test_a_write_that_ends_after_everything_else_is_harmless(monkeypatch):
    delivered: list[Any] = []
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", lambda _, deliver, __: delivered.append(deliver))

    async def give_up() -> None:
        with trio.move_on_after(0):
            await append_in_thread(cast("AuditFiles", SlowFiles()), [b"0"])

    trio.run(give_up)
    delivered[0](outcome.Value(None))


class Turns(trio.abc.Instrument):
    """Counts the turns of the scheduler."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_who_is_alone_waits_for_nobody(autojump_clock):
    turns, took = Turns(), []
    trio.lowlevel.add_instrument(turns)
    async with open_world() as world:
        for number in (1, 2):
            start = turns.count
            await world.exchange(number)
            took.append(turns.count - start)
            if number == 1:
                await world.recorder.admit(leg_of(), 3, call_of("tools/list"))
        await world.recorder.ended(3, {})
    alone, beside_another = took
    assert alone + QUIET_ROUNDS <= beside_another
