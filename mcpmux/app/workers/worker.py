"""The program of one worker: a mux that gets its connections and actions from the supervisor.

Nesting is the stop order, as in `app.serving`. If the supervisor has gone, all tasks are cancelled at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
import trio

from mcpmux.app.listeners import HandedConnections, Serving, make_gate, serve_listener
from mcpmux.app.mux import Mux, open_mux
from mcpmux.app.observers import open_observers
from mcpmux.app.serving import DRAIN_SECONDS, prepare_serving, settle
from mcpmux.app.unmatched import watch_names
from mcpmux.app.workers.channel import ControlChannel, Handlers, map_counters
from mcpmux.app.workers.shared_store import make_node, refuse_foreign
from mcpmux.app.workers.traffic_forwarder import TrafficForwarder
from mcpmux.cluster.replica import Node
from mcpmux.config import Config
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed
from mcpmux.logs import set_up_logs
from mcpmux.mux.cache import Generations
from mcpmux.transports.handing import ConnectionChannel, Handed, HandedListener, Handing, Note
from mcpmux.transports.wall import leaves_of
from mcpmux.upstreams.upstream import OpenChannel

log = structlog.get_logger()

ConnectionSource = tuple[HandedListener, trio.MemorySendChannel[tuple[trio.SocketStream, Note]]]
"""The sources of a listener's connections: new ones, and those that other workers have served before."""


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
    channel = ControlChannel(control)
    try:
        _, _, start = await channel.receive()
    except TransportClosed:
        return
    worker = Worker(number, generations, channel, ConnectionChannel(connection_channel))
    config, folder, drained = start
    try:
        set_up_logs(config)
        async with trio.open_nursery() as signals:
            signals.start_soon(_handle_signals, channel, name="signals")
            await worker.run(config, folder, drained, settle)
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
    """The parts of this process. `run` does all of its work; it sets `mux` and `node`.

    `open_channel` replaces the real transports.
    """

    _number: int
    _generations: Generations
    _control: ControlChannel
    _connections: ConnectionChannel
    _open_channel: OpenChannel | None = None
    _stopping: trio.Event = field(default_factory=trio.Event)
    _receiving: trio.CancelScope = field(default_factory=trio.CancelScope)  # around the wait for a connection

    def __post_init__(self) -> None:
        self.mux: Mux
        self.node: Node

    async def run(
        self, config: Config, folder: str, drained: tuple[str, ...], on_ready: Callable[[], None]
    ) -> None:
        """Serve until `stop`; then exchanges in flight have DRAIN_SECONDS. Raises McpmuxError, in groups.

        `folder`: of the sockets of shared upstreams. `drained`: upstreams that get no exchange. `on_ready` is
        called when the worker serves.
        """
        gate = await make_gate(config)
        async with trio.open_nursery() as everything:
            forwarder = TrafficForwarder()
            if config.admin.port is not None:
                everything.start_soon(forwarder.run, partial(self._control.send, "traffic"), name="traffic")
            node = make_node(self._number, self._control, config.limits)
            async with (
                open_observers(config, forwarder) as observers,
                open_mux(
                    *(config, self._open_channel, observers.tap, observers.trace),
                    *(node.members.marks, self._generations),
                ) as mux,
                trio.open_nursery() as clients,
            ):
                self.mux, self.node = mux, node
                followers = (observers.follow, set_up_logs)
                # The supervisor has announced its listeners itself.
                serving = prepare_serving(mux, gate, self._stopping, lambda _url: None, followers, node)
                node.attach(mux.service, mux.hub, mux.rates)
                mux.service.elsewhere = partial(refuse_foreign, node.members)
                for name in drained:
                    mux.drain(name)
                handlers = self._handlers(mux, node)
                if config.admin.port is not None:
                    view, metrics = observers.view(mux), observers.metrics_of(mux)
                    handlers |= {"upstreams": view.read_all, "metrics": metrics}
                    handlers["subscriptions"] = view.read_subscriptions
                    handlers["views"] = observers.views_of(mux).count_views
                everything.start_soon(self._obey, handlers, folder, everything, name="control")
                await everything.start(node.run)
                mux.hub.on_list_change = partial(self._control.post, "list changed", once=True)
                await self._open_listeners(config, serving, clients)
                if self._number == 1:  # all workers would log the same
                    clients.start_soon(watch_names, mux, self._stopping)
                await self._control.send("ready")
                on_ready()
                await self._stopping.wait()
                await node.leave()  # first, so that the other workers send nothing more here
                mux.hub.close()
                clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
            everything.cancel_scope.cancel(reason="stopped")

    # Connections

    async def _open_listeners(self, config: Config, serving: Serving, clients: trio.Nursery) -> None:
        doors: list[ConnectionSource] = []
        for number, listener in enumerate(config.listeners.bound):
            accepting = HandedListener()
            resuming, arrivals = trio.open_memory_channel[tuple[trio.SocketStream, Note]](0)
            doors.append((accepting, resuming))
            handing = Handing(number, arrivals, self._connections.send)
            handed = HandedConnections(accepting, handing)
            await clients.start(serve_listener, listener, serving, handed, number)
        clients.start_soon(self._distribute, doors, name="connections")

    async def _distribute(self, doors: list[ConnectionSource]) -> None:
        """Give each connection to its listener, or back to the supervisor once we stop.

        Return when we stop and no connection is left: after `stop` the supervisor sends none.
        """
        with suppress(TransportClosed):
            while (handed := await self._next_connection()) is not None:
                note, sock = handed
                try:
                    sock.setblocking(False)
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                except OSError:  # its client has gone
                    sock.close()
                    continue
                accepting, resuming = doors[note.listener]
                taken = False
                if not note.open:
                    taken = await accepting.put(stream)
                else:
                    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        await resuming.send((stream, note))
                        taken = True
                if not taken:  # the listener is closed: the supervisor gives it to another worker
                    with stream.socket:
                        await self._connections.send(note, stream.socket.fileno())

    async def _next_connection(self) -> Handed | None:
        if not self._stopping.is_set():
            with trio.CancelScope() as self._receiving:
                return await self._connections.receive()
        # Those that were sent before `stop` are still in the channel, and must go back to the supervisor.
        return self._connections.receive_nowait()

    # Orders

    def _handlers(self, mux: Mux, node: Node) -> Handlers:
        """Return the functions that the supervisor calls. Its `heartbeat` needs none: None is the answer."""

        def stop() -> None:
            self._stopping.set()
            self._receiving.cancel(reason="stopping")

        def act(action: str, name: str) -> None:
            if name not in mux.upstreams:
                return
            if action != "reconnect":
                mux.act(action, name)
            elif mux.upstreams[name].state in ("down", "crash-loop"):  # without waiting for the next attempt
                mux.upstreams.add(name, mux.make_shared(name))

        async def renew() -> None:
            try:  # the supervisor has just read the same files without an error, so this seldom fails
                await mux.renew()
            except ConfigError as error:
                for problem in error.problems:
                    log.error("certificate not read again, the old one stays", problem=problem)

        def tell(upstream: str, method: str) -> None:
            mux.hub.tell_list_change(method, upstream)

        return {
            "stop": stop,
            "apply": mux.apply,
            "act": act,
            "renew": renew,
            "list changed": tell,
            "worker gone": node.members.renew_soon,
        }

    async def _obey(self, handlers: Handlers, folder: str, everything: trio.Nursery) -> None:
        await self._control.run(handlers)
        # A supervisor that was killed has not removed the folder with the sockets.
        log.warning("stopping at once: the supervisor has gone")
        with trio.move_on_after(DRAIN_SECONDS):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        everything.cancel_scope.cancel(reason="the supervisor has gone")
