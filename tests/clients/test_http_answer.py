"""One answer over HTTP: alone, or in the event stream that something before it has opened."""

from __future__ import annotations

import pytest

from mcpmux.clients.http_answer import HttpNotify, respond
from mcpmux.errors import RpcError
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import Request, raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import FINISHED
from tests.bare_reply import reply_on

EVENT = Event("notifications/message", {"data": raw("on its way")})


class Peer:
    def __init__(self) -> None:
        request = HttpRequest("POST", "/mcp", "", {}, b"", "", http_1_0=True, keep_alive=False)
        self.reply = reply_on(self, request)
        self.received = b""

    async def send(self, data: bytes) -> None:
        self.received += data


@pytest.mark.interpreted
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "before", [[], ["question"], ["event"], ["question", "event"], ["event", "question"]]
)
async def test_an_answer_comes_in_the_stream_that_was_opened_before_it(before, fails):
    peer = Peer()

    async def work(notify: HttpNotify) -> Fields:
        for what in before:
            if what == "event":
                await notify(EVENT)
            else:
                await notify(b'{"question": 1}')
        if fails:
            raise RpcError(-32602, "no such thing")
        return {"ok": raw(True)}

    notify = HttpNotify(peer.reply, True)
    await respond(Request(7, "tasks/result", raw({})), peer.reply, work(notify), streams=True, legacy=True)
    assert peer.reply.stage is FINISHED
    head, _, body = peer.received.partition(b"\r\n\r\n")
    streamed = bool(before)
    assert (b"text/event-stream" in head) is streamed
    assert (b"application/json" in head) is not streamed
    assert body.count(b"data: ") == (len(before) + 1 if streamed else 0)
    assert (b'"error"' if fails else b'"result"') in body.rpartition(b"data: ")[2]
