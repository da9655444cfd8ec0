"""Listening on a Unix socket: its file comes and goes with the listener.

Promises: nobody whom `mode` leaves out can connect at any moment; a socket file that a dead process left
behind is replaced, one that somebody listens on, or any other file, never; on the way out only our own file
is removed. What touches the file system runs in threads.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from mcpmux.errors import TransportError
from mcpmux.transports.wire import reason_of

BACKLOG = 128  # connections that wait to be accepted
REMOVE_SECONDS = 2.0  # for removing the file at the end; a file system that hangs keeps it


@asynccontextmanager
async def open_unix_listener(path: str, mode: int) -> AsyncIterator[trio.SocketListener]:
    """A listener at `path` with these permissions. Raises TransportError."""
    bound, identity = await trio.to_thread.run_sync(_bind, path, mode)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
    try:
        yield listener
    finally:
        with trio.move_on_after(REMOVE_SECONDS, shield=True):
            await listener.aclose()
            await trio.to_thread.run_sync(_remove, path, identity, abandon_on_cancel=True)


Identity = tuple[int, int]
"""Device and inode of a file: of two files with one name, which it is."""


def _bind(path: str, mode: int) -> tuple[socket.socket, Identity]:
    bound = socket.socket(socket.AF_UNIX)
    try:
        _clear(path)
        bound.setblocking(False)
        bound.bind(path)
        os.chmod(path, mode)  # noqa: PTH101  # nobody can connect yet: there is no `listen` so far
        identity = _identity(path)
        bound.listen(BACKLOG)
    except (OSError, ValueError) as error:
        bound.close()
        hint = "; make the folder first" if isinstance(error, FileNotFoundError) else ""
        raise TransportError(f"cannot listen on unix:{path}: {reason_of(error)}{hint}") from None
    except BaseException:
        bound.close()
        raise
    return bound, identity


def _clear(path: str) -> None:
    """Remove a socket file that nobody listens on. Raises TransportError for anything else that is there."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(there.st_mode):
        raise TransportError(f"cannot listen on unix:{path}: a file that is no socket is there; remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108
            return
        except BlockingIOError:  # it listens, its queue is full
            pass
    raise TransportError(f"cannot listen on unix:{path}: another process listens there already")


def _remove(path: str, identity: Identity) -> None:
    with suppress(OSError):
        if _identity(path) == identity:
            os.unlink(path)  # noqa: PTH108


def _identity(path: str) -> Identity:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
