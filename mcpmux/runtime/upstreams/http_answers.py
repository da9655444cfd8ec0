"""Reads the answer to one request out of its response: JSON, a batch, or an event stream.

Promises: what comes before the answer is taken to where it belongs first; what comes behind it is nobody's.
Refuses to know how the request was sent.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcpmux.errors import TransportClosed
from mcpmux.protocol.envelope import ErrorReply, Message, Reply, is_batch
from mcpmux.protocol.large import read_large_reply
from mcpmux.runtime.upstreams.http_events import batch_in, continued, message_in
from mcpmux.runtime.upstreams.http_intake import Intake
from mcpmux.runtime.upstreams.http_peer import HttpPeer
from mcpmux.runtime.upstreams.http_refusal import SessionExpired, nonsense
from mcpmux.runtime.upstreams.http_ticket import HttpTicket, as_answer
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.sse import SseDecoder


class AnswerReader:
    """Reads the answers of one server. All its methods raise TransportError and Overdue."""

    def __init__(self, peer: HttpPeer, intake: Intake) -> None:
        """`intake` takes what comes before an answer."""
        self._peer = peer
        self._intake = intake

    def __repr__(self) -> str:
        return f"<AnswerReader {self._peer!r}>"

    async def read(self, response: HttpResponse, ticket: HttpTicket) -> Reply | ErrorReply:
        """The answer in a response that is no event stream.

        Raises SessionExpired and HttpStatusError besides.
        """
        peer = self._peer
        body = ticket.whole or response.read_nowait()
        if response.status == 200 and not peer.batches and body:
            if not ticket.whole:
                peer.note(body, 200)
            answer = as_answer(message_in(body), ticket)
            if answer is None:
                raise nonsense(response, body)
            return answer
        if response.status == 404 and peer.session is not None:
            raise SessionExpired("the server has forgotten the session")
        if body is None:
            received = await response.read_body()
            if response.status == 200 and not peer.watched:
                reply = read_large_reply(received)
                if reply is not None and reply.id == ticket.id:
                    return reply
            body = bytes(received)
        return await self._read_any(body, response, ticket)

    async def _read_any(self, body: bytes, response: HttpResponse, ticket: HttpTicket) -> Reply | ErrorReply:
        peer, status = self._peer, response.status
        peer.note(body, status)
        in_batch = peer.batches and is_batch(body)
        message = await self._take_up_to(batch_in(body), ticket) if in_batch else message_in(body)
        if status >= 400:
            peer.note_refusal(status, message if isinstance(message, ErrorReply) else None)
            peer.check_overload(response, body)
        answer = as_answer(message, ticket)
        if answer is not None:
            return answer
        if status != 200:
            raise peer.status_error(response, body)
        raise nonsense(response, body)

    async def read_stream(self, response: HttpResponse, ticket: HttpTicket) -> Reply | ErrorReply | None:
        """The answer in an event stream; None when it breaks off before that and can be resumed."""
        peer, status = self._peer, response.status
        begun, ticket.stream = ticket.stream, None
        decoder = continued(ticket.decoder, peer.message_limit) if begun is None else begun.decoder
        ticket.decoder = decoder
        for data in begun.data if begun is not None else ():
            answer = await self._take_up_to(peer.messages_of_event(data, status), ticket)
            if answer is not None:
                return answer
        while chunk := await _received(response, decoder):
            answer = await self._take_up_to(peer.messages_in(decoder, chunk, status), ticket)
            if answer is not None:
                return answer
        if decoder.last_event_id and peer.legacy:
            return None
        raise TransportClosed("the response stream ended without an answer")

    async def _take_up_to(self, messages: Iterable[Message], ticket: HttpTicket) -> Reply | ErrorReply | None:
        """Take messages up to the answer, if that is among them."""
        for message in messages:
            if isinstance(message, Reply | ErrorReply) and message.id == ticket.id:
                return message
            await self._intake.take(message, ticket)
        return None


async def _received(response: HttpResponse, decoder: SseDecoder) -> bytes:
    """The next bytes of a stream, b"" when it has ended or broken off where it can be resumed."""
    try:
        return await response.receive_some()
    except TransportClosed:
        if not decoder.last_event_id:
            raise
        return b""
