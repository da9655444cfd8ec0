from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.reading.export import COLUMNS, to_csv, to_har
from mcpmux.traffic.record import Record
from tests.traffic.made import Play, record

ENTRY = {
    "startedDateTime": str,
    "time": (int, float),
    "request": {
        "method": str,
        "url": str,
        "httpVersion": str,
        "cookies": list,
        "headers": list,
        "queryString": list,
        "postData": {"mimeType": str, "params": list, "text": str},
        "headersSize": int,
        "bodySize": int,
    },
    "response": {
        "status": int,
        "statusText": str,
        "httpVersion": str,
        "cookies": list,
        "headers": list,
        "content": {"size": int, "mimeType": str, "text": str},
        "redirectURL": str,
        "headersSize": int,
        "bodySize": int,
    },
    "cache": {},
    "timings": {"send": (int, float), "wait": (int, float), "receive": (int, float)},
}
"""What HAR 1.2 demands of an entry, and the sorts of values."""


def har(records: list[Record]) -> list[dict[str, Any]]:
    """Return the entries, checked by the rules of HAR 1.2."""
    document = json.loads("".join(to_har(records, "9.9")))
    assert list(document) == ["log"]
    assert document["log"]["version"] == "1.2"
    assert document["log"]["creator"] == {"name": "mcpmux", "version": "9.9"}
    for entry in document["log"]["entries"]:
        check(entry, ENTRY)
        assert datetime.fromisoformat(entry["startedDateTime"]).tzinfo is not None
        timings = entry["timings"]
        assert entry["time"] == sum(value for value in timings.values() if value >= 0)
        url = urlsplit(entry["request"]["url"])
        assert (url.scheme, url.hostname is None) == ("http", False)
        assert url.netloc.endswith(".invalid")
    return document["log"]["entries"]


def check(value: dict[str, Any], shape: dict[str, Any]) -> None:
    for name, expected in shape.items():
        if isinstance(expected, dict):
            check(value[name], expected)
        else:
            assert isinstance(value[name], expected), name
            assert not isinstance(value[name], bool)


def test_each_leg_of_an_exchange_is_an_entry():
    play = Play()
    play.read("file:///a b.md", seconds=0.25)
    upstream, client = har(play.records)
    assert upstream["request"]["url"] == (
        "http://docs.upstream.invalid/resources/read?target=file%3A%2F%2F%2Fa%20b.md"
    )
    assert client["request"]["url"].startswith("http://c1.client.invalid/resources/read?target=docs%2Bfile")
    assert client["request"]["queryString"] == [{"name": "target", "value": "docs+file:///a b.md"}]
    assert client["request"]["httpVersion"] == "HTTP/1.1"
    assert upstream["request"]["httpVersion"] == "stdio"
    assert (client["time"], client["timings"]["wait"]) == (250, 250)
    assert client["response"]["status"] == upstream["response"]["status"] == 200
    assert client["response"]["content"]["text"] == bytes(play.records[3].message or b"").decode()
    assert client["request"]["postData"]["text"] == bytes(play.records[0].message or b"").decode()
    assert (client["_exchange"], client["_seq"], client["_answerSeq"], client["_outcome"]) == (1, 1, 4, "ok")


def test_nothing_is_left_out():
    play = Play()
    play.read(answered=False)
    play.say()
    play.read(error=-32602)
    play.put(kind="invalid", text="<html>", status=502)
    play.put(kind="result", id=99, direction="out")
    entries = har(play.records)
    assert sum(1 + ("_answerSeq" in entry) for entry in entries) == len(play.records)
    assert [entry["_outcome"] for entry in entries if "_code" in entry] == ["error", "error"]
    alone = next(entry for entry in entries if entry["_kind"] == "notification")
    assert alone["response"]["status"] == 0
    html = next(entry for entry in entries if entry["_kind"] == "invalid")
    assert (html["response"]["status"], html["request"]["postData"]["text"]) == (502, "<html>")


def test_nothing_to_export_is_an_empty_log():
    assert har([]) == []
    assert "".join(to_csv([])) == ",".join(COLUMNS) + "\r\n"


ODD = st.one_of(st.none(), st.text(max_size=20))


@given(
    ODD, ODD, ODD, st.sampled_from(["request", "result", "invalid", "later"]), st.none() | st.integers(0, 999)
)
def test_odd_values_make_no_odd_files(method: Any, target: Any, peer: Any, kind: str, status: Any):
    made = record(kind=kind, method=method, target=target, peer=peer, status=status, text=target)
    (entry,) = har([made])
    assert entry["request"]["postData"]["text"] == (target or "")
    heading, row = csv.reader(io.StringIO("".join(to_csv([made])), newline=""))
    assert len(heading) == len(row)


def test_a_table_has_a_row_for_each_message():
    play = Play()
    play.read(error=-32602)
    play.call(failed=True)
    rows = list(csv.DictReader(io.StringIO("".join(to_csv(play.records)), newline="")))
    assert [row["seq"] for row in rows] == [str(record.seq) for record in play.records]
    assert [row["outcome"] for row in rows] == ["", "", *["error invalid_params"] * 2, "", "tool_error"]
    assert rows[3]["code"] == "-32602"
    assert rows[2] == {
        **dict.fromkeys(COLUMNS, ""),
        "time": "2026-11-21T12:00:00.010000Z",
        "run": "5f3a9c01",
        "seq": "3",
        "exchange": "1",
        "kind": "error",
        "leg": "upstream",
        "direction": "in",
        "peer": "docs",
        "upstream": "docs",
        "method": "resources/read",
        "id": "101",
        "outcome": "error invalid_params",
        "code": "-32602",
        "ms": "10.0",
        "size": str(play.records[2].size),
        "transport": "stdio",
    }


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "\n=1", "\uff1d1+1"])
def test_a_spreadsheet_gets_no_formula_from_a_stranger(text: str):
    (row,) = csv.DictReader(io.StringIO("".join(to_csv([record(target=text)])), newline=""))
    assert row["target"] == "'" + text


def test_files_come_in_pieces():
    pieces = list(to_csv(record(seq) for seq in range(1, 1000)))
    assert len(pieces) > 3
    assert len("".join(pieces).splitlines()) == 1000
    assert next(to_har((record(seq) for seq in range(1, 10)), "1")).startswith('{"log"')
