"""The program of one worker: a mux like any other, with connections and orders from the supervisor.

Nesting is the stop order, as in `app.serving`. If the supervisor is gone, everything is cancelled at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import trio

from mcpmux.app.listeners import HandedConnections, Serving, make_gate, serve_listener
from mcpmux.app.mux import Mux, open_mux
from mcpmux.app.observers import open_observers
from mcpmux.app.serving import DRAIN_SECONDS, prepare_serving, settle_memory
from mcpmux.app.workers import control_channel as cc
from mcpmux.app.workers.traffic_forwarder import TrafficForwarder
from mcpmux.config import Config
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed
from mcpmux.logs import set_up_logs
from mcpmux.mux.cache import Generations
from mcpmux.mux.namespace import mark_of
from mcpmux.transports.handing import ConnectionChannel, Handed, HandedListener, Handing, Note
from mcpmux.transports.wall import leaves_of

log = structlog.get_logger()

QUESTIONS = 64  # of administrators that are worked on at a time

Resumed = tuple[trio.SocketStream, Note]
"""A connection that was served by another worker already."""

Door = tuple[HandedListener, trio.MemorySendChannel[Resumed]]
"""Where a listener gets new connections, and those that other workers have served."""

Answers = Mapping[str, Callable[[], Awaitable[Any]]]
"""By what is asked; the supervisor puts together what all workers answer.

`states`: the state of each upstream's shared session, by name. `upstreams`: a list of `UpstreamState`.
`metrics`: text for Prometheus. Anything else, such as `heartbeat`, is answered with None.
"""


def main() -> None:
    """Arguments: own number, number of workers, descriptors of both channels and the counters."""
    number, workers, control, connection_channel, counters = (int(argument) for argument in sys.argv[1:6])
    for fd in (control, connection_channel, counters):  # nothing that we start has any business with them
        os.set_inheritable(fd, False)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    failed = False
    try:
        generations = cc.map_counters(counters, number, workers)
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
    """Serve until the supervisor says to stop, or has gone. `generations` are shared by all workers."""
    structlog.contextvars.bind_contextvars(worker=number)
    channel = cc.ControlChannel(control)
    try:
        start = await channel.receive()
    except TransportClosed:
        return
    assert isinstance(start, cc.Start)
    set_up_logs(start.config)
    worker = Worker(number, generations, channel, ConnectionChannel(connection_channel), start)
    try:
        await worker.run()
    except* McpmuxError as group:
        errors = leaves_of(group)
        mistakes = [text for error in errors if isinstance(error, ConfigError) for text in error.problems]
        with trio.move_on_after(DRAIN_SECONDS):
            await worker.control.send(cc.Failed("; ".join(map(str, errors)), tuple(mistakes)))


@dataclass(eq=False)
class Worker:
    """This process. `run` is all of its work."""

    number: int
    generations: Generations
    control: cc.ControlChannel
    connection_channel: ConnectionChannel
    start: cc.Start

    def __post_init__(self) -> None:
        self._stopping = trio.Event()
        self._receiving = trio.CancelScope()  # the next connection
        self._asking = trio.CapacityLimiter(QUESTIONS)

    def __repr__(self) -> str:
        return f"<Worker {self.number}{' stopping' if self._stopping.is_set() else ''}>"

    async def run(self) -> None:
        """Serve until told to stop; then what runs has DRAIN_SECONDS. Raises McpmuxError, in groups."""
        config = self.start.config
        gate = await make_gate(config)
        async with trio.open_nursery() as everything:
            everything.start_soon(self._handle_signals, name="signals")
            forwarder = TrafficForwarder()
            if config.admin.port is not None:
                everything.start_soon(forwarder.run, self.control.send, name="traffic")
            async with (
                open_observers(config, forwarder) as observers,
                open_mux(
                    config,
                    tap=observers.tap,
                    trace=observers.trace,
                    mark=mark_of(self.number),
                    generations=self.generations,
                ) as mux,
                trio.open_nursery() as clients,
            ):
                followers = (observers.follow, set_up_logs)
                # The supervisor has announced its listeners itself.
                serving = prepare_serving(mux, gate, self._stopping, lambda _url: None, followers)
                for name in self.start.drained:
                    mux.drain(name)
                answers: Answers = {}
                if config.admin.port is not None:
                    view, metrics = observers.view(mux), observers.renderer(mux)
                    answers = {"states": view.read_states, "upstreams": view.read_all, "metrics": metrics}
                everything.start_soon(self._obey, mux, answers, everything, name="control")
                mux.hub.on_list_change = lambda *changed: self.control.post(cc.ListsChanged((changed,)))
                everything.start_soon(self.control.send_posted, name="list changes")
                await self._open_listeners(config, serving, clients)
                await self.control.send(cc.Word.READY)
                settle_memory()
                await self._stopping.wait()
                mux.hub.close()
                clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
            everything.cancel_scope.cancel(reason="stopped")

    # Connections

    async def _open_listeners(self, config: Config, serving: Serving, clients: trio.Nursery) -> None:
        doors: list[Door] = []
        for number, listener in enumerate(config.listeners.bound):
            accepting, (resuming, arrivals) = HandedListener(), trio.open_memory_channel[Resumed](0)
            doors.append((accepting, resuming))
            handing = Handing(number, arrivals, self.connection_channel.send)
            handed = HandedConnections(accepting, handing, self.number, self.generations.processes)
            await clients.start(serve_listener, listener, serving, handed)
        clients.start_soon(self._distribute, doors, name="connections")

    async def _distribute(self, doors: list[Door]) -> None:
        """Give each connection to its listener, or back to the supervisor once we stop.

        Returns when we stop and no connection is left: after `Stop` the supervisor sends none.
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
                if not taken:  # another worker has it, or the next with our number if it is for us alone
                    with stream.socket:
                        await self.connection_channel.send(note, stream.socket.fileno())

    async def _next_connection(self) -> Handed | None:
        if not self._stopping.is_set():
            with trio.CancelScope() as self._receiving:
                return await self.connection_channel.receive()
        return self.connection_channel.receive_nowait()

    # Messages

    async def _handle_signals(self) -> None:
        """SIGTERM to a worker alone drains it, as soon as the supervisor knows; that starts another one."""
        with trio.open_signal_receiver(signal.SIGTERM) as received:
            async for _ in received:
                await self.control.send(cc.Word.LEAVING)

    async def _obey(self, mux: Mux, answers: Answers, everything: trio.Nursery) -> None:
        with suppress(TransportClosed):
            while True:
                match await self.control.receive():
                    case cc.Ask() as question:
                        everything.start_soon(self._answer, question, answers)
                    case cc.Word.STOP:
                        self._stopping.set()
                        self._receiving.cancel(reason="stopping")
                    case Config() as config:
                        mux.apply(config)
                    case cc.Word.RENEW_CERTIFICATES:
                        try:  # the supervisor has just done so without trouble
                            await mux.renew()
                        except ConfigError as error:
                            for problem in error.problems:
                                log.error("certificate not read again, the old one stays", problem=problem)
                    case cc.ListsChanged(lists):
                        for upstream, method in lists:
                            mux.hub.tell_list_change(method, upstream)
                    case cc.Act("reconnect", name) if name in mux.upstreams:
                        if mux.upstreams[name].state in ("down", "crash-loop"):
                            mux.upstreams.add(name, mux.sessions.make_shared(name))
                    case cc.Act(action, name) if name in mux.upstreams:
                        {"drain": mux.drain, "release": mux.release, "restart": mux.restart}[action](name)
        log.warning("stopping at once: the supervisor has gone")
        with trio.move_on_after(DRAIN_SECONDS):
            await trio.to_thread.run_sync(partial(shutil.rmtree, self.start.folder, ignore_errors=True))
        everything.cancel_scope.cancel(reason="the supervisor has gone")

    async def _answer(self, question: cc.Ask, answers: Answers) -> None:
        async with self._asking:
            answer = answers.get(question.about)
            value = await answer() if answer is not None else None
            await self.control.send(cc.Answer(question.number, value))
