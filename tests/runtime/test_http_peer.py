"""What a server says about its event streams, as far as it decides how long mcpmux waits."""

from __future__ import annotations

import pytest

from mcpmux.runtime.upstreams.http_events import LEAST_RETRY_SECONDS, RETRY_SECONDS, continued, retry_seconds
from mcpmux.transports.sse import SseDecoder


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"", RETRY_SECONDS),
        (b"retry: 500\n\n", 0.5),
        (b"retry: 3000\n\nretry: 250\n\n", 0.25),
        (b"retry: soon\n\n", RETRY_SECONDS),
        (b"retry: 0\n\n", LEAST_RETRY_SECONDS),
    ],
)
def test_a_broken_stream_is_opened_again_after_the_time_that_the_server_said(said: bytes, seconds: float):
    """2025-11-25, "Transports": the client MUST respect the `retry` field."""
    decoder = SseDecoder(1000)
    decoder.feed(said)
    assert retry_seconds(decoder) == seconds
    assert retry_seconds(continued(decoder, 1000)) == seconds


def test_a_connection_goes_on_behind_the_last_event_of_the_one_before():
    decoder = SseDecoder(1000)
    decoder.feed(b"id: 7\ndata: x\n\ndata: half of the next")
    fresh = continued(decoder, 1000)
    assert fresh.last_event_id == "7"
    assert [event.data for event in fresh.feed(b"data: y\n\n")] == [b"y"]
