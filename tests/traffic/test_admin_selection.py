"""What can be done with exchanges that are chosen: mark them, compare them, take them as a capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from mcpmux import __version__
from mcpmux.traffic.capture.files import read_files
from mcpmux.traffic.reading.dialogue import Reading
from mcpmux.traffic.reading.export import to_har
from mcpmux.traffic.record import decode_record
from tests.traffic.admin_world import SECRET, Listening, Traffic, ask, events, get, hear, listening, post


async def mark(here: Listening, row: int, **said: Any) -> tuple[int, Any]:
    status, _, body = await post(here, f"/api/exchanges/{row}", json.dumps(said).encode())
    return status, json.loads(body)


async def rows(here: Listening, filter_text: str) -> list[int]:
    page = await get(here, f"/api/exchanges?{urlencode({'filter': filter_text})}")
    return [row["row"] for row in page["rows"]]


async def test_a_mark_and_a_note_are_kept_told_and_found():
    traffic = Traffic()
    for _ in range(3):
        traffic.exchange()
    async with listening(traffic) as here, events(here, "/api/exchanges/stream") as stream:
        await hear(stream)
        status, answer = await mark(here, 2, marked=True, note="Slow? ask Ann")
        assert (status, answer["row"]["marked"], answer["row"]["note"]) == (200, True, "Slow? ask Ann")
        _, event = await hear(stream)
        assert [(row["row"], row["note"]) for row in event["rows"]] == [(2, "Slow? ask Ann")]
        assert await rows(here, "marked") == await rows(here, "note~ann") == await rows(here, "note!=") == [2]
        assert await rows(here, "!marked") == await rows(here, "note=") == [3, 1]
        await mark(here, 2, marked=False)
        assert await rows(here, "marked") == []
        assert await rows(here, "note!=") == [2]
        await mark(here, 2, note="")
        assert await rows(here, "note!=") == []
        assert "note" not in (await get(here, "/api/exchanges/2"))["row"]


@pytest.mark.parametrize(
    ("row", "said", "status", "word"),
    [
        (1, {"marked": True, "note": "x" * 501}, 400, "length"),
        (1, {"marked": "yes"}, 400, "marked"),
        (1, {"note": 1}, 400, "note"),
        (1, {"marked": True, "colour": "red"}, 400, "colour"),
        (2, {"marked": True}, 404, "not here any more"),
    ],
)
async def test_what_is_no_mark_is_refused_with_its_reason(row, said, status, word):
    traffic = Traffic()
    traffic.exchange()
    async with listening(traffic) as here:
        code, answer = await mark(here, row, **said)
        assert code == status
        assert word in answer["error"]
        assert await rows(here, "marked") == []


async def test_notes_count_in_the_rings_memory_and_go_with_their_exchange():
    traffic = Traffic(rows=2)
    traffic.exchange()
    ring = traffic.ring
    row = ring.row(1)
    assert row is not None
    size = ring._bytes
    ring.mark(row, True, "n" * 500)
    assert ring._bytes == size + 500
    ring.mark(row, True, "")
    assert ring._bytes == size
    ring.mark(row, True, "n" * 500)
    for _ in range(2):
        traffic.exchange()
    there = list(traffic.ring.before(4))
    assert len(there) == 2
    ring.mark(row, True, "")
    assert ring._bytes == sum(row.weight for row in there)


async def test_two_exchanges_differ_by_path_in_what_was_asked_and_answered():
    traffic = Traffic()
    for number, text in ((1, "one"), (2, "two")):
        traffic.exchange(
            params={"name": "docs__find", "arguments": {"n": number, "same": True}},
            answer={"result": {"content": [{"type": "text", "text": text}], "nextCursor": text}},
        )
    traffic.begin("tools/call", {"name": "docs__find", "arguments": {"n": 2, "same": True}})
    async with listening(traffic) as here:
        answer = await get(here, "/api/exchanges/1/differences/2")
        assert answer == {
            "differences": [
                {"path": "params.arguments.n", "kind": "changed", "captured": 1, "now": 2},
                {"path": "result.content[0].text", "kind": "changed", "captured": "one", "now": "two"},
            ],
            "incomplete": False,
        }
        open_one = (await get(here, "/api/exchanges/2/differences/3"))["differences"]
        assert [(item["path"], item["kind"]) for item in open_one] == [("result", "removed")]
        assert (await get(here, "/api/exchanges/2/differences/2"))["differences"] == []
        assert (await ask(here, "/api/exchanges/2/differences/4", token=here.token))[0] == 404


async def test_messages_too_large_to_be_kept_are_reported_as_not_compared():
    traffic = Traffic(size=2**20)
    for _ in range(2):
        traffic.exchange(answer={"result": {"content": [{"type": "text", "text": "x" * 2**17}]}})
    async with listening(traffic) as here:
        answer = await get(here, "/api/exchanges/1/differences/2")
        assert answer["incomplete"] is True
        assert [item["path"] for item in answer["differences"]] == ["params.arguments.n"]


async def test_what_a_filter_finds_is_taken_as_a_capture_without_secrets(tmp_path: Path):
    traffic = Traffic()
    for upstream in ("docs", "search", "docs"):
        traffic.exchange(
            upstream=upstream, params={"name": f"{upstream}__find", "arguments": {"token": SECRET}}
        )
    async with listening(traffic) as here:
        status, fields, body = await ask(here, "/api/capture?filter=upstream%3Ddocs", token=here.token)
        assert (status, fields["content-type"]) == (200, "application/x-ndjson")
        assert (await ask(here, "/api/capture?filter=metod%3Dx", token=here.token))[0] == 400
        assert (await ask(here, "/api/capture", method="HEAD", token=here.token))[0] == 400
        status, fields, har = await ask(here, "/api/har?filter=upstream%3Ddocs", token=here.token)
        assert (status, fields["content-type"]) == (200, "application/json")
    file = tmp_path / "selection.jsonl"
    lines = unchunked_lines(body)
    file.write_bytes(b"\n".join(lines) + b"\n")
    bad: list[Any] = []
    start, *messages = read_files([file], bad.append)
    assert bad == []
    assert (start.kind, start.run) == ("start", "test")
    assert [record.seq for record in messages] == [1, 2, 3, 4, 9, 10, 11, 12]
    assert SECRET not in file.read_text()
    (document,) = [part for part in har.split(b"\r\n") if part.startswith(b"{")]  # one chunk
    assert document.decode() == "".join(to_har(messages, __version__))
    reading = Reading("client", None)
    for record in map(decode_record, lines):
        reading.add(record)
    (dialogue,) = reading.dialogues()
    assert [request.exchange for request in dialogue.requests()] == [1, 3]


def unchunked_lines(body: bytes) -> list[bytes]:
    """Return the lines of JSON in a chunked body."""
    return [line for line in body.splitlines() if line.startswith(b"{")]


async def test_where_http_clients_connect_is_told_when_they_can():
    for tap in (True, False):
        async with listening(tap=tap) as here:
            endpoint = (await get(here, "/api/control"))["endpoint"]
            assert (endpoint or "").startswith("http://127.0.0.1:") is tap
