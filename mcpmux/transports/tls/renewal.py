"""The certificates that a process shows, and the authorities that it trusts, read again while it serves.

Promises: a handshake uses the files as they were read last, all of them or none; connections that exist go
on. Files that are of no use change nothing.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from mcpmux.config import ClientTls, ServerTls
from mcpmux.errors import ConfigError
from mcpmux.transports.tls.context import CurrentContext, client_context, server_context

READ_SECONDS = 10.0  # for all files, when they are read again


@dataclass(eq=False)
class _Served:
    """What is shown at one place: `now` is for handshakes, `mark` tells whether its files have changed."""

    where: str
    tls: ServerTls | ClientTls
    now: ssl.SSLContext
    mark: bytes

    def current(self) -> ssl.SSLContext:
        """See CurrentContext."""
        return self.now


class TlsContexts:
    """Those of one process: its listeners', and those towards upstreams."""

    def __init__(self) -> None:
        self._served: list[_Served] = []

    def __repr__(self) -> str:
        return f"<TlsContexts {[served.where for served in self._served]}>"

    async def open(self, where: str, tls: ServerTls | ClientTls) -> CurrentContext:
        """What connections of a listener, or to an upstream, are secured with.

        The same for upstreams with the same settings: a store of authorities is large. Raises ConfigError for
        files that are of no use.
        """
        known = (each for each in self._served if isinstance(tls, ClientTls) and each.tls == tls)
        if (served := next(known, None)) is not None:
            return served.current
        mark, context = await trio.to_thread.run_sync(_read, where, tls)
        served = _Served(where, tls, context, mark)
        self._served.append(served)
        return served.current

    def keep(self, towards: Collection[ClientTls]) -> None:
        """Connections to upstreams have one of these settings from now on: others are not read again."""
        self._served = [
            each for each in self._served if isinstance(each.tls, ServerTls) or each.tls in towards
        ]

    async def renew(self) -> tuple[str, ...]:
        """Read all files again: where they are other ones now.

        Raises ConfigError when some are of no use, or cannot be read in time; nothing has changed then.
        """
        read: list[tuple[bytes, ssl.SSLContext]] = []
        problems: list[str] = []
        with trio.move_on_after(READ_SECONDS) as patience:
            for served in self._served:
                if served.tls == ClientTls():
                    read.append((served.mark, served.now))  # the system's authorities, and no file
                    continue
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


def _read(where: str, tls: ServerTls | ClientTls) -> tuple[bytes, ssl.SSLContext]:
    try:
        mark = hashlib.sha256()  # of the files before they are used: what comes between is read next time
        authorities = tls.client_ca if isinstance(tls, ServerTls) else tls.ca
        for path in (tls.certificate, tls.key, authorities):
            mark.update(_bytes_of(path) if path is not None else b"")
        context = server_context(tls) if isinstance(tls, ServerTls) else client_context(tls)
    except ConfigError as error:
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None
    return mark.digest(), context


def _bytes_of(path: str) -> bytes:
    """Nothing for a file that cannot be read, of which `server_context` says why."""
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""
