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
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import structlog
import trio

from mcpmux import app
from mcpmux.app.interceptors import NO_FUNCTIONS, Functions, check_interceptors
from mcpmux.app.observers import open_observers
from mcpmux.clients.memory_client import raw_given
from mcpmux.config import Admin, Config
from mcpmux.errors import ConfigError, LocalProtocolError, McpmuxError, RpcError
from mcpmux.hosts.configuration import read_config, read_mapping
from mcpmux.library.client import Client, as_raised
from mcpmux.logs import set_up_logs, tell_notes
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import decode_any
from mcpmux.protocol.principal import Principal, is_name
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.outcome import outcome_of
from mcpmux.transports.inline import AT_ONCE
from mcpmux.transports.wall import leaves_of
from mcpmux.upstreams.supervision import OpenChannel

Source: TypeAlias = Config | str | os.PathLike[str] | Mapping[str, Any]
"""A configuration: built, the path of a file, or the contents of such a file, our own or a host app's."""

ENDED: Final = "mcpmux has ended"
GIVEN: Final = "the given configuration"
MOST_EXCHANGES: Final = 1000  # that wait for an observer; a few hundred KiB


# Finished exchanges, reported to observers in the program: that delays no exchange. Each observer has room
# for a bounded number of exchanges; more are dropped and counted. Without observers, they have no cost here.


class FinishedExchange(NamedTuple):
    """One request of a client, and its outcome.

    `number`: from 1, in the order in which they began. `method`: of MCP. `target`: the name or URI that the
    request was about, in the client's words; None when there is none.

    `principal` and `view`: of the client, "" for an unknown principal and for the view with everything.
    `client`: its name for itself.

    `upstreams`: configured names of those that were asked, in that order; empty when mcpmux itself
    answered. `began`: seconds since 1970. `seconds`: its duration.

    `outcome`: a word as in the label `outcome` of `/metrics`: "ok", "tool_error" (a result with `isError`),
    "input_required", "refused" (by a rule of mcpmux), "unavailable", "timeout", "cancelled", "broken" (a bug
    of mcpmux), or a word for the code of any other error. `code` and `message`: of an error.
    """

    number: int
    method: str
    target: str | None
    principal: str
    view: str
    client: str | None
    upstreams: tuple[str, ...]
    began: float
    seconds: float
    outcome: str
    code: int | None
    message: str | None


class Exchanges:
    """Exchanges in the order in which they ended, to iterate over in one task.

    `dropped`: the number that found no room.
    """

    def __init__(self, most: int) -> None:
        self.dropped = 0
        self._sender, self._receiver = trio.open_memory_channel[FinishedExchange](most)

    def __repr__(self) -> str:
        waiting = self._receiver.statistics().current_buffer_used
        return f"<Exchanges {waiting} waiting, {self.dropped} dropped>"

    def put(self, finished: FinishedExchange) -> None:
        """Add an exchange, or count it as dropped when there is no room."""
        try:
            self._sender.send_nowait(finished)
        except trio.WouldBlock:
            self.dropped += 1

    def close(self) -> None:
        """End the iteration, and drop the exchanges that were not taken."""
        self._sender.close()
        self._receiver.close()

    def __aiter__(self) -> Exchanges:
        return self

    async def __anext__(self) -> FinishedExchange:
        """Return the next finished exchange."""
        return await self._receiver.__anext__()


class ExchangeFeed:
    """An ExchangeObserver that never waits: it passes exchanges to all observers in the program."""

    def __init__(self) -> None:
        self._observers: list[Exchanges] = []

    def __repr__(self) -> str:
        return f"<ExchangeFeed of {len(self._observers)} observers>"

    @property
    def passes(self) -> bool:
        """Whether there are no observers."""
        return not self._observers

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Admit every exchange, at once."""
        return AT_ONCE

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Pass a finished exchange to all observers, at once."""
        if self._observers:
            call, error = exchange.call, outcome if isinstance(outcome, RpcError) else None
            finished = FinishedExchange(
                exchange.number,
                call.method,
                target_in(call.params),
                call.principal.name,
                call.principal.view,
                exchange.leg.name,
                tuple(exchange.upstreams),
                time.time() - seconds,
                seconds,
                outcome_of(call.method, outcome),
                None if error is None else error.code,
                None if error is None else error.message,
            )
            for observer in self._observers:
                observer.put(finished)
        return AT_ONCE

    @contextmanager
    def observed(self, most: int) -> Iterator[Exchanges]:
        """Yield the exchanges that begin and end from now on."""
        exchanges = Exchanges(most)
        self._observers.append(exchanges)
        try:
            yield exchanges
        finally:
            self._observers.remove(exchanges)
            exchanges.close()


# A mux that runs.


class LocalMux:
    """A running mcpmux. See `open_mux`."""

    def __init__(self, mux: app.Mux, feed: ExchangeFeed) -> None:
        self._mux = mux
        self._feed = feed
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<LocalMux of {', '.join(self._mux.upstreams)}>"

    def absent(self) -> dict[str, str]:
        """Return the upstreams that cannot be used at the moment, by name, with the reason."""
        return absent(self._mux)

    def end(self) -> None:
        """Open no more clients."""
        self._has_ended = True

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

        Raises LocalProtocolError for an impossible name, for a view that does not exist for it, and when the
        context of mcpmux was left.
        """
        if self._has_ended:
            raise LocalProtocolError(ENDED)
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
    try:
        async with (
            open_observers(attrs.evolve(config, admin=Admin()), first=(feed,)) as observers,
            app.open_mux(config, open_channel, observers.tap, observers.trace, functions=functions) as mux,
        ):
            await mux.upstreams.settled(legacy=False)
            local = LocalMux(mux, feed)
            try:
                yield local
            finally:
                local.end()
    except BaseExceptionGroup as group:  # records that cannot be kept
        match leaves_of(group):
            case [McpmuxError() as error]:
                raise error from None
        raise


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
