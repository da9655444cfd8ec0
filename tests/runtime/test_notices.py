"""A notification encoded once is the same as one encoded for each client."""

from __future__ import annotations

import json

import pytest

from mcpmux.clients.http_answer import Tagged
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, RECENT, Event, encode_notice
from mcpmux.protocol.envelope import encode_notification, raw
from mcpmux.transports.sse import SseDecoder

TAG = {"io.modelcontextprotocol/subscriptionId": 'a"}b'}
EVENTS = {
    "an update": Event(m.RESOURCE_UPDATED, {"uri": raw("memo:1")}),
    "a list change": Event(m.TOOLS_CHANGED, {}),
    "several parameters": Event("notifications/x", {"a": raw({"b": [1]}), "c": raw("}}")}),
    "spaces inside": Event("notifications/x", {"a": raw(1), "b": type(raw(1))(b'{ "c" : 1 }')}),
    "several lines": Event("notifications/x", {"a": type(raw(1))(b'{\r\n"c":\n\r1}')}),
    "a tag of its own": Event("notifications/x", {META: raw({"theirs": 1}), "a": raw(1)}),
    "a tag alone": Event("notifications/x", {META: raw({"theirs": 1})}),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_notice_is_the_encoded_notification_in_one_line(event: Event) -> None:
    for _ in range(2):
        expected = encode_notification(event.method, event.params)
        assert encode_notice(event) == expected.replace(b"\r", b" ").replace(b"\n", b" ")


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_tagged_notice_says_what_the_notification_says_with_the_tag(event: Event) -> None:
    tagged = Tagged(raw(TAG))
    expected = encode_notification(event.method, {**event.params, META: raw(TAG)})
    (event_read,) = SseDecoder(1000).feed(tagged.encode(event))
    assert json.loads(event_read.data) == json.loads(expected)
    assert tagged.encode(event) == tagged.encode(event)
    assert json.loads(encode_notice(event)) == json.loads(encode_notification(event.method, event.params))


def test_clients_share_the_bytes_of_one_event() -> None:
    event = EVENTS["an update"]
    assert encode_notice(event) is encode_notice(event)


def test_no_event_is_taken_for_another_however_many_there_are() -> None:
    for number in range(10 * RECENT):
        event = Event(m.RESOURCE_UPDATED, {"uri": raw(f"memo:{number}")})
        assert json.loads(encode_notice(event))["params"] == {"uri": f"memo:{number}"}
        del event  # its place in memory is free for the next
    first, second = (Event(m.RESOURCE_UPDATED, {"uri": raw(uri)}) for uri in ("memo:1", "memo:2"))
    for event in (first, second, first, second):
        assert json.loads(encode_notice(event))["params"]["uri"] == json.loads(bytes(event.params["uri"]))
