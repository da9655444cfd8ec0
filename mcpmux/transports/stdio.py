"""This process's standard input and output as a message stream, for the host application that started it.

Promises: only messages get into the channel; both descriptors are restored afterwards.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import trio
from trio.abc import Stream

from mcpmux.transports.message_stream import RECEIVE_BYTES, LineStream, open_line_stream

STDIN, STDOUT, STDERR = 0, 1, 2


@dataclass(eq=False)
class ThreadedStream(Stream):
    """A descriptor that cannot be awaited, read and written by threads."""

    fd: int

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        size = max_bytes or RECEIVE_BYTES
        try:
            # A cancelled call leaves its thread behind, as a terminal may never answer.
            return await trio.to_thread.run_sync(os.read, self.fd, size, abandon_on_cancel=True)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[await trio.to_thread.run_sync(os.write, self.fd, rest, abandon_on_cancel=True) :]
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        # The descriptor stays open to the end of the process: a thread that was left may still be using it.
        await trio.lowlevel.checkpoint()


def _open_stream(fd: int) -> Stream:
    """Return a stream over a duplicate of the descriptor `fd`."""
    mode = os.fstat(fd).st_mode
    own = os.dup(fd)  # the stream closes it, and `fd` is still needed to restore the standard descriptors
    # Threads serve all others: some cannot be awaited, and a terminal must stay in blocking mode, which it
    # shares with standard error and the shell.
    if sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return trio.lowlevel.FdStream(own)
    return ThreadedStream(own)


@contextmanager
def _private_channel() -> Iterator[tuple[int, int]]:
    """Yield the descriptors of the channel in and out, while 0 reads nothing and 1 is standard error."""
    sys.stdout.flush()
    source, target = os.dup(STDIN), os.dup(STDOUT)
    # `FdStream` makes them non-blocking, also for other processes that share them: put back at the end.
    blocking = [_is_blocking(fd) for fd in (source, target)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.close(nothing)
    os.dup2(STDERR, STDOUT)  # printed text goes there, and not among the messages
    try:
        yield source, target
    finally:
        sys.stdout.flush()  # text that was printed meanwhile must not get into the channel
        for fd, standard, was_blocking in zip((source, target), (STDIN, STDOUT), blocking, strict=True):
            if sys.platform != "win32":
                os.set_blocking(fd, was_blocking)
            os.dup2(fd, standard)
            os.close(fd)


def _is_blocking(fd: int) -> bool:
    is_blocking = True
    if sys.platform != "win32":
        is_blocking = os.get_blocking(fd)
    return is_blocking


@asynccontextmanager
async def open_stdio_stream(max_message_bytes: int) -> AsyncIterator[LineStream]:
    """Open the message stream to the process that started this one. Only one may be open at a time.

    The end of input is the end of the stream.
    """
    with open_stdio() as stream:
        async with open_line_stream(stream, max_message_bytes) as messages:
            yield messages


@contextmanager
def open_stdio() -> Iterator[trio.StapledStream[Stream, Stream]]:
    """Open the byte stream to the process that started this one. Only one may be open at a time."""
    with _private_channel() as (source, target):
        yield trio.StapledStream(_open_stream(target), _open_stream(source))
