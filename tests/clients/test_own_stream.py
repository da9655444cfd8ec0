"""The events that a legacy session's own stream keeps, shared by many clients."""

from __future__ import annotations

from mcpmux.clients import http_session
from mcpmux.clients.http_session import LATELY, LATELY_BYTES, OWN_STREAM, OwnStream
from mcpmux.mux.replay import ReplayBounds, ReplayBuffer
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import raw
from mcpmux.runtime.client_outbox import ClientOutbox


def opened() -> tuple[OwnStream, ReplayBuffer]:
    buffer = ReplayBuffer(ReplayBounds())
    return OwnStream(buffer, ClientOutbox(frozenset())), buffer


def update(uri: str) -> Event:
    return Event(m.RESOURCE_UPDATED, {"uri": raw(uri)})


async def test_sessions_share_what_they_keep_and_have_ids_of_their_own():
    (own_stream, kept_by_one), (other, kept_by_other) = opened(), opened()
    events = [own_stream.keep(event) for event in (update("x:1"), update("x:2"), update("x:1"))]
    event = update("x:1")
    assert other.keep(event) == events[0]
    assert own_stream.keep(event) == events[0].replace(b"id: 0-1", b"id: 0-4")
    _, after_one = kept_by_one.after("0-0", 0.0)
    _, after_other = kept_by_other.after("0-0", 0.0)
    assert [event.number for event in after_one] == [2, 4]
    assert after_one[1].data is after_other[0].data  # though the first came with another event


async def test_what_is_kept_ready_is_bounded():
    stream, buffer = opened()
    for number in range(3 * LATELY):
        stream.keep(update(f"x:{number}"))
    looked_up = http_session._said.cache_info()
    stream.keep(update("x:" + "y" * LATELY_BYTES))
    assert looked_up.currsize <= LATELY
    assert http_session._said.cache_info() == looked_up  # what is too long is not looked up
    _, kept = buffer.after(f"{OWN_STREAM}-0", 0.0)
    assert len(kept) == 3 * LATELY + 1


async def test_what_may_not_stand_for_another_is_kept_each_time():
    stream, buffer = opened()
    message = Event("notifications/message", {"data": raw("x")})
    stream.keep(message)
    stream.keep(message)
    await stream.ask(b"{}")
    await stream.ask(b"[]")
    mailed = stream._outbox.take_nowait()
    assert mailed is not None
    assert stream.keep(mailed) == b"id: 0-3\ndata: {}\n\nid: 0-4\ndata: []\n\n"
    assert len(buffer.after(f"{OWN_STREAM}-0", 0.0)[1]) == 4
