"""Calls that are POSTed without waiting, and whose result is taken where it was received.

Promises: whatever is more than one whole JSON answer with a result is left to the ordinary way, which finds
everything as it would have found it. Refuses to know what that is.
"""

from __future__ import annotations

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


class SentTicket(Ticket):
    """A call that was POSTed. `whole`: the body of its response, once it was read and noted."""

    __slots__ = ("sent", "whole")

    def __init__(self, request_id: int, call: Call, term: Term) -> None:
        super().__init__(request_id, call)
        self.limit = term
        self.sent: SentRequest | None = None
        self.whole: bytes | None = None

    def take_time(self) -> None:
        """From now on whoever waits for it says when its time is over."""
        if self.sent is not None:
            self.sent.take_time()


def post(peer: HttpPeer, ticket: SentTicket, term: Term) -> bool:
    """POST a ticket's call; False, and nothing is done, when that must wait."""
    body = encode_call(ticket.id, ticket.call)
    ticket.sent = peer.post(ticket.call, body, term.deadline, ticket.notify)
    return ticket.sent is not None


def take(peer: HttpPeer, ticket: SentTicket) -> Fields | None:
    """The result, the call being over; None when there is more to it."""
    response = ticket.sent.take() if ticket.sent is not None else None
    if response is None or not is_plain(peer, response):
        return None
    ticket.whole = whole = response.read_nowait()
    if not whole:
        return None
    try:
        peer.note(whole, 200)
        answer = message_in(whole)
        result = final_result(answer) if isinstance(answer, Reply) and answer.id == ticket.id else None
    except BaseException:
        response.release()
        raise
    if result is not None:
        response.release()
    return result


def is_plain(peer: HttpPeer, response: HttpResponse) -> bool:
    """Whether a response is what most are: one message, which answers."""
    return response.status == 200 and not peer.batches and not is_event_stream(response)
