"""Calls that are POSTed without waiting, and whose result is taken where it was received.

    POSTed --JSON, whole--------------------------> taken
           --an event stream----> nothing in it yet --its first event is the answer--> taken
           --anything else------> left to the ordinary way

Promises: what is not taken is found by the ordinary way as it would have found it; what was read of an event
stream is in `SentTicket.stream` then. Refuses to know what the ordinary way makes of it.
"""

from __future__ import annotations

from typing import Final

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import Reply
from mcpmux.protocol.inflight import Ticket, encode_call
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.calls import final_result
from mcpmux.runtime.term import Term
from mcpmux.runtime.upstreams.http_events import is_event_stream, message_in
from mcpmux.runtime.upstreams.http_peer import HttpPeer
from mcpmux.transports.http.client import SentRequest
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.sse import SseDecoder

STREAM_BYTES: Final = 64 * 1024  # that are read of a stream before it is left to the ordinary way


class BegunStream:
    """An event stream of which something was read: the data of its events, and who decodes the rest."""

    def __init__(self, message_limit: int) -> None:
        self.decoder = SseDecoder(message_limit)
        self.data: list[bytes] = []  # events without any only carry an id

    def __repr__(self) -> str:
        return f"<BegunStream {len(self.data)} events, {self.decoder!r}>"

    def read(self, response: HttpResponse) -> bool:
        """Decode what has come; False, and it is left there, when that is much."""
        if response.body_bytes > min(STREAM_BYTES, self.decoder.max_event_bytes):
            return False
        self.data += [event.data for event in self.decoder.feed(response.receive_nowait()) if event.data]
        return True


class SentTicket(Ticket):
    """A call that was POSTed. `whole`: the body of its response, once it was read and noted.

    `stream`: what was read of its response, if that is an event stream.
    """

    __slots__ = ("_peer", "sent", "stream", "whole")

    def __init__(self, request_id: int, call: Call, term: Term, peer: HttpPeer) -> None:
        super().__init__(request_id, call)
        self._peer = peer
        self.limit = term
        self.sent: SentRequest | None = None
        self.whole: bytes | None = None
        self.stream: BegunStream | None = None

    def post(self, term: Term) -> bool:
        """POST the call; False, and nothing is done, when that must wait."""
        body = encode_call(self.id, self.call)
        self.sent = self._peer.post(self.call, body, term.deadline, self.hear)
        return self.sent is not None

    def take_time(self) -> None:
        """From now on whoever waits for it says when its time is over."""
        if self.sent is not None:
            self.sent.take_time()

    def hear(self) -> None:
        """Something has come: who waits is told, unless it is a stream that has said nothing yet."""
        sent = self.sent
        if sent is not None and sent.is_under_way and self._says_nothing_yet(sent):
            sent.hear_more(self.hear)
        else:
            self.notify()

    def _says_nothing_yet(self, sent: SentRequest) -> bool:
        response = sent.take_begun()
        if response is None or not self._is_stream(response):
            return False
        stream = self._begin()
        return stream.read(response) and not stream.data

    def take_result(self) -> Fields | None:
        """The result, the call being over; None when there is more to it."""
        response = self.sent.take_begun() if self.sent is not None else None
        if response is None:
            return None
        if not is_plain(self._peer, response):
            return self._take_from_stream(response) if self._is_stream(response) else None
        self.whole = whole = response.read_nowait()
        if not whole:  # there is none, or there is more to come
            return None
        try:
            self._peer.note(whole, 200)
            result = self._result_in(whole)
        except BaseException:
            response.release()
            raise
        if result is not None:
            response.release()
        return result

    def _take_from_stream(self, response: HttpResponse) -> Fields | None:
        stream = self._begin()
        if not stream.read(response) or len(stream.data) != 1:
            return None
        (data,) = stream.data
        try:
            result = self._result_in(data)
            if result is not None:
                self._peer.note_event(data, 200)
        except BaseException:
            response.release()
            raise
        if result is not None:
            response.finish()
        return result

    def _is_stream(self, response: HttpResponse) -> bool:
        return not self._peer.batches and is_event_stream(response)

    def _begin(self) -> BegunStream:
        if self.stream is None:
            self.stream = BegunStream(self._peer.message_limit)
        return self.stream

    def _result_in(self, data: bytes) -> Fields | None:
        answer = message_in(data)
        return final_result(answer) if isinstance(answer, Reply) and answer.id == self.id else None


def is_plain(peer: HttpPeer, response: HttpResponse) -> bool:
    """Whether a response is what most are: one message, which answers."""
    return response.status == 200 and not peer.batches and not is_event_stream(response)
