"""The program of one worker: a replica that gets its connections, store and actions from the supervisor.

If the supervisor has gone, all tasks are cancelled at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import structlog
import trio

from mcpmux.app.held import answer_others
from mcpmux.app.mux import Mux
from mcpmux.app.observers import Observers
from mcpmux.app.serving import DRAIN_SECONDS, serve_until, settle
from mcpmux.app.workers.channel import ControlChannel, Handlers, SupervisorStore, map_counters
from mcpmux.app.workers.traffic_forwarder import TrafficForwarder
from mcpmux.cluster.membership import Membership
from mcpmux.cluster.port import UNIX
from mcpmux.cluster.replica import Replica, open_port
from mcpmux.cluster.store import OpenSeal, Store
from mcpmux.config import ClientTls, Config, ServerTls
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed
from mcpmux.files import PRIVATE
from mcpmux.logs import set_up_logs
from mcpmux.mux.cache import Generations
from mcpmux.traffic.admin.calls import call_routes
from mcpmux.traffic.admin.held import held_routes
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.handing import ConnectionChannel, HandedListener
from mcpmux.transports.stream import open_unix_listener
from mcpmux.transports.wall import leaves_of
from mcpmux.upstreams.supervision import OpenChannel

log = structlog.get_logger()


def main() -> None:
    """Run a worker.

    Arguments: its number, the number of workers, the descriptors of both channels and of the counters.
    """
    number, workers, control, connection_channel, counters = (int(argument) for argument in sys.argv[1:6])
    for fd in (control, connection_channel, counters):  # child processes of upstreams must not have them
        os.set_inheritable(fd, False)
    # The supervisor acts on these for all workers: it stops them, or sends them another configuration.
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    failed = False
    try:
        generations = map_counters(counters, number, workers)
        ends = socket.socket(fileno=control), socket.socket(fileno=connection_channel)
        trio.run(run_worker, number, generations, *ends)
    except* Exception as crash:  # the wall around the process
        log.error("worker failed", worker=number, errors=[repr(error) for error in crash.exceptions])
        log.debug("worker failed here", exc_info=crash)
        failed = True
    sys.exit(failed)


async def run_worker(
    number: int, generations: Generations, control: socket.socket, connection_channel: socket.socket
) -> None:
    """Serve until the supervisor calls `stop`, or has gone. `generations` are shared by all workers."""
    structlog.contextvars.bind_contextvars(worker=number)
    # The supervisor posts `start` before any other call.
    channel = ControlChannel(control)
    try:
        _, _, start = await channel.receive()
    except TransportClosed:
        return
    worker = Worker(number, generations, channel, ConnectionChannel(connection_channel))
    started, config, folder, drained = start
    try:
        set_up_logs(config)
        async with trio.open_nursery() as signals:
            signals.start_soon(_handle_signals, channel, name="signals")
            await worker.run(started, config, folder, drained, settle)
            signals.cancel_scope.cancel(reason="stopped")
    except* McpmuxError as group:
        errors = leaves_of(group)
        mistakes = [text for error in errors if isinstance(error, ConfigError) for text in error.problems]
        with trio.move_on_after(DRAIN_SECONDS):
            await channel.send("failed", "; ".join(map(str, errors)), mistakes)


async def _handle_signals(control: ControlChannel) -> None:
    """Report SIGTERM to the supervisor, which drains this worker and starts another one."""
    with trio.open_signal_receiver(signal.SIGTERM) as received:
        async for _ in received:
            await control.send("leaving")


@dataclass(eq=False)
class Worker:
    """The place of this process among the workers. `run` does all of its work; it sets `mux` and `replica`.

    `open_channel` replaces the real transports.
    """

    number: int
    _generations: Generations
    _control: ControlChannel
    _connections: ConnectionChannel
    open_channel: OpenChannel | None = None

    def __post_init__(self) -> None:
        self.mux: Mux
        self.replica: Replica
        self.doors: Sequence[HandedListener] = ()
        self.forwarder = TrafficForwarder()
        self._stopping = trio.Event()

    async def run(
        self,
        started: Config,
        config: Config,
        folder: str,
        drained: tuple[str, ...],
        on_ready: Callable[[], None],
    ) -> None:
        """Serve until `stop`; then exchanges in flight have DRAIN_SECONDS. Raises McpmuxError, in groups.

        `started`: the configuration with all settings that are in force. `config`: the present one, which is
        another one if it was changed since the supervisor has started. `folder`: of the workers' sockets.
        `drained`: upstreams that get no exchange. `on_ready` is called when the worker serves.
        """
        self._config, self._folder, self._drained, self._on_ready = config, folder, drained, on_ready
        listeners = range(len(started.listeners.bound))
        self.doors = [HandedListener(number, self._connections) for number in listeners]
        async with trio.open_nursery() as self._everything:
            if started.admin.port is not None:
                send = partial(self._control.send, "traffic")
                self._everything.start_soon(self.forwarder.run, send, name="traffic")
            # The supervisor has announced its listeners itself.
            announce, followers = (lambda _url: None), (set_up_logs,)
            await serve_until(self._stopping, started, announce, followers=followers, worker=self)
            self._everything.cancel_scope.cancel(reason="stopped")

    # See Workplace

    @asynccontextmanager
    async def open_replica(self, config: Config, bodies: BodyBudget) -> AsyncIterator[Replica]:
        path = f"{self._folder}/w{self.number}"  # short: the path of a socket has 107 bytes at most
        store, seal = cast(Store, SupervisorStore(self._control)), OpenSeal()
        name, ids, lease = f"worker {self.number}", f"{self.number}w", config.cluster.lease
        members = Membership(store, seal, name, f"{UNIX}{path}", lease, ids=ids, is_told_of=False)
        # Counters in memory, not letters as between replicas. A change must reach all caches before its
        # client gets the answer: letters would double the processor time of each tool call, a worker that
        # hangs would hold up all others, and one that is killed could not send its last letter.
        shared = self._generations
        async with (
            open_unix_listener(path, PRIVATE) as listener,
            open_port(config, store, seal, members, [listener], bodies, generations=shared) as replica,
        ):
            self.replica = replica
            yield replica

    def obey(self, mux: Mux, observers: Observers) -> None:
        """Do what the supervisor wants from now on. Answer what it asks for its admin listener."""
        self.mux = mux
        mux.apply(self._config)
        for name in self._drained:
            mux.drain(name)
        self._everything.start_soon(self._obey, self._handlers(mux, observers), name="control")

    async def be_ready(self, clients: trio.Nursery) -> None:
        """Get connections from now on."""
        clients.start_soon(self._distribute, name="connections")
        await self._control.send("ready")
        self._on_ready()

    # Connections

    async def _distribute(self) -> None:
        """Give each connection to its listener, or back once that is closed. Return after the last one."""
        with suppress(TransportClosed):  # the supervisor sends no more: it wants us to stop, or has gone
            while True:
                number, sock = await self._connections.receive()
                try:
                    sock.setblocking(False)
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                except OSError:  # its client has gone
                    sock.close()
                    continue
                door = self.doors[number]
                if not await door.put(stream):
                    with stream.socket:
                        await door.give_back(stream.socket.fileno())

    # Orders

    def _handlers(self, mux: Mux, observers: Observers) -> Handlers:
        """Return the functions that the supervisor calls. Its `heartbeat` needs none: None is the answer."""

        def act(action: str, name: str) -> None:
            if name not in mux.upstreams:
                return
            if action != "reconnect":
                mux.act(action, name)
            elif mux.upstreams[name].state in ("down", "crash-loop"):  # without waiting for the next attempt
                mux.upstreams.add(name, mux.make_shared(name))

        async def renew(wanted: Sequence[ServerTls | ClientTls]) -> None:
            try:  # the supervisor has just read the same files without an error, so this seldom fails
                await mux.certificates.renew(wanted)
            except ConfigError as error:
                for problem in error.problems:
                    log.error("certificate not read again, the old one stays", problem=problem)

        handlers: Handlers = {
            "stop": self._stopping.set,
            "apply": mux.apply,
            "act": act,
            "renew": renew,
            "worker gone": self.replica.members.renew_soon,
        }
        if observers.admin.port is not None:
            shown = observers.shown_of(mux, row_of=self._row_of)
            self.replica.inspector = answer_others([*call_routes(shown.call), *held_routes(shown.desk)])
            handlers |= {
                "upstreams": shown.upstreams.read_all,
                "subscriptions": shown.upstreams.read_subscriptions,
                "metrics": shown.read_metrics,
                "views": shown.views.count_views,
            }
        return handlers

    async def _row_of(self, exchange: int) -> int | None:
        # The inspector first has to know of the exchange.
        await self.forwarder.forward(partial(self._control.send, "traffic"))
        row: int | None = await self._control.ask("row", exchange)
        return row

    async def _obey(self, handlers: Handlers) -> None:
        await self._control.run(handlers)
        # A supervisor that was killed has not removed the folder with the sockets.
        log.warning("stopping at once: the supervisor has gone")
        with trio.move_on_after(DRAIN_SECONDS):
            await trio.to_thread.run_sync(partial(shutil.rmtree, self._folder, ignore_errors=True))
        self._everything.cancel_scope.cancel(reason="the supervisor has gone")
