"""Parts of the supervisor and its workers: calls over a pair of sockets, a store, and counters in memory.

A message is a call of a named function of the other side, or the answer to a call: a pickle with its length
in front. Calls arrive in the order in which they were posted.

The store of the workers is in the supervisor's memory: their leases, sessions, streams and rate limits. The
lease of a worker ends when its process does, or when it hangs.
"""

from __future__ import annotations

import copyreg
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutine
from itertools import count
from types import MappingProxyType
from typing import Any

import structlog
import trio

from mcpmux.cluster.letter import Card, Neighbour
from mcpmux.cluster.store import MemoryStore, OpenSeal, Store, StoreAway
from mcpmux.config.scalars import read_only
from mcpmux.errors import TransportClosed
from mcpmux.mux.cache import ROW_BYTES, Generations

log = structlog.get_logger()

_LENGTH = struct.Struct("!Q")
RECEIVE_BYTES = 64 * 1024
SEND_SECONDS = 10.0  # for the other side to take a message; one that does not read for so long hangs
ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 2.0  # much less than the time after which a worker that gets no heartbeat hangs
POSTED = 10_000  # messages that wait, in SEND_SECONDS at most; each has one change, or one person's question
ANSWER = ""  # instead of a name
STORE = "store"  # the name of the call to the supervisor
METHODS = frozenset(name for name in vars(Store) if not name.startswith("_"))
STORE_SECONDS = 1.0

ControlMessage = tuple[int, str, tuple[Any, ...]]
"""(number of a question, or 0 for a call without an answer; name, or ANSWER; arguments, or (the answer,))."""

Handlers = dict[str, Callable[..., Any]]
"""Functions that the other side can call, by name; they may be async."""

# Frozen configurations contain read-only mappings, which pickle does not support.
copyreg.pickle(MappingProxyType, lambda mapping: (read_only, (dict(mapping),)))


# Pickle is safe here: both sides are the same program, and no other process can write to the sockets.
def encode_message(message: ControlMessage) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class ControlChannel:
    """One end of a channel, which owns `sock`. `gone`: whether the channel is closed."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._sending = trio.Lock()
        self._received = bytearray()
        self._posted, self._waiting = trio.open_memory_channel[ControlMessage | trio.Event](POSTED)
        self._numbers = count(1)
        self._questions: dict[int, trio.MemorySendChannel[Any]] = {}
        self.gone = False

    async def run(self, handlers: Handlers) -> None:
        """Send posted calls, and make the calls of the other side, until that has gone.

        Questions are answered side by side; calls without an answer are made one after the other.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_posted)
            with suppress(TransportClosed):
                while True:
                    number, name, arguments = await self.receive()
                    if name == ANSWER:
                        if number in self._questions:
                            self._questions[number].send_nowait(*arguments)
                    elif number:
                        nursery.start_soon(self._answer, number, handlers, name, arguments)
                    else:
                        await _call(handlers, name, arguments)
            self.gone = True
            # Wakes the tasks in `ask`, which would wait for their whole time otherwise.
            for answered in self._questions.values():
                answered.close()
            nursery.cancel_scope.cancel(reason="the other process has gone")

    async def _answer(self, number: int, handlers: Handlers, name: str, arguments: tuple[Any, ...]) -> None:
        await self._send((number, ANSWER, (await _call(handlers, name, arguments),)))

    def post(self, name: str, *arguments: Any) -> None:
        """Queue a call for `run` to send. Never waits."""
        self._post((0, name, arguments))

    def pause(self, until: trio.Event) -> None:
        """Send what is posted from now on after that event, or after PAUSE_SECONDS."""
        self._post(until)

    def _post(self, message: ControlMessage | trio.Event) -> None:
        try:
            self._posted.send_nowait(message)
        except trio.WouldBlock:
            # A process that takes no messages counts as gone, as one that does not read in time.
            log.debug("message to another process lost", reason="the other process does not read")
            self.close()

    async def _send_posted(self) -> None:
        async for message in self._waiting:
            if isinstance(message, trio.Event):
                with trio.move_on_after(PAUSE_SECONDS):
                    await message.wait()
            else:
                await self._send(message)

    async def ask(self, name: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Return the answer to a call, None for an unknown name. Raises TransportClosed if it is late."""
        # In the queue of `run`, as posted calls are: an answer shows that all calls before it were made.
        number = next(self._numbers)
        answered, answer = trio.open_memory_channel[Any](1)
        self._questions[number] = answered
        self._post((number, name, arguments))
        try:
            with trio.move_on_after(0 if self.gone else seconds), suppress(trio.EndOfChannel):
                return await answer.receive()
        finally:
            del self._questions[number]
        raise TransportClosed("it has gone" if self.gone else "it does not answer")

    async def send(self, name: str, *arguments: Any) -> None:
        """Send a call before the queued ones. A failure is not raised here, but `run` ends after it."""
        await self._send((0, name, arguments))

    async def _send(self, message: ControlMessage) -> None:
        """Send a message. A failure is logged; when the other side does not read, the channel is closed."""
        data = encode_message(message)
        async with self._sending:
            # Shielded, as half a message would break the channel; bounded, as the other side may hang.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_SECONDS) as scope:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    log.debug("message to another process lost", reason="the other process has gone")
            if scope.cancelled_caught:
                log.debug("message to another process lost", reason="the other process does not read")
                self.close()

    async def receive(self) -> ControlMessage:
        """Return the next message of the other side. Raises TransportClosed when it has gone."""
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        data = await self._read(length)
        message: ControlMessage = pickle.loads(data)
        return message

    async def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise TransportClosed("the other process has gone")
            self._received += data
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    def close(self) -> None:
        """Close this end. May be called again."""
        self.gone = True
        self._stream.socket.close()


async def _call(handlers: Handlers, name: str, arguments: tuple[Any, ...]) -> Any:
    handler = handlers.get(name)
    result = handler(*arguments) if handler is not None else None
    return await result if iscoroutine(result) else result


# The store


class SupervisorStore:
    """The supervisor's store, as a worker uses it: every method of `Store` is a call to the supervisor."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self.commands = 0
        self.lag: float | None = None

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)
        return partial(self._ask, method)

    async def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        self.commands += 1
        began = trio.current_time()
        try:
            answer = await self._control.ask(STORE, method, arguments, named, seconds=STORE_SECONDS)
        except TransportClosed as error:
            raise StoreAway(f"the supervisor: {error}") from None
        self.lag = trio.current_time() - began
        return answer


class MemberStore:
    """The store for the calls of one worker, in the supervisor."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lease: tuple[str, bytes] | None = None

    async def answer(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the store's answer to a worker's call, None for an unknown method."""
        if method not in METHODS:
            return None
        if method == "renew":  # so that `end` knows the lease of a worker that was killed
            self._lease = arguments[0], arguments[1]
        return await getattr(self._store, method)(*arguments, **named)

    async def end(self) -> None:
        """End the lease of a worker that has ended, so that the others may take its sessions over."""
        if self._lease is not None:
            await self._store.leave(self._lease[0])

    @property
    def member(self) -> Neighbour | None:
        """The worker as the others know it, None until it has a lease."""
        return self._lease and Neighbour(self._lease[0], Card.open(OpenSeal(), *self._lease))


# The counters


def open_counters(workers: int) -> int:
    """Return a file descriptor of memory for the counters of all workers. Raises OSError."""
    # Without a name in a file system: it is gone with the last process that has it.
    descriptor = os.memfd_create("mcpmux-generations")
    os.ftruncate(descriptor, workers * ROW_BYTES)
    return descriptor


def map_counters(descriptor: int, number: int, workers: int) -> Generations:
    """Return the generations of the worker with that number, from 1. Closes the descriptor."""
    # Cached answers of an upstream are outdated as soon as any worker counts a change here, see `mux/cache`.
    counters = mmap.mmap(descriptor, workers * ROW_BYTES)
    os.close(descriptor)
    return Generations(memoryview(counters), number - 1, workers)
