"""From the tap to the file: records, levels, a queue that is full, a disk that is, and the end."""

from __future__ import annotations

import errno
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.channels.tap import Direction, Leg
from mcpmux.config import Capture, CaptureRule, Redaction
from mcpmux.protocol.call import Call
from mcpmux.traffic.capture import capture as capture_module
from mcpmux.traffic.capture.capture import CaptureSink, CaptureUnusable, open_capture
from mcpmux.traffic.capture.files import CaptureWriter, find_files, read_files
from mcpmux.traffic.capture.line import encode_lines, to_record
from mcpmux.traffic.observer import BATCH, Observation
from mcpmux.traffic.record import Record, Run, decode_record, encode_record
from mcpmux.traffic.recorder import Recorder, observe
from mcpmux.traffic.redaction.redactor import Redactor
from tests.examples import examples

RUN = Run("5f3a9c01", 100.0, 1_795_262_400.0)
REDACTOR = Redactor(Redaction(paths=("params.uri",), keys=("ssn",)))
FULL = Capture(level="full", compress=False)
PREFIXES = {"docs": "docs"}


def ask(client: Leg, exchanges: Iterator[int], text: str = "", **params: Any) -> Observation:
    message = {
        "jsonrpc": "2.0",
        "id": "a",
        "method": "tools/call",
        "params": {"name": "t", **params, "x": text},
    }
    number = next(exchanges)
    unread = Observation(client, "in", json.dumps(message).encode(), 101.25)
    return observe([unread], iter([number]), iter([number]))[0]


def asks() -> Iterator[Observation]:
    """Yield requests of one client, without end."""
    client, exchanges = Leg("client", "c1", "http"), itertools.count(1)
    while True:
        yield ask(client, exchanges)


def record_of(data: bytes, level: str = "full", body_bytes: int = 4096) -> Record:
    """Return the record of a client's message, as a reader gets it."""
    unread = Observation(Leg("client", "c1", "http"), "in", data, 101.25)
    (seen,) = observe([unread], itertools.count(1), itertools.count(1))
    (line,) = encode_lines(RUN, REDACTOR, body_bytes, level, [seen])
    assert line.count(b"\n") == 1
    json.loads(line)
    return decode_record(line)


def files_of(directory: Path) -> list[Record]:
    return list(read_files(find_files(directory), lambda bad: pytest.fail(str(bad))))


# ── Records ──────────────────────────────────────────────────────────────────────────────────────


def test_a_record_says_all_that_is_known():
    leg = Leg("upstream", "docs#3", "http", "docs")
    leg.revision, leg.session = "2025-11-25", "very-secret-session"
    seen = Observation(
        leg, "in", b'{"jsonrpc":"2.0","id":1,\n"result":{}}', 101.25, "result", 4, "tools/call", 1,
        None, None, True, 12.346, 200, 7, 3,
    )  # fmt: skip
    record = to_record(seen, RUN, REDACTOR)
    again = to_record(seen, RUN, REDACTOR)
    assert record.session == again.session
    assert "secret" not in str(record.session)
    assert record == Record(
        v=1,
        run="5f3a9c01",
        seq=7,
        answers=3,
        time="2026-11-21T12:00:01.250000Z",
        at=1.25,
        kind="result",
        leg="upstream",
        direction="in",
        exchange=4,
        method="tools/call",
        id=1,
        peer="docs#3",
        upstream="docs",
        session=record.session,
        transport="http",
        revision="2025-11-25",
        status=200,
        size=37,
        failed=True,
        ms=12.346,
        message=record.message,
    )
    assert bytes(record.message or b"") == b'{"jsonrpc":"2.0","id":1, "result":{}}'


def test_levels_keep_all_the_beginning_or_nothing_of_a_body():
    data = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"t": "é" * 50}}, ensure_ascii=False
    )
    assert bytes(record_of(data.encode()).message or b"").decode() == data
    assert bytes(record_of(data.encode(), "truncated").message or b"").decode() == data
    cut = record_of(data.encode(), "truncated", 62)
    assert (cut.message, cut.text, cut.size) == (
        None,
        data.encode()[:62].decode("utf-8", "ignore"),
        len(data) + 50,
    )
    nothing = record_of(data.encode(), "metadata")
    assert (nothing.message, nothing.text, nothing.method, nothing.id) == (None, None, "m", 1)


@pytest.mark.parametrize(
    ("data", "message", "text"),
    [
        (b"no json", None, "no json"),
        (b"\xff{}", None, "\ufffd{}"),
        (b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0"}', None),
        (b'{"a":\n1}', b'{"a": 1}', None),
        (b"[]", None, "[]"),
        (b'{"a": NaN}', None, '{"a": NaN}'),
        (b'{"a": "\\ud800"}', None, '{"a": "\\ud800"}'),
        (b"", None, ""),
    ],
)
def test_what_is_no_message_is_kept_as_it_can_be(data: bytes, message: bytes | None, text: str | None):
    record = record_of(data)
    assert record.kind == "invalid"
    assert (bytes(record.message) if record.message is not None else None, record.text) == (message, text)


def test_what_is_redacted_in_a_message_is_not_told_beside_it():
    message = {
        "jsonrpc": "2.0",
        "id": "Bearer hunter2hunter2",
        "method": "resources/read",
        "params": {"uri": "x:1"},
    }
    record = record_of(json.dumps(message).encode(), "metadata")
    assert record.target == "[redacted: params.uri]"
    assert record.id == "Bearer [redacted: authorization]"
    assert record.redacted == 2


SECRET = "hunter2hunter2"
PLACES: list[Callable[[str], dict[str, Any]]] = [
    lambda secret: {"params": {"password": secret}},
    lambda secret: {"params": {"uri": f"https://u:{secret}@h/"}},
    lambda secret: {"params": {"name": f"token={secret}"}},
    lambda secret: {"params": {"ref": {"uri": f"https://h/?token={secret}"}}},
    lambda secret: {"params": {"arguments": {"ssn": secret}}},
    lambda secret: {"params": {"uri": secret}},
    lambda secret: {"method": f"Bearer {secret}"},
    lambda secret: {"id": f"Bearer {secret}"},
    lambda secret: {"jsonrpc": f"password: {secret}"},
    lambda secret: {f"sk-{secret}{secret}": 1},
]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(PLACES),
    st.sampled_from(["metadata", "truncated", "full"]),
    st.integers(1, 400),
    st.text(max_size=100),
    st.booleans(),
)
def test_a_planted_secret_is_in_no_record_of_any_level(place, level, body_bytes, filler, valid):
    base = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "zz": filler}
    data = json.dumps({**base, **place(SECRET)}).encode()
    if not valid:
        data += b"}"
    record = record_of(data, level, body_bytes)
    assert SECRET not in encode_record(record).decode()
    assert SECRET not in str(record)


def test_names_of_legs_are_redacted():
    leg = Leg("client", "c1", "http")
    leg.name, leg.revision = f"app (token={SECRET})", f"Bearer {SECRET}"
    record = to_record(ask(leg, itertools.count(1)), RUN, REDACTOR)
    assert record.client == "app (token=[redacted: token])"
    assert SECRET not in str(record)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - files and threads set no event
            await trio.sleep(0.01)


def observers_of(sink: CaptureSink) -> tuple[CaptureSink, ...]:
    """Return the observers of exchanges: the sink, if it holds exchanges back."""
    return (sink,) if sink.holds_back else ()


async def capture(
    config: Capture, directory: Path, use: Callable[[CaptureSink], Any], redactor: Redactor = REDACTOR
) -> list[Record]:
    config = attrs.evolve(config, directory=str(directory))
    async with open_capture(config, redactor, RUN, PREFIXES, lambda: 101.25) as sink:
        await use(sink)
    return files_of(directory)


async def test_messages_of_both_legs_are_in_the_files_in_their_order(tmp_path: Path):
    async def use(sink: CaptureSink) -> None:
        recorder = Recorder([sink], observers_of(sink), lambda: 101.25)
        client, docs = recorder.client("http"), Leg("upstream", "docs", "stdio", "docs")
        passed: list[tuple[Leg, Direction, dict[str, Any]]] = [
            (client, "in", {"id": "a", "method": "tools/list"}),
            (docs, "out", {"id": 1, "method": "tools/list"}),
            (docs, "in", {"id": 1, "result": {"tools": []}}),
            (client, "out", {"id": "a", "result": {"tools": []}}),
        ]
        for leg, direction, message in passed:
            recorder.message_passed(leg, direction, json.dumps({"jsonrpc": "2.0", **message}).encode())

    start, *records = await capture(FULL, tmp_path / "new", use)
    assert start.kind == "start"
    assert [(r.seq, r.leg, r.direction, r.kind, r.id) for r in records] == [
        (1, "client", "in", "request", "a"),
        (2, "upstream", "out", "request", 1),
        (3, "upstream", "in", "result", 1),
        (4, "client", "out", "result", "a"),
    ]


async def test_many_messages_are_captured_in_order_without_their_secrets(tmp_path: Path):
    large = 300

    async def use(sink: CaptureSink) -> None:
        recorder = Recorder([sink], observers_of(sink), lambda: 101.25)
        client = recorder.client("http")
        for number in range(1000):
            text = f'"token": "{SECRET}"' if number % 70 == 3 else "x" * (200_000 if number == large else 10)
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"text": text}}
            recorder.message_passed(client, "in", json.dumps(message).encode())
            if number % 97 == 0:
                await trio.lowlevel.checkpoint()

    _, *records = await capture(FULL, tmp_path, use, Redactor())
    assert [(r.seq, r.id, r.exchange) for r in records] == [(n + 1, n, n + 1) for n in range(1000)]
    assert [r.id for r in records if r.redacted] == list(range(3, 1000, 70))
    assert records[large].size > 200_000
    assert all(SECRET.encode() not in path.read_bytes() for path in find_files(tmp_path))


async def test_what_waits_to_be_looked_at_is_written_before_long(tmp_path: Path):
    async def use(sink: CaptureSink) -> None:
        recorder = Recorder([sink], (), lambda: 101.25)
        recorder.message_passed(recorder.client("http"), "in", b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        await until(lambda: len(files_of(tmp_path)) == 2)

    assert [record.method for record in await capture(FULL, tmp_path, use)] == [None, "ping"]


async def test_what_passes_after_a_great_deal_is_written_before_long_too(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(capture_module, "BATCH_BYTES", 2**14)  # soon so much that it is written in a hurry

    async def use(sink: CaptureSink) -> None:
        recorder = Recorder([sink], (), lambda: 101.25)
        client = recorder.client("http")
        for number in range(BATCH * 2 + 1):
            recorder.message_passed(client, "in", b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
        await until(lambda: len(files_of(tmp_path)) == BATCH * 2 + 2)

    assert len(await capture(FULL, tmp_path, use)) == BATCH * 2 + 2


async def test_messages_of_level_off_are_not_written(tmp_path: Path):
    async def use(sink: CaptureSink) -> None:
        recorder = Recorder([sink], (), lambda: 101.25)
        client = recorder.client("http")
        for method in ("ping", "tools/list", "ping", "tools/list"):
            recorder.message_passed(
                client, "in", json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode()
            )

    config = attrs.evolve(FULL, level="off", rules=(CaptureRule(method="tools/*", level="full"),))
    assert [(r.seq, r.method) for r in await capture(config, tmp_path, use)][1:] == [
        (2, "tools/list"),
        (4, "tools/list"),
    ]


async def test_a_full_queue_drops_and_says_how_many(tmp_path: Path):
    client, exchanges = Leg("client", "c1", "http"), itertools.count(1)

    async def use(sink: CaptureSink) -> None:
        assert not sink.holds_back
        for _ in range(100):
            sink.take_all([ask(client, exchanges, "x" * 1000)])
        assert 30 < sink.dropped < 60
        await until(lambda: not sink._bytes)
        sink.take_all([ask(client, exchanges)])

    with structlog.testing.capture_logs() as logs:
        records = await capture(attrs.evolve(FULL, queue_bytes=65536), tmp_path, use)
    numbers = [record.seq for record in records][1:]
    assert numbers == [*range(1, len(numbers)), 101]
    assert [(entry["log_level"], entry["dropped"]) for entry in logs] == [("warning", 101 - len(numbers))]


async def test_a_message_that_is_longer_than_the_queue_is_written(tmp_path: Path):
    client, exchanges = Leg("client", "c1", "http"), itertools.count(1)

    async def use(sink: CaptureSink) -> None:
        for _ in range(2):
            sink.take_all([ask(client, exchanges, "x" * 100_000)])
            assert sink.dropped == 0
            sink.take_all([ask(client, exchanges)])
            assert sink.dropped == 1
            sink.dropped = 0
            await until(lambda: not sink._bytes)

    records = await capture(attrs.evolve(FULL, queue_bytes=65536), tmp_path, use)
    assert [record.seq for record in records][1:] == [1, 3]


async def test_with_wait_requests_wait_for_room_and_nothing_is_dropped(tmp_path: Path):
    text = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"text":"' + b"x" * 1000 + b'"}}'

    async def use(sink: CaptureSink) -> None:
        recorder = Recorder([sink], observers_of(sink), lambda: 101.25)
        client = recorder.client("http")
        for number in range(300):
            with trio.fail_after(60):
                await recorder.admit(client, number, Call("tools/call", {}, {}))
            recorder.message_passed(client, "in", text % number)
        assert sink.dropped == 0

    records = await capture(attrs.evolve(FULL, queue_bytes=65536, on_full="wait"), tmp_path, use)
    assert [record.seq for record in records] == list(range(301))


def cannot_write(writer: CaptureWriter) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_disk_that_is_full_pauses_the_capture_and_nothing_else(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(capture_module, "RETRY_SECONDS", 0.01)
    client, exchanges = Leg("client", "c1", "http"), itertools.count(1)

    async def use(sink: CaptureSink) -> None:
        with monkeypatch.context() as full:
            full.setattr(CaptureWriter, "write", cannot_write)
            for _ in range(40):
                sink.take_all([ask(client, exchanges, "x" * 1000)])
            await until(lambda: sink.paused)
            with trio.fail_after(60):
                await sink.admit(None)  # type: ignore[arg-type]
            for _ in range(50):
                sink.take_all([ask(client, exchanges, "x" * 1000)])
            assert sink.dropped
        await until(lambda: not sink.paused and not sink._bytes)
        sink.take_all([ask(client, exchanges)])

    with structlog.testing.capture_logs() as logs:
        records = await capture(attrs.evolve(FULL, queue_bytes=65536, on_full="wait"), tmp_path, use)
    assert [entry["event"].partition(",")[0].partition(":")[0] for entry in logs] == [
        "capture pauses",
        "capture goes on",
        "messages are missing in the capture",
    ]
    assert (logs[0]["log_level"], logs[0]["reason"]) == ("error", "no space left on device")
    assert [record.seq for record in records][1:41] == list(range(1, 41))
    assert records[-1].seq == 91


async def test_a_full_disk_does_not_delay_the_end_and_is_reported_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(capture_module, "BATCH_BYTES", 1)  # so that there are several
    sinks = []

    async def use(sink: CaptureSink) -> None:
        monkeypatch.setattr(CaptureWriter, "write", cannot_write)
        requests = asks()
        sinks.append(sink)
        for _ in range(3):
            sink.take_all([next(requests)])

    with structlog.testing.capture_logs() as logs, trio.fail_after(60):
        await capture(FULL, tmp_path, use)
    warnings = [entry["event"].partition(":")[0].partition(",")[0] for entry in logs]
    assert warnings == ["capture pauses", "the capture is incomplete"]
    assert (logs[1]["log_level"], logs[1]["lost"]) == ("error", 3)
    assert sinks[0].dropped == 3


async def test_what_is_lost_at_the_end_are_the_last_messages(tmp_path: Path, monkeypatch):
    """Once a message is lost, those behind it are, too: there is no gap in what is kept."""
    monkeypatch.setattr(capture_module, "BATCH_BYTES", 1)
    write, calls = CaptureWriter.write, itertools.count()

    def second_time_full(writer: CaptureWriter) -> None:
        (cannot_write if next(calls) == 1 else write)(writer)

    async def use(sink: CaptureSink) -> None:
        monkeypatch.setattr(CaptureWriter, "write", second_time_full)
        requests = asks()
        for _ in range(4 * capture_module.ENCODED_AT_ONCE):
            sink.take_all([next(requests)])

    with structlog.testing.capture_logs() as logs:
        records = await capture(FULL, tmp_path, use)
    assert [record.seq for record in records][1:] == list(range(1, capture_module.ENCODED_AT_ONCE + 1))
    assert logs[-1]["lost"] == 3 * capture_module.ENCODED_AT_ONCE


async def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch):
    release = threading.Event()

    def hang(writer: CaptureWriter) -> None:
        release.wait(30)

    monkeypatch.setattr(capture_module, "CLOSE_SECONDS", 0.05)

    async def use(sink: CaptureSink) -> None:
        monkeypatch.setattr(CaptureWriter, "write", hang)
        requests = asks()
        sink.take_all([next(requests)])
        scope.cancel()

    with structlog.testing.capture_logs() as logs, trio.fail_after(60), trio.CancelScope() as scope:
        await capture(FULL, tmp_path, use)
    release.set()
    assert [entry["event"].partition(",")[0] for entry in logs] == ["the capture is incomplete"]


async def test_what_was_taken_is_written_also_when_all_is_cancelled(tmp_path: Path):
    with trio.CancelScope() as scope:

        async def use(sink: CaptureSink) -> None:

            requests = asks()
            scope.cancel()
            for _ in range(100):
                sink.take_all([next(requests)])
            await trio.sleep_forever()

        await capture(FULL, tmp_path, use)
    assert [record.seq for record in files_of(tmp_path)] == list(range(101))


async def test_large_messages_keep_their_place(tmp_path: Path):
    client, exchanges = Leg("client", "c1", "http"), itertools.count(1)

    async def use(sink: CaptureSink) -> None:
        for number in range(9):
            sink.take_all([ask(client, exchanges, "x" * (500_000 if number % 3 == 1 else 10))])

    records = await capture(FULL, tmp_path, use)
    assert [record.seq for record in records] == list(range(10))
    assert records[2].size > 500_000


async def test_files_are_begun_and_removed_while_it_runs(tmp_path: Path):
    client, exchanges = Leg("client", "c1", "http"), itertools.count(1)

    async def use(sink: CaptureSink) -> None:
        for _ in range(20):
            sink.take_all([ask(client, exchanges, "x" * capture_module.LARGE)])
        await until(lambda: len(find_files(tmp_path)) == 2)

    config = attrs.evolve(FULL, rotate_size=4096, compress=True, keep_files=2)
    assert [record.seq for record in await capture(config, tmp_path, use)][-1] == 20


async def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CaptureUnusable, match=r"capture: cannot write in .*/file/x: not a directory"):
        await capture(FULL, tmp_path / "file" / "x", trio.sleep_forever)  # type: ignore[arg-type]
