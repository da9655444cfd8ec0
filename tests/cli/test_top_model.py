"""What `mcpmux top` makes of the answers of the admin listener."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.cli.top.command import (
    EXCHANGES,
    EXCHANGES_LIMIT,
    SORTS,
    UPSTREAMS,
    Exchanges,
    exchange_lines,
    measured,
    ordered,
)
from mcpmux.traffic.reading.stats import CLIENTS

SESSION = {"subscriptions": [{"uri": "note:///a"}], "more_subscriptions": 3}
DOCS = {
    "name": "docs",
    "state": "ready",
    "target": "npx docs",
    "in_flight": 2,
    "sessions": [SESSION, SESSION],
    "more_sessions": 1,
}
FACTS = {"upstream": "docs", "count": 30, "errors": 3, "p50": 12.0, "p95": 1500.0, "most": 2000.0}


def row(number: int, **members: Any) -> dict[str, Any]:
    """Return a row of `/api/exchanges`."""
    facts = {"row": number, "at": 1_795_795_754_232.83, "kind": "request", "status": "ok"}
    return {**facts, "leg": "client", "peer": "c1", "method": "tools/call", **members}


def test_an_upstream_is_shown_with_its_state_and_what_was_measured() -> None:
    rows = measured([DOCS], {"upstreams": [FACTS], "seconds": 60.0})
    clients, docs = [[cell_of(entry) for cell_of in UPSTREAMS.values()] for entry in rows]
    rate_and_durations = ["0.500/s", "12.0 ms", "1.50 s", ("3 10.0%", "red")]
    assert docs == ["docs", ("ready", "green"), *rate_and_durations, 2, 3, 8, "npx docs"]
    assert clients == [CLIENTS, None, "0/s", *[None] * 7]


MEASURES = st.fixed_dictionaries({}, optional={member: st.floats(0, 1e6) for member in SORTS.values()})


@given(st.lists(MEASURES, max_size=6), st.sampled_from([None, *SORTS]))
def test_sorting_loses_no_row_and_puts_the_highest_first(numbers: list[Any], heading: str | None) -> None:
    rows = [{"name": CLIENTS}, *({"name": str(place), **members} for place, members in enumerate(numbers))]
    result = ordered(rows, heading)
    assert sorted(entry["name"] for entry in result) == sorted(entry["name"] for entry in rows)
    assert result[0]["name"] == CLIENTS
    if heading is None:
        assert result == rows
    else:
        values = [entry.get(SORTS[heading]) or 0 for entry in result[1:]]
        assert values == sorted(values, reverse=True)


def test_only_the_newest_exchanges_are_kept() -> None:
    exchanges = Exchanges()
    for first in range(0, 3 * EXCHANGES_LIMIT, 200):
        exchanges.change({"rows": [row(first + number) for number in range(200)], "gone": []})
    kept = [entry["row"] for entry in exchanges.newest_first()]
    assert len(kept) == EXCHANGES_LIMIT
    assert kept == list(range(kept[0], kept[0] - EXCHANGES_LIMIT, -1))


@pytest.mark.parametrize(
    ("members", "cells"),
    [
        (
            {"target": "docs__find", "ms": 12.34, "upstreams": ["docs", "search"], "client": "editor"},
            [("ok", "green"), "12.3 ms", "tools/call docs__find", "docs, search", "editor"],
        ),
        ({"status": "error", "code": -32602}, [("error -32602", "red"), None, "tools/call", None, "c1"]),
        (
            {"status": "note", "kind": "notification", "leg": "upstream", "method": None},
            [("note", ""), None, "notification", None, None],
        ),
    ],
)
def test_an_exchange_is_a_row(members: dict[str, Any], cells: list[Any]) -> None:
    time, *others = [cell_of(row(1, **members)) for cell_of in EXCHANGES.values()]
    assert time == "16:09:14.232"
    assert others == cells


def test_all_messages_of_an_exchange_are_lines() -> None:
    facts = {"v": 1, "run": "a", "time": "2026-11-27T16:09:14.232830Z", "exchange": 7, "method": "tools/call"}
    request = {
        "seq": 1,
        "kind": "request",
        "leg": "client",
        "direction": "in",
        "id": 1,
        "peer": "c1",
        "target": "find",
    }
    answered = {
        **request,
        "seq": 2,
        "answers": 1,
        "kind": "result",
        "direction": "out",
        "ms": 3.0,
        "target": None,
        "size": 300_000,
    }
    hostile = '{"note": "\x9b31m\u202e", "exact": 1.0e2}'
    first = f'{{"at": 1.5, "record": {json.dumps(facts | request)[:-1]}, "message": {hostile}}}}}'
    second = json.dumps({"at": 4.5, "cut": True, "record": facts | answered | {"text": "begun"}})
    answer = f'{{"row": {{}}, "messages": [{first}, {second}]}}'
    lines = list(exchange_lines(answer.encode()))
    heading, *body = [text for text, _ in lines]
    assert "c1 →" in heading
    assert body[:4] == ["  {", '    "note": "\\x9b31m\\u202e",', '    "exact": 1.0e2', "  }"]
    assert "tools/call find  ok  3.00 ms" in body[5]
    assert body[6:8] == ["  begun", "  … it has 293 KiB, the rest is left out here"]
    assert all(text.isprintable() for text, _ in lines)
