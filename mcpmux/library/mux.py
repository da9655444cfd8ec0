"""Run mcpmux in a program's own process: its upstreams, clients in memory, and reports of exchanges.

    async with open_mux("mcpmux.toml") as mux, mux.client() as client:
        tools = await client.list_all("tools/list")
        result = await client.request("tools/call", {"name": "clock__now", "arguments": {}})

Promises: no listener is opened, no signal handled, and no task, process or connection outlives the context.
An exception of the body leaves the context unchanged. A program may open several, all in one thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import structlog
import trio

from mcpmux import app
from mcpmux.app.interceptors import NO_FUNCTIONS, Functions, check_interceptors
from mcpmux.app.observers import open_observers
from mcpmux.clients.memory_client import raw_given
from mcpmux.config import Admin, Config
from mcpmux.errors import ConfigError, LocalProtocolError
from mcpmux.hosts.configuration import read_config, read_mapping
from mcpmux.library.client import Client, as_raised
from mcpmux.library.exchanges import ExchangeFeed, Exchanges
from mcpmux.logs import set_up_logs, tell_notes
from mcpmux.protocol.envelope import decode_any
from mcpmux.protocol.principal import Principal, is_name
from mcpmux.upstreams.supervision import OpenChannel

Source: TypeAlias = Config | str | os.PathLike[str] | Mapping[str, Any]
"""A configuration: built, the path of a file, or the contents of such a file, our own or a host app's."""

GIVEN: Final = "the given configuration"
MOST_EXCHANGES: Final = 1000  # that wait for an observer; a few hundred KiB


class LocalMux:
    """A running mcpmux. See `open_mux`."""

    def __init__(self, mux: app.Mux, feed: ExchangeFeed) -> None:
        self._mux = mux
        self._feed = feed

    def __repr__(self) -> str:
        return f"<LocalMux of {', '.join(self._mux.upstreams)}>"

    def absent(self) -> dict[str, str]:
        """Return the upstreams that cannot be used at the moment, by name, with the reason."""
        return absent(self._mux)

    @asynccontextmanager
    async def client(
        self,
        principal: str = "",
        *,
        scopes: Collection[str] = (),
        view: str = "",
        capabilities: Mapping[str, Any] | None = None,
        name: str = "mcpmux",
    ) -> AsyncIterator[Client]:
        """Open a client in memory, as long as the context lasts.

        `principal`: its name for access rules, limits and the audit log, with OAuth `scopes`; neither is
        checked. "" is an unknown client. `view`: a configured one; "" is the one with everything.
        `capabilities`: what servers may ask it for, in MCP's form. `name`: its name for itself.

        Raises LocalProtocolError for an impossible name, and for a view that does not exist for it.
        """
        if principal and not is_name(principal):
            raise LocalProtocolError("nobody can be called so: a name has 1 to 256 printable characters")
        service = self._mux.service
        who = service.enter(Principal(principal, frozenset(scopes)), view)
        if who is None:
            raise LocalProtocolError(f"there is no view {view!r} for {principal or 'nobody in particular'}")
        client = Client(service, who, capabilities or {}, name)
        try:
            yield client
        finally:
            client.leave()

    @asynccontextmanager
    async def observe(self, most: int = MOST_EXCHANGES) -> AsyncIterator[Exchanges]:
        """Observe exchanges of all clients that begin from now on; each is reported when it ends.

        `most`: the number that may wait to be taken; more are dropped and counted.
        """
        with self._feed.observed(most) as exchanges:
            yield exchanges


@asynccontextmanager
async def open_mux(
    source: Source, *, open_channel: OpenChannel | None = None, functions: Functions = NO_FUNCTIONS
) -> AsyncIterator[LocalMux]:
    """Run mcpmux as long as the context lasts.

    Raises ConfigError with every mistake in the configuration, and LocalProtocolError when mcpmux is open in
    another thread.

    It begins when each upstream is ready or has failed, or after seven seconds; failed ones are tried again
    meanwhile. `open_channel` replaces the real transports. `functions`: by the name that `python` of an
    `[[intercept]]` has, in place of those in modules.

    Capture, audit log and tracing are as configured: CaptureUnusable and AuditUnusable are raised when
    required records cannot be kept. `[listeners]`, `[auth]`, `[admin]` and `[cluster]` are for `mcpmux serve`
    and ignored here. Access rules hold for `LocalMux.client`. The log is written as configured unless the
    program has configured structlog.
    """
    config = await trio.to_thread.run_sync(load, source)
    if not structlog.is_configured():
        set_up_logs(config)
    tell_notes(config)
    await trio.to_thread.run_sync(check_interceptors, config, functions)
    with in_one_thread():
        async with as_raised(_open(config, open_channel, functions)) as mux:
            yield mux


@asynccontextmanager
async def _open(
    config: Config, open_channel: OpenChannel | None, functions: Functions
) -> AsyncIterator[LocalMux]:
    feed = ExchangeFeed()
    async with (
        open_observers(attrs.evolve(config, admin=Admin()), first=(feed,)) as observers,
        app.open_mux(config, open_channel, observers.tap, observers.trace, functions=functions) as mux,
    ):
        await mux.upstreams.settled(legacy=False)
        yield LocalMux(mux, feed)


_threads: list[int] = []  # the thread of each open mux


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Hold that all muxes are in this thread: inline exchanges are global, and threads would mix them up."""
    here = threading.get_ident()
    _threads.append(here)
    try:
        if set(_threads) != {here}:
            raise LocalProtocolError("mcpmux is open in another thread: open it once, and share it there")
        yield
    finally:
        _threads.remove(here)


def absent(mux: app.Mux) -> dict[str, str]:
    """Return the upstreams that cannot be used at the moment, by name, with the reason."""
    return {name: up.status.trouble_in_full for name, up in mux.upstreams.items() if up.state != "ready"}


def load(source: Source) -> Config:
    """Return the configuration. Raises ConfigError. Reads files: call it in a thread."""
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        try:
            document = decode_any(raw_given(dict(source)))  # turns tuples into lists, as a file has them
        except (TypeError, ValueError) as error:
            raise ConfigError([f"{GIVEN}: expected what JSON can hold: {error}"]) from None
        return read_mapping(document, os.environ, GIVEN)
    return read_config(str(Path(source)), os.environ, _no_input)


def _no_input() -> bytes:
    raise ConfigError(["expected the path of a file"])
