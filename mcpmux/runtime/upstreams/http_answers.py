"""Reads the answer to one request out of its response: JSON, a batch, or an event stream.

Promises: what comes before the answer is taken to where it belongs first; what comes behind it is nobody's.
Refuses to know how the request was sent.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from mcpmux.errors import RpcError, TransportClosed
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import (
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    decode_fields,
    encode_error,
    encode_reply,
    id_of,
    is_batch,
)
from mcpmux.protocol.input_requests import ASKS
from mcpmux.protocol.large import read_large_reply
from mcpmux.protocol.tasks import related_task
from mcpmux.runtime.calls import Calls, Hear, unheard
from mcpmux.runtime.incoming import Answer
from mcpmux.runtime.upstreams.http_peer import HttpPeer
from mcpmux.runtime.upstreams.http_refusal import SessionExpired, nonsense
from mcpmux.runtime.upstreams.http_response import (
    PendingHttpRequest,
    as_answer,
    batch_in,
    continued,
    message_in,
)
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.sse import SseDecoder

_OF_REQUESTS: Final = frozenset({m.PROGRESS, m.LOG_MESSAGE, m.ACKNOWLEDGED})
"""What means nothing where there is no request that it belongs to."""


class Intake:
    """Takes the messages of one server that answer nothing."""

    def __init__(
        self, peer: HttpPeer, calls: Calls, answer: Answer, hear: Hear, nursery: trio.Nursery
    ) -> None:
        """`answer` answers what the server asks of mcpmux itself; `hear` hears what belongs to no call."""
        self._peer = peer
        self._calls = calls
        self._answer = answer
        self._hear = hear
        self._nursery = nursery

    def __repr__(self) -> str:
        return f"<Intake {self._peer!r}>"

    async def take(self, message: Message, pending: PendingHttpRequest | None) -> None:
        """A message on the stream of one request, or, if `pending` is None, on the server's own stream."""
        if isinstance(message, Notification):
            self._take_notification(message, pending)
        elif isinstance(message, Request):
            await self._take_question(message, pending)

    async def _take_question(self, request: Request, pending: PendingHttpRequest | None) -> None:
        if request.method not in ASKS:
            await self._serve(request)
            return
        asked = pending if pending is not None and pending.call.method in self._calls.may_ask else None
        if asked is not None and asked.call.method != m.RESOURCES_SUBSCRIBE:
            await self._calls.take_question(request, asked)
        else:
            self._nursery.start_soon(self._calls.take_question, request, asked, name="server's question")

    def _take_notification(self, message: Notification, pending: PendingHttpRequest | None) -> None:
        try:
            params = decode_fields(message.params)
        except ValueError:
            return
        method = message.method
        if method == m.CANCELLED:
            self._calls.withdraw_question(id_of(params.get("requestId")))
        elif method in m.UNASKED or (method == m.PROGRESS and related_task(params) is not None):
            self._hear(message)  # progress of a task goes on when the call that made it has been answered
        elif pending is None:
            if method not in _OF_REQUESTS:
                self._hear(message)
        elif pending.call.method == m.LISTEN and method != m.ACKNOWLEDGED:
            self._hear(message)
        else:
            pending.push(Event(method, params))

    async def _serve(self, request: Request) -> None:
        """A legacy server asks something while it works on our request: answer in a POST of its own."""
        try:
            data = encode_reply(request.id, await self._answer(request, unheard))
        except RpcError as error:
            data = encode_error(request.id, error)
        await self._peer.tell(data)


class AnswerReader:
    """Reads the answers of one server. All its methods raise TransportError and Overdue."""

    def __init__(self, peer: HttpPeer, intake: Intake) -> None:
        """`intake` takes what comes before an answer."""
        self._peer = peer
        self._intake = intake

    def __repr__(self) -> str:
        return f"<AnswerReader {self._peer!r}>"

    async def read(self, response: HttpResponse, pending: PendingHttpRequest) -> Reply | ErrorReply:
        """The answer in a response that is no event stream.

        Raises SessionExpired and HttpStatusError besides.
        """
        peer = self._peer
        body = pending.whole or response.read_nowait()
        if response.status == 200 and not peer.batches and body:
            if not pending.whole:
                peer.note(body, 200)
            answer = as_answer(message_in(body), pending)
            if answer is None:
                raise nonsense(response, body)
            return answer
        if response.status == 404 and peer.session is not None:
            raise SessionExpired("the server has forgotten the session")
        if body is None:
            received = await response.read_body()
            if response.status == 200 and not peer.watched:
                reply = read_large_reply(received)
                if reply is not None and reply.id == pending.id:
                    return reply
            body = bytes(received)
        return await self._read_any(body, response, pending)

    async def _read_any(
        self, body: bytes, response: HttpResponse, pending: PendingHttpRequest
    ) -> Reply | ErrorReply:
        peer, status = self._peer, response.status
        peer.note(body, status)
        in_batch = peer.batches and is_batch(body)
        message = await self._take_up_to(batch_in(body), pending) if in_batch else message_in(body)
        if status >= 400:
            peer.note_refusal(status, message if isinstance(message, ErrorReply) else None)
            peer.check_overload(response, body)
        answer = as_answer(message, pending)
        if answer is not None:
            return answer
        if status != 200:
            raise peer.status_error(response, body)
        raise nonsense(response, body)

    async def read_stream(
        self, response: HttpResponse, pending: PendingHttpRequest
    ) -> Reply | ErrorReply | None:
        """The answer in an event stream; None when it breaks off before that and can be resumed."""
        peer, status = self._peer, response.status
        begun, pending.stream = pending.stream, None
        decoder = continued(pending.decoder, peer.message_limit) if begun is None else begun.decoder
        pending.decoder = decoder
        for data in begun.data if begun is not None else ():
            answer = await self._take_up_to(peer.messages_of_event(data, status), pending)
            if answer is not None:
                return answer
        while chunk := await _received(response, decoder):
            answer = await self._take_up_to(peer.messages_in(decoder, chunk, status), pending)
            if answer is not None:
                return answer
        if decoder.last_event_id and peer.legacy:
            return None
        raise TransportClosed("the response stream ended without an answer")

    async def _take_up_to(
        self, messages: Iterable[Message], pending: PendingHttpRequest
    ) -> Reply | ErrorReply | None:
        for message in messages:
            if isinstance(message, Reply | ErrorReply) and message.id == pending.id:
                return message
            await self._intake.take(message, pending)
        return None


async def _received(response: HttpResponse, decoder: SseDecoder) -> bytes:
    """The next bytes of a stream, b"" when it has ended or broken off where it can be resumed."""
    try:
        return await response.receive_some()
    except TransportClosed:
        if not decoder.last_event_id:
            raise
        return b""
