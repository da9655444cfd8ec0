"""The certificates that a process shows to those who connect to it, read again while it serves.

Promises: a handshake uses the files as they were read last, all of them or none; connections that exist go
on. The authorities of clients' certificates are read again, too. Files that are of no use change nothing.
"""

from __future__ import annotations

import hashlib
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from mcpmux.config import ServerTls
from mcpmux.errors import ConfigError
from mcpmux.transports.tls.context import CurrentContext, server_context

READ_SECONDS = 10.0  # for the files of all listeners, when they are read again


@dataclass(eq=False)
class _Served:
    """What one listener shows: `now` is what handshakes use, `mark` tells whether its files have changed."""

    where: str
    tls: ServerTls
    now: ssl.SSLContext
    mark: bytes

    def current(self) -> ssl.SSLContext:
        """See CurrentContext."""
        return self.now


class ServedCertificates:
    """Those of one process's listeners."""

    def __init__(self) -> None:
        self._served: list[_Served] = []

    def __repr__(self) -> str:
        return f"<ServedCertificates {[served.where for served in self._served]}>"

    async def open(self, where: str, tls: ServerTls) -> CurrentContext:
        """What a listener secures its connections with. Raises ConfigError for files that are of no use."""
        mark, context = await trio.to_thread.run_sync(_read, where, tls)
        served = _Served(where, tls, context, mark)
        self._served.append(served)
        return served.current

    async def renew(self) -> tuple[str, ...]:
        """Read all files again: the listeners that have other ones now.

        Raises ConfigError when some are of no use, or cannot be read in time; nothing has changed then.
        """
        read: list[tuple[bytes, ssl.SSLContext]] = []
        problems: list[str] = []
        with trio.move_on_after(READ_SECONDS) as patience:
            for served in self._served:
                try:
                    read.append(
                        await trio.to_thread.run_sync(_read, served.where, served.tls, abandon_on_cancel=True)
                    )
                except ConfigError as error:
                    problems += error.problems
        if patience.cancelled_caught:
            problems.append(f"the files of certificates cannot be read within {READ_SECONDS:g} s")
        if problems:
            raise ConfigError(problems)
        changed = []
        for served, (mark, context) in zip(self._served, read, strict=True):
            if mark != served.mark:
                served.mark, served.now = mark, context
                changed.append(served.where)
        return tuple(changed)


def _read(where: str, tls: ServerTls) -> tuple[bytes, ssl.SSLContext]:
    try:
        mark = hashlib.sha256()  # of the files before they are used: what comes between is read next time
        for path in (tls.certificate, tls.key, tls.client_ca):
            mark.update(_bytes_of(path) if path is not None else b"")
        context = server_context(tls)
    except ConfigError as error:
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None
    return mark.digest(), context


def _bytes_of(path: str) -> bytes:
    """Nothing for a file that cannot be read, of which `server_context` says why."""
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""
