from __future__ import annotations

from typing import Any

import pytest

from mcpmux.traffic.reading.summary import http_words, statuses_of
from tests.traffic.made import record

CASES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "result"}, "ok"),
    ({"kind": "result", "status": 200}, "ok"),
    ({"kind": "result", "status": 503}, "http-503 http-5xx"),
    ({"kind": "result", "failed": True}, "tool-error"),
    ({"kind": "result", "failed": True, "status": 404}, "tool-error http-404 http-4xx"),
    ({"kind": "error", "status": 200}, "error"),
    ({"kind": "error", "status": 400}, "error http-400 http-4xx"),
    ({"kind": "invalid"}, "invalid"),
    ({"kind": "invalid", "status": 502}, "invalid http-502 http-5xx"),
    ({"kind": "request"}, ""),
    ({"kind": "request", "status": 401}, "http-401 http-4xx"),
    ({"kind": "notification", "status": 202}, ""),
    ({"kind": "start"}, ""),
    ({"kind": "of another time"}, ""),
]


@pytest.mark.parametrize(("facts", "words"), CASES)
def test_statuses(facts: dict[str, Any], words: str):
    assert " ".join(statuses_of(record(**facts))) == words


def test_only_what_is_wrong_has_http_words():
    assert http_words(399) == ()
    assert http_words(None) == ()
    assert http_words(400) == ("http-400", "http-4xx")
