"""A request over HTTP that was sent on, and whose answer is sent where it is read, without a task.

Promises: the client gets what it would have got in the ordinary way; whatever is more than a result goes that
way. Refuses to know how a connection waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from mcpmux.protocol.envelope import Request, encode_reply
from mcpmux.protocol.large import Part, encode_large_reply
from mcpmux.runtime.downstreams.http_answer import JSON, failure, headers_of, respond
from mcpmux.runtime.incoming import Forwarded
from mcpmux.transports.http.reply import HttpReply

OnOver = Callable[[], object]


class HttpErrand:
    """The answer to a request that was sent on, see `PutOff`. `on_over` is called when it is done with."""

    __slots__ = ("_forwarded", "_legacy", "_on_over", "_parts", "_reply", "_request", "_streams", "tell")

    def __init__(
        self,
        request: Request,
        reply: HttpReply,
        forwarded: Forwarded,
        on_over: OnOver | None = None,
        *,
        streams: bool,
        legacy: bool = False,
    ) -> None:
        self._request = request
        self._reply = reply
        self._forwarded = forwarded
        self._on_over = on_over
        self._streams = streams
        self._legacy = legacy
        self._parts: list[Part] | None = None  # of an answer that is there, and too large to be sent at once
        self.tell = forwarded.tell

    def __repr__(self) -> str:
        return f"<HttpErrand {self._request.method} {self._forwarded!r}>"

    @property
    def is_large(self) -> bool:
        """Whether the answer is there, and too large to be sent at once."""
        return self._parts is not None

    def take(self) -> bool:
        """See PutOff."""
        request, status = self._request, 200
        try:
            result = self._forwarded.take()
            if result is None:
                return False
            self._parts = encode_large_reply(request.id, result)
            if self._parts is not None:
                return False
            data = encode_reply(request.id, result)
        except Exception as error:  # the wall around one request
            status, data = failure(request, error)
        status = 200 if self._legacy else status  # as `respond` has it
        try:
            self._reply.send_nowait(status, headers_of(status), data)
        finally:
            if self._on_over is not None:
                self._on_over()
        return True

    async def carry_on(self) -> None:
        """See PutOff."""
        try:
            if self._parts is not None:
                await self._reply.send_parts(200, JSON, self._parts)
            else:
                work = self._forwarded.carry_on
                await respond(self._request, self._reply, work, streams=self._streams, legacy=self._legacy)
        finally:
            if self._on_over is not None:
                self._on_over()
