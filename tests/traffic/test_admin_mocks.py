"""Mocks that are started in the inspector: what they answer, what they refuse, and their end."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import trio

from mcpmux.traffic.admin import mocks as mocks_module
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.peers.http_client import HttpClient
from tests.traffic.admin_world import Json, Listening, Traffic, get, listening, post


def traffic_of(*words: str) -> Traffic:
    """Return the traffic of a call of `docs__find` for each word, which the answer repeats."""
    traffic = Traffic()
    for word in words:
        answer = {"result": {"resultType": "complete", "content": [{"type": "text", "text": word}]}}
        traffic.exchange(params=params_of(word), answer=answer)
    return traffic


def params_of(word: str) -> Json:
    return {"name": "docs__find", "arguments": {"word": word}}


async def start(here: Listening, filtering: str = "") -> Json:
    status, _, body = await post(here, "/api/mocks", json.dumps({"filter": filtering}).encode())
    assert status == 200, body
    mock: Json = json.loads(body)
    return mock


async def call(url: str, word: str) -> Json:
    """Call the tool of a mock, and return its answer."""
    with HttpPool(HttpOrigin.from_url(url)) as pool:
        return (await HttpClient(pool).modern("tools/call", params_of(word))).last


async def listens(url: str) -> bool:
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", HttpOrigin.from_url(url).port)
    except OSError:
        return False
    await stream.aclose()
    return True


def said(answer: Json) -> str:
    text: str = answer["result"]["content"][0]["text"]
    return text


async def test_a_mock_answers_from_what_was_chosen_until_it_is_stopped():
    async with listening(traffic_of("one", "two", "three")) as here:
        row = here.traffic.ring.row(2)
        assert row is not None
        here.traffic.ring.mark(row, True, "")
        mock = await start(here, "marked")
        assert mock == {**mock, "number": 1, "filter": "marked", "requests": 1, "not_served": ""}
        assert await get(here, "/api/mocks") == {"mocks": [mock]}
        assert said(await call(mock["url"], "two")) == "two"
        assert said(await call(mock["url"], "never asked")) == "two"  # the same tool, at least
        both = await start(here)
        assert (both["number"], both["requests"]) == (2, 3)
        assert [said(await call(both["url"], word)) for word in ("three", "one")] == ["three", "one"]
        assert (await post(here, "/api/mocks/1/stop"))[0] == 200
        assert await get(here, "/api/mocks") == {"mocks": [both]}
        with trio.fail_after(60):
            while await listens(mock["url"]):  # it may have its last answers to give
                pass
        assert (await post(here, "/api/mocks/1/stop"))[0] == 404
        assert said(await call(both["url"], "two")) == "two"


async def test_a_mock_knows_nothing_that_is_not_shown():
    traffic = traffic_of("Bearer " + "a1B2" * 12)
    async with listening(traffic) as here:
        mock = await start(here)
        assert "a1B2a1B2" not in json.dumps(await call(mock["url"], "x"))
        assert mock["requests"] == 1


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"filter": "nonsense=1"}, 400, "of the filter"),
        ({"filter": 1}, 400, "str"),
        ({"filters": ""}, 400, "filters"),
        ({"filter": "method=prompts/get"}, 409, "nothing here can be answered"),
    ],
)
async def test_what_cannot_be_mocked_is_told_with_its_reason(body: Json, status: int, word: str):
    async with listening(traffic_of("one")) as here:
        response = await post(here, "/api/mocks", json.dumps(body).encode())
        assert (response[0], word in response[2].decode()) == (status, True), response
        assert await get(here, "/api/mocks") == {"mocks": []}


async def test_requests_without_an_answer_are_counted():
    traffic = traffic_of("one")
    traffic.begin("tools/call", params_of("two"))
    async with listening(traffic) as here:
        mock = await start(here)
        assert (mock["requests"], mock["not_served"]) == (1, "1 no answer")


async def test_there_are_not_more_than_a_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mocks_module, "MOCKS", 1)
    async with listening(traffic_of("one")) as here:
        await start(here)
        response = await post(here, "/api/mocks", b"{}")
        assert response[0] == 429
        await post(here, "/api/mocks/1/stop")
        assert (await start(here))["number"] == 2


async def test_too_much_is_refused_and_takes_no_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mocks_module, "MOCKS", 1)
    monkeypatch.setattr(mocks_module, "MOCK_BYTES", 500)
    async with listening(traffic_of("one", "x" * 500)) as here:
        status, _, body = await post(here, "/api/mocks", b"{}")
        assert (status, b"narrow the filter" in body) == (413, True)
        assert (await start(here, "text~one"))["requests"] == 1


async def test_a_mock_cannot_be_stopped_or_lost_while_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
):
    reading, may_go_on = threading.Event(), threading.Event()
    read = mocks_module._answers_in

    def read_later(records: Any) -> Any:
        reading.set()
        assert may_go_on.wait(60)
        return read(records)

    monkeypatch.setattr(mocks_module, "_answers_in", read_later)
    async with listening(traffic_of("one")) as here, trio.open_nursery() as nursery:
        nursery.start_soon(start, here)
        assert await trio.to_thread.run_sync(reading.wait, 60)
        assert (await post(here, "/api/mocks/1/stop"))[0] == 404
        may_go_on.set()
        with trio.fail_after(60):
            while not (mocks := (await get(here, "/api/mocks"))["mocks"]):
                pass
        assert said(await call(mocks[0]["url"], "one")) == "one"
        assert (await post(here, "/api/mocks/1/stop"))[0] == 200


async def test_mocks_end_with_mcpmux():
    async with listening(traffic_of("one")) as here:
        url: Any = (await start(here))["url"]
        assert said(await call(url, "one")) == "one"
    assert not await listens(url)
