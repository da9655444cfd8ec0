"""One request over HTTP whose answer has not come, and what is an answer to it."""

from __future__ import annotations

import msgspec

from mcpmux.protocol.call import Notify
from mcpmux.protocol.envelope import ErrorReply, Message, Reply
from mcpmux.protocol.inflight import Ticket
from mcpmux.runtime.term import Term
from mcpmux.transports.sse import SseDecoder

_ANSWERS = (Reply, ErrorReply)


class Waiting(msgspec.Struct):
    """A request, and how far its event stream has been read.

    `ticket` is set when the answer is waited for elsewhere: then what comes before it goes there. `unsent`:
    it failed, or was taken back, before any of it was sent.
    """

    request_id: int
    notify: Notify
    ticket: Ticket | None = None
    term: Term | None = None
    decoder: SseDecoder | None = None
    unsent: bool = False


def as_answer(message: Message | None, waiting: Waiting) -> Reply | ErrorReply | None:
    """The message, when it is the answer that is waited for."""
    if isinstance(message, _ANSWERS) and (message.id == waiting.request_id or message.id is None):
        return message
    return None
