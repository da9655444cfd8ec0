"""One worker: a mux like any other, whose connections come from the keeper and whose orders, too.

Nesting is the stop order, as in `app.serving`. When the keeper has gone, however that came, everything is
cancelled at once.
"""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

import structlog
import trio

from mcpmux.app.gates import adopt, make_gate
from mcpmux.app.listeners import Serving, Share, serve_http_listener, serve_stream_listener
from mcpmux.app.mux import Mux, open_mux
from mcpmux.app.serving import DRAIN_SECONDS, settle_memory
from mcpmux.app.watching import Inspector, Watching, open_watching
from mcpmux.app.workers.changes import Changes
from mcpmux.app.workers.control_channel import (
    Act,
    Adopt,
    Answer,
    Ask,
    Begin,
    Changed,
    Desk,
    Failed,
    Leaving,
    Passed,
    Ready,
    Renew,
    Saying,
    Stop,
)
from mcpmux.app.workers.traffic_forwarder import Courier, Parcel
from mcpmux.config import Config
from mcpmux.errors import ConfigError, McpmuxError, TransportClosed
from mcpmux.logs import configure_logs
from mcpmux.mux.generations import Generations
from mcpmux.mux.worker_mark import mark_of
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.handing import Handed, HandedListener, Handing, Hatch, Note

log = structlog.get_logger()

QUESTIONS = 64  # of administrators that are worked on at a time


async def run_worker(number: int, generations: Generations, desk: Desk, hatch: Hatch) -> None:
    """Serve until the keeper says to stop, or has gone. `generations` are shared by all workers."""
    structlog.contextvars.bind_contextvars(worker=number)
    try:
        begin = await desk.hear()
    except TransportClosed:
        return
    assert isinstance(begin, Begin)
    set_up_logs(begin.config)
    try:
        await _Work(number, generations, desk, hatch, begin).run()
    except* McpmuxError as group:
        errors = _leaves(group)
        mistakes = [text for error in errors if isinstance(error, ConfigError) for text in error.problems]
        with trio.move_on_after(DRAIN_SECONDS):
            await _say(desk, Failed("; ".join(map(str, errors)), tuple(mistakes)))


class _Work:
    def __init__(self, number: int, generations: Generations, desk: Desk, hatch: Hatch, begin: Begin) -> None:
        self._begin = begin
        self._number = number
        self._generations = generations
        self._desk = desk
        self._hatch = hatch
        self._stopping = trio.Event()
        self._waiting = trio.CancelScope()  # for the next connection

    async def run(self) -> None:
        config = self._begin.config
        gate = await make_gate(config)
        async with trio.open_nursery() as everything:
            everything.start_soon(self._heed_signals, name="signals")
            courier = Courier()
            if config.admin.port is not None:
                everything.start_soon(courier.run, self._bring, name="courier")
            async with (
                open_watching(config, courier) as watching,
                self._open_mux(config, watching) as mux,
                trio.open_nursery() as clients,
            ):
                mux.followers += [watching.follow, set_up_logs]
                if gate is not None:
                    mux.followers.append(partial(adopt, gate))
                for name in self._begin.drained:
                    mux.drain(name)
                answers = Answers(mux, watching.inspector)
                everything.start_soon(self._obey, mux, answers, everything, name="desk")
                everything.start_soon(self._spread, mux, name="changes")
                serving = Serving(
                    config.limits,
                    mux.front,
                    self._stopping,
                    _announced,
                    gate,
                    mux.certificates,
                    mux.reception,
                )
                await self._open_listeners(config, serving, clients)
                await _say(self._desk, Ready())
                settle_memory()
                await self._stopping.wait()
                mux.relay.close()
                clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
            everything.cancel_scope.cancel(reason="stopped")

    def _open_mux(self, config: Config, watching: Watching) -> AbstractAsyncContextManager[Mux]:
        mark, generations = mark_of(self._number), self._generations
        return open_mux(config, tap=watching.tap, trace=watching.trace, mark=mark, generations=generations)

    async def _open_listeners(self, config: Config, serving: Serving, clients: trio.Nursery) -> None:
        accepting: list[HandedListener] = []
        resuming: list[trio.MemorySendChannel[tuple[trio.SocketStream, Note]]] = []
        listeners = config.listeners
        for number, listener in enumerate((*listeners.http, *listeners.streams)):
            resumed, arrivals = trio.open_memory_channel[tuple[trio.SocketStream, Note]](0)
            door = HandedListener()
            accepting.append(door)
            resuming.append(resumed)
            share = Share(
                door, Handing(number, arrivals, self._hatch.send), self._number, self._generations.processes
            )
            if number < len(listeners.http):
                await clients.start(serve_http_listener, listener, serving, share)
            else:
                await clients.start(serve_stream_listener, listener, serving, share)
        clients.start_soon(self._receive, accepting, resuming, name="hatch")

    async def _receive(
        self,
        accepting: Sequence[HandedListener],
        resuming: Sequence[trio.MemorySendChannel[tuple[trio.SocketStream, Note]]],
    ) -> None:
        """Give each connection that comes to its listener; once we stop, back to the keeper.

        Returns when we stop and nothing is left: the keeper gives us nothing after it has said to stop.
        """
        with suppress(TransportClosed):
            while (handed := await self._next()) is not None:
                note, sock = handed
                stream = _stream_of(sock)
                if stream is None:
                    continue
                if note.open:
                    taken = await _resume(resuming[note.listener], stream, note)
                else:
                    taken = await accepting[note.listener].put(stream)
                if not taken:  # another worker has it, or the next with our number if it is for us alone
                    with stream.socket:
                        await self._hatch.send(note, stream.socket.fileno())

    async def _next(self) -> Handed | None:
        """The next connection. Raises TransportClosed."""
        if not self._stopping.is_set():
            with trio.CancelScope() as self._waiting:
                return await self._hatch.receive()
        return self._hatch.receive_nowait()

    def _stop(self) -> None:
        self._stopping.set()
        self._waiting.cancel(reason="stopping")

    async def _bring(self, parcel: Parcel) -> None:
        await _say(self._desk, Passed(parcel))

    async def _spread(self, mux: Mux) -> None:
        """What we hear of changed lists the other workers hear from us."""
        changes = Changes()
        mux.relay.on_list_change = lambda upstream, method: changes.add([(upstream, method)])
        while True:
            await _say(self._desk, Changed(await changes.take()))

    async def _heed_signals(self) -> None:
        """SIGTERM to a worker alone drains it, as soon as the keeper knows; that starts another one."""
        with trio.open_signal_receiver(signal.SIGTERM) as received:
            async for _ in received:
                await _say(self._desk, Leaving())

    async def _obey(self, mux: Mux, answers: Answers, everything: trio.Nursery) -> None:
        """Do what the keeper says, until it has gone."""
        asking = trio.CapacityLimiter(QUESTIONS)
        try:
            while True:
                saying = await self._desk.hear()
                if isinstance(saying, Ask):
                    everything.start_soon(self._answer, answers, saying, asking)
                elif isinstance(saying, Renew):
                    await _renew(mux)
                else:
                    self._do(mux, saying)
        except TransportClosed:
            log.warning("stopping at once: the keeper has gone")
            with trio.move_on_after(DRAIN_SECONDS):
                await trio.to_thread.run_sync(partial(shutil.rmtree, self._begin.folder, ignore_errors=True))
            everything.cancel_scope.cancel(reason="the keeper has gone")

    def _do(self, mux: Mux, saying: Saying) -> None:
        if isinstance(saying, Stop):
            self._stop()
        elif isinstance(saying, Adopt):
            mux.apply(saying.config)
        elif isinstance(saying, Changed):
            for upstream, method in saying.lists:
                mux.relay.tell_list_change(method, upstream)
        elif isinstance(saying, Act) and saying.upstream in mux.upstreams:
            act(mux, saying.action, saying.upstream)

    async def _answer(self, answers: Answers, question: Ask, asking: trio.CapacityLimiter) -> None:
        async with asking:
            await _say(self._desk, Answer(question.number, await answers.answer(question.about)))


def act(mux: Mux, action: str, name: str) -> None:
    """Do what an administrator wants, or `renew`; see `desk.Act`."""
    if action == "drain":
        mux.drain(name)
    elif action == "release":
        mux.release(name)
    elif action == "restart":
        mux.restart(name)
    elif action == "renew" and mux.upstreams[name].state in ("down", "crash-loop"):
        mux.upstreams.add(name, mux.sessions.make_shared(name))


def _stream_of(sock: socket.socket) -> trio.SocketStream | None:
    """None when its client has gone already."""
    try:
        sock.setblocking(False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    except OSError:
        sock.close()
        return None


async def _resume(
    resuming: trio.MemorySendChannel[tuple[trio.SocketStream, Note]], stream: trio.SocketStream, note: Note
) -> bool:
    """See HandedListener.put."""
    try:
        await resuming.send((stream, note))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return False
    return True


async def _say(desk: Desk, saying: Saying) -> None:
    try:
        await desk.say(saying)
    except TransportClosed:
        log.debug("the keeper has gone")


async def _renew(mux: Mux) -> None:
    """Read certificates again, which the keeper has just done without trouble."""
    try:
        await mux.renew()
    except ConfigError as error:
        for problem in error.problems:
            log.error("certificate not read again, the one before stays", problem=problem)


def _announced(_url: str) -> None:
    """The keeper has announced its listeners itself."""


def _leaves(group: BaseExceptionGroup[Any]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def set_up_logs(config: Config) -> None:
    """Log as a configuration says."""
    configure_logs(config.logging.level, config.logging.format, Redactor(config.redaction))


# What a worker answers to administrators' questions, which the keeper puts together.
#
# | about | answer |
# | --- | --- |
# | `states` | the state of each upstream's shared session, by name |
# | `upstreams` | a list of `UpstreamState` |
# | `metrics` | text for Prometheus |
# | `pulse` | None, as it answers at all |


class Answers:
    """Of one worker. `inspector`: what it has counted of the traffic, None without an admin listener."""

    def __init__(self, mux: Mux, inspector: Inspector | None) -> None:
        self._inspector = inspector
        self._view = inspector.view(mux) if inspector is not None else None
        self._gauges = inspector.gauges(mux) if inspector is not None else ()

    def __repr__(self) -> str:
        return f"<Answers of {self._view!r}>"

    async def answer(self, about: str) -> Any:
        """The answer; None to what is unknown."""
        if self._view is None or self._inspector is None:
            return None
        if about == "states":
            return await self._view.read_states()
        if about == "upstreams":
            return self._view.show()
        if about != "metrics":
            return None
        from mcpmux.traffic.telemetry.prometheus import render_in_thread  # not at the top: see there

        return (await render_in_thread(self._inspector.metrics, self._gauges)).decode()
