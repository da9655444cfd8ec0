"""One keep-alive connection of the load generator: a request out, its response in.

Promises: one send, one receive and one wake-up for an exchange that fits into them. A response whose head was
parsed before, byte for byte, is not parsed again: only its length is compared. All others go through the
parser of the transports. Whatever goes wrong closes the connection.

idle -- `exchange` --> busy -- a known response, and `then` has another request --> busy
                            -- response complete, keep-alive --> idle
                            -- anything else                 --> closed
idle -- the server closes it, or sends anything --> closed
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import trio
from attrs import define, field

from mcpmux.config import Limits
from mcpmux.errors import ConnectFailed, MessageTooLarge, TransportClosed
from mcpmux.transports.byte_stream import RECEIVE_BYTES, PlainStream, connect, reason_of
from mcpmux.transports.http.client import JSON_TYPE
from mcpmux.transports.http.message import ResponseParser
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.waiting import ReadinessPoller

MOST_HEADS = 64  # remembered; a Date makes a new one each second
HEAD_END = b"\r\n\r\n"

Then = Callable[[bytes], bytes | None]
"""The request that follows a body, or None. It must not raise."""


class KnownHeads:
    """Heads of responses that were parsed before (200, JSON, keep-alive) and the lengths of their bodies."""

    def __init__(self) -> None:
        self._lengths: dict[bytes, int] = {}
        self._last = b" "  # what most responses begin with; no response begins with a blank
        self._last_size = 0

    def __repr__(self) -> str:
        return f"<KnownHeads {len(self._lengths)} known>"

    def body_in(self, response: bytes) -> bytes | None:
        """The body of a response that is known and complete."""
        if len(response) == self._last_size and response.startswith(self._last):
            return response[len(self._last) :]
        end = response.find(HEAD_END) + len(HEAD_END)
        head = response[:end]
        if self._lengths.get(head) != len(response) - end:
            return None
        self._last, self._last_size = head, len(response)
        return response[end:]

    def learn(self, data: bytes, parser: ResponseParser) -> None:
        """Remember the head of a response that came as a whole in `data`."""
        end = data.find(HEAD_END) + len(HEAD_END)
        headers = parser.headers
        good = parser.status == 200 and data.startswith(b"HTTP/1.1 200 ")  # no interim response before it
        whole = parser.keep_alive and headers.get("content-length") == str(len(data) - end)
        if good and whole and headers.get("content-type", "").startswith(JSON_TYPE):
            if len(self._lengths) >= MOST_HEADS:
                self._lengths.clear()
            self._lengths[data[:end]] = len(data) - end


@define(eq=False, repr=False)
class Connector:
    """Opens connections to one origin, of which a run may have many: its name is looked up once.

    `at_once`: how many may be opening; a server's queue for new connections is short.
    """

    origin: HttpOrigin
    _poller: ReadinessPoller
    limits: Limits
    _opening: trio.CapacityLimiter = field(converter=trio.CapacityLimiter, alias="at_once")
    _heads: KnownHeads = field(factory=KnownHeads)
    _found: tuple[socket.AddressFamily, tuple[object, ...]] | None = None

    def __repr__(self) -> str:
        return f"<Connector to {self.origin.authority}>"

    async def open(self) -> HttpConnection:
        """One more. Raises ConnectFailed."""
        async with self._opening:
            byte_stream = await (self._look_up() if self._found is None else self._connect(*self._found))
        return HttpConnection(byte_stream, self._poller, self._heads, self.limits)

    async def _look_up(self) -> PlainStream:
        """Whichever address of the name answers first."""
        byte_stream = await connect(self.origin.host, self.origin.port)
        with suppress(OSError):  # the server may have closed it by now
            self._found = byte_stream.socket.family, byte_stream.socket.getpeername()
        return byte_stream

    async def _connect(self, family: socket.AddressFamily, address: tuple[object, ...]) -> PlainStream:
        """The address that is known by now: a third of the time, which would be counted as the server's."""
        connecting = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            await connecting.connect(address)
            return PlainStream(trio.SocketStream(connecting))
        except BaseException as error:
            connecting.close()
            if not isinstance(error, OSError):
                raise
            raise ConnectFailed(f"cannot connect to {self.origin.authority}: {reason_of(error)}") from None


def _nothing(_body: bytes) -> None:
    """Nothing follows."""


@define(eq=False, repr=False)
class HttpConnection:
    """`begun`: the response to the last request has begun to arrive. `parser` has it, unless it was known.

    `used`: it has brought a response before.
    """

    _byte_stream: PlainStream
    _poller: ReadinessPoller
    _heads: KnownHeads  # may be shared with others
    _limits: Limits
    parser: ResponseParser = field(init=False)
    begun: bool = False
    closed: bool = False
    used: bool = False
    _socket: socket.socket = field(init=False)
    _busy: bool = False
    _done: bool = False
    _known: bytes | None = None
    _failure: Exception | None = None
    _unsent: bytes = b""
    _then: Then = _nothing
    _task: trio.lowlevel.Task | None = None

    def __attrs_post_init__(self) -> None:
        self.parser = ResponseParser(self._limits.max_head_bytes)
        self._socket = self._byte_stream.socket
        self._poller.watch(self._byte_stream.descriptor, self._receive)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self._busy else "idle"
        return f"<HttpConnection {state}>"

    def close(self) -> None:
        """Give the socket back."""
        if not self.closed:
            self.closed = True
            self._poller.forget(self._byte_stream.descriptor)
            self._byte_stream.close()

    async def exchange(self, data: bytes, then: Then) -> bytes | None:
        """Send a request and wait for its response: the body if its head is known; others are in `parser`.

        `then` is given the body of a known one and returns the request to send next on the same connection;
        when it returns none, that response is the one waited for.
        Raises TransportError, RemoteProtocolError. Cancelling it closes the connection.
        """
        self._then = then
        self.begun = self._done = False
        self._known = self._failure = None
        self._busy = True
        try:
            await self._byte_stream.send(data)
            while not self._done:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._leave)
                if self._unsent:
                    unsent, self._unsent = self._unsent, b""
                    await self._byte_stream.send(unsent)
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self.close()
            raise
        self._busy = False
        self.used = True
        if self._known is None and not self.parser.keep_alive:
            self.close()
        return self._known

    def _leave(self, _raise: object) -> trio.lowlevel.Abort:
        """The task that waits is cancelled; nothing may follow any more."""
        self._task, self._done = None, True
        return trio.lowlevel.Abort.SUCCEEDED

    def _receive(self) -> None:
        """Receive once. Called by the poller, so it must not raise: who waits for the exchange is told."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)  # the byte stream would need another call
            if not self._busy or self._done:
                self.close()  # nobody asked: the end, or something without meaning
                return
            if not self.begun:
                if data:
                    self._known = self._heads.body_in(data)
                    self.begun = True
                if self._known is not None:
                    self._go_on(self._known)
                    return
                self.parser.begin()
            self._parse(data)
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(TransportClosed(reason_of(error)))
        except Exception as error:
            self._end(error)

    def _go_on(self, body: bytes) -> None:
        """A known response has arrived: send what follows, or end the exchange."""
        data = self._then(body)
        if data is None:
            self._end(None)
            return
        self.begun, self.used, self._known = False, True, None
        sent = self._byte_stream.send_nowait(data)
        if sent < len(data):
            self._unsent = data[sent:]
            self._wake()

    def _parse(self, data: bytes) -> None:
        parser = self.parser
        if not data:
            parser.feed_eof()
            self._end(None)
            return
        parser.feed(data)
        if parser.received_bytes > self._limits.max_message_bytes + self._limits.max_head_bytes:
            raise MessageTooLarge(f"its answer is larger than {self._limits.max_message_bytes} bytes")
        if parser.complete:
            if parser.received_bytes == len(data):
                self._heads.learn(data, parser)
            self._end(None)

    def _end(self, failure: Exception | None) -> None:
        """The exchange is over; wake the task that waits for it."""
        if failure is not None and not self._busy:
            self.close()
            return
        self._failure, self._done = failure, True
        self._wake()

    def _wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
