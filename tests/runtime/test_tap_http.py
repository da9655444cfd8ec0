"""What a tap sees of clients over HTTP on a real socket: each message once, as it was, with its exchange."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from mcpmux.traffic.recorder import Recorder
from tests.runtime.scripted import MODERN
from tests.runtime.test_flows import docs
from tests.runtime.test_http_endpoint import LEGACY, open_endpoint, request
from tests.runtime.test_tap import Witness


def client_side(witness: Witness, direction: str) -> list[Any]:
    return [
        json.loads(seen.data)
        for seen in witness.seen
        if seen.leg.side == "client" and seen.direction == direction
    ]


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_each_message_of_a_client_is_seen_once_as_it_was(revision: str):
    witness = Witness()
    recorder = Recorder([witness], [witness], trio.current_time)
    async with open_endpoint({"x": docs(), "y": docs()}, tap=recorder) as client:
        if revision == MODERN:
            answer = await client.modern("resources/list")
        else:
            session = await client.initialize()
            answer = await client.send(request("resources/list", request_id="r"), session)
    assert client_side(witness, "out").count(answer.last) == 1
    asked = [seen for seen in witness.seen if seen.method == "resources/list" and seen.kind == "request"]
    assert sorted(seen.leg.peer for seen in asked) == ["c1", "x", "y"]
    assert len({seen.exchange for seen in asked}) == 1
    [answered] = [s for s in witness.seen if s.leg.side == "client" and json.loads(s.data) == answer.last]
    assert (answered.exchange, answered.status) == (asked[0].exchange, 200)
    if revision == LEGACY:
        assert {seen.leg.session for seen in witness.seen if seen.leg.side == "client"} == {
            session["Mcp-Session-Id"]
        }
