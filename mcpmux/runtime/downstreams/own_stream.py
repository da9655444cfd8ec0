"""A legacy session's own stream over Streamable HTTP: what changes, and what its client is asked meanwhile.

Promises: every event has an id and is kept before it leaves, so that a client whose connection broke hears
the rest. What many clients are told is encoded once for all of them; only the id is their own. A client that
can be written to at once is told by whoever brings the event, without a turn of its own task.

Source: "Listening for Messages from the Server" and "Resumability and Redelivery" in "Transports",
2025-03-26 to 2025-11-25.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import trio

from mcpmux.mux.replay import ReplayBuffer, Said
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event, encode_notice
from mcpmux.runtime.client_outbox import ClientOutbox, Outlet
from mcpmux.transports.http.server_connection import HttpReply
from mcpmux.transports.sse import encode_event

OWN_STREAM: Final = 0  # its number, of which its ids begin
LATELY: Final = 64  # events that are kept ready, as many clients are told the same
LATELY_BYTES: Final = 4096  # how long one of them may be
KEEP_ALIVE_SECONDS: Final = 15.0  # between comments on a quiet stream, so that nothing in between closes it

_EVENT: Final = b"id: %d-%%d\n%%b" % OWN_STREAM
_QUESTION: Final = Event("dev.mcpmux/question", {})  # in the outbox: something is to be asked
_REPEATS: Final = frozenset({m.RESOURCE_UPDATED, m.RESOURCES_CHANGED, m.TOOLS_CHANGED, m.PROMPTS_CHANGED})
"""They say "look again": one that is heard stands for all before it."""


class OwnStream:
    """What one session's own stream says. Its events are kept in `buffer`, and wait in `outbox` before."""

    __slots__ = ("_buffer", "_clock", "_outbox", "_questions", "_reader")

    def __init__(self, buffer: ReplayBuffer, outbox: ClientOutbox) -> None:
        self._buffer = buffer
        self._outbox = outbox
        self._clock = trio.lowlevel.current_clock()
        self._questions: list[bytes] = []
        self._reader: trio.CancelScope | None = None
        buffer.open(OWN_STREAM)

    async def ask(self, message: bytes) -> None:
        """Send a request to the client, as soon as it has its stream open."""
        self._questions.append(message)
        self._outbox.put(_QUESTION)

    async def send(self, reply: HttpReply) -> None:
        """Send what changes, until the client goes or opens this stream a second time."""
        if self._reader is not None:
            self._reader.cancel(reason="the client opened its stream again")
        with trio.CancelScope() as scope:
            self._reader = scope
            outlet = Outlet(lambda event: reply.write_nowait(self.keep(event)), reply.flush)
            while True:
                event: Event | None = None
                with trio.move_on_after(KEEP_ALIVE_SECONDS) as patience:
                    event = await self._outbox.take(outlet)
                if event is not None:
                    await reply.write(self.keep(event))
                elif patience.cancelled_caught:
                    await reply.write(b":\n\n")
                else:
                    return

    def keep(self, event: Event) -> bytes:
        """What an event in the outbox stands for, as events of this stream that are kept now."""
        if event.method in _REPEATS:
            last, said = _last
            if last is not event:
                said = _say(event)
            return _EVENT % (self._buffer.say_again(said, self._clock.current_time()).number, said[1])
        if event is not _QUESTION:
            return self._keep(encode_event(encode_notice(event)))
        questions, self._questions = self._questions, []
        return b"".join([self._keep(encode_event(data)) for data in questions])

    def _keep(self, data: bytes) -> bytes:
        return _EVENT % (self._buffer.add(OWN_STREAM, data, self._clock.current_time()).number, data)


_last: tuple[Event, Said] = (_QUESTION, (OWN_STREAM, b""))


@lru_cache(LATELY)
def _said(data: bytes) -> Said:
    return OWN_STREAM, data


def _say(event: Event) -> Said:
    """`event` as one of the own stream, without an id: the same object for all events that say the same."""
    global _last
    data = encode_event(encode_notice(event))
    said = _said(data) if len(data) <= LATELY_BYTES else (OWN_STREAM, data)
    _last = event, said
    return said
