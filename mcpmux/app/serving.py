"""Serve from start to stop.

The first SIGINT or SIGTERM drains: listeners close, exchanges finish up to a deadline, then upstreams are
closed. The second cancels. On SIGHUP, and when its file has changed, the configuration is read again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import structlog
import trio

from mcpmux.app.control import ConfigFile, Control
from mcpmux.app.interceptors import check_interceptors
from mcpmux.app.listeners import Announce, Serving, make_gate, serve_listener, serve_stdio
from mcpmux.app.loop_watch import LoopWatch
from mcpmux.app.mux import Follower, Mux, open_mux
from mcpmux.app.observers import Observer, Observers, open_observers
from mcpmux.app.unmatched import watch_names
from mcpmux.config import Config
from mcpmux.errors import AddressInUse, ConfigError
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.wall import leaves_of
from mcpmux.upstreams.supervision import OpenChannel

if TYPE_CHECKING:
    from mcpmux.app.sharing import SharedMux
    from mcpmux.cluster.replica import Replica
    from mcpmux.transports.handing import HandedListener

log = structlog.get_logger()

COLLECTOR_THRESHOLDS = (20_000, 20, 20)  # of the garbage collector: its runs become rare
KEPT_BYTES = 32 * 2**20  # of free memory at the end of the heap: eight messages of 2 MB, in and out
SEPARATE_BYTES = 16 * 2**20  # larger blocks are mapped separately, and unmapped as soon as they are freed
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NO_CLUSTER = "[cluster] needs more: pip install 'mcpmux[cluster]'"
DRAIN_SECONDS = 10.0  # for exchanges in flight when we are asked to stop; a container runtime waits as long
TERMINAL = "/dev/tty"
STREAMS = (0, 1, 2)  # standard input, output and error


async def serve(
    config: Config,
    announce: Announce,
    file: ConfigFile | None = None,
    *,
    followers: Sequence[Follower] = (),
    shared: SharedMux | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until the client on standard input has gone.

    `announce` gets each listener's URL when it is ready. `file`: the source of the configuration. `followers`
    get each new configuration. `shared`: for host apps that share this process.

    Raises TransportError when an address cannot be listened on, ConfigError when a listener would admit
    strangers without an explicit setting. With a client on standard input, an address in use is left out.
    """
    stopping = trio.Event()
    async with trio.open_nursery() as signals:
        signals.start_soon(watch_signals, stopping, signals.cancel_scope, name="signals")
        await serve_until(stopping, config, announce, file, followers=followers, shared=shared)
        signals.cancel_scope.cancel()


class Workplace(Protocol):
    """The place of a worker, which has no address, file and inspector: see `app.workers.worker`."""

    number: int
    doors: Sequence[HandedListener]
    open_channel: OpenChannel | None

    @property
    def forwarder(self) -> Observer: ...
    def open_replica(self, config: Config, bodies: BodyBudget) -> AbstractAsyncContextManager[Replica]: ...
    def obey(self, mux: Mux, observers: Observers) -> None: ...
    async def be_ready(self, clients: trio.Nursery) -> None: ...


async def serve_until(
    stopping: trio.Event,
    config: Config,
    announce: Announce,
    file: ConfigFile | None = None,
    *,
    followers: Sequence[Follower] = (),
    shared: SharedMux | None = None,
    worker: Workplace | None = None,
) -> None:
    """Serve until `stopping`, then drain. See `serve`. `worker`: the place of this process among several."""
    keep_freed_memory()
    # What can be wrong with the configuration, before any upstream is started.
    gate = await make_gate(config)
    await trio.to_thread.run_sync(check_interceptors, config)
    bodies = BodyBudget(config.limits.max_body_bytes_in_flight)
    join: Callable[[Config, BodyBudget], AbstractAsyncContextManager[Replica | None]]
    join = open_cluster if worker is None else worker.open_replica
    # Nesting is the stop order: the last messages are recorded, and a server has its answers taken.
    async with (
        open_observers(config, worker.forwarder if worker is not None else None) as observers,
        join(config, bodies) as replica,
        open_mux(
            config,
            worker.open_channel if worker is not None else None,
            tap=observers.tap,
            trace=observers.trace,
            marks=replica.members.marks if replica is not None else None,
            generations=replica.herald.generations if replica is not None else None,
            replicas=replica.listens if replica is not None else None,
            certificates=replica.certificates if replica is not None else None,
        ) as mux,
        trio.open_nursery() as clients,
    ):

        async def listen(serve_address: Callable[..., Awaitable[None]], *arguments: Any) -> None:
            try:
                await clients.start(serve_address, *arguments)
            except* AddressInUse as busy:
                # Host apps start mcpmux from the same file: only the first process gets the address.
                if not config.listeners.stdio and shared is None:
                    raise
                for error in leaves_of(busy):
                    log.warning("host apps are served without this address", reason=str(error))

        control = Control(mux, file)
        ready = control.noting(announce)
        mux.followers += (observers.follow, *followers)
        if gate is not None:
            mux.followers.append(lambda config: gate.adopt(config.auth, config.identity.shown))
        serving = Serving(
            *(config.limits, mux.service, stopping, ready, gate, mux.certificates, mux.poller),
            *(config.listeners.stdio_view or "", replica, lambda: mux.config, bodies),
        )
        if worker is not None:
            worker.obey(mux, observers)
        # Before the listeners: the first session needs a lease, and is counted with those of all replicas.
        if replica is not None:
            replica.attach(mux.service, mux.hub, mux.rates)
            replica.members.on_members = mux.share
            replica.listens.attach(mux.hub, mux.upstreams)
            await replica.join()
        if file is not None:
            await clients.start(keep_reloading, control, file, stopping)
        for number, listener in enumerate(config.listeners.bound):
            door = worker.doors[number] if worker is not None else None
            await listen(serve_listener, listener, serving, door, number)
        if config.listeners.stdio:
            clients.start_soon(serve_stdio, serving, name="stdio client")
        if config.admin.port is not None and worker is None:
            shown = observers.shown_of(mux, replica)
            more = mux.certificates, control, stopping, announce, replica
            await listen(observers.serve_admin, shown, *more)
        if shared is not None:
            await clients.start(shared.serve, serving)
        # All workers would log the same.
        if worker is None or worker.number == 1:
            clients.start_soon(run_until, stopping, watch_names, mux)
        if worker is not None:
            await worker.be_ready(clients)
        else:
            clients.start_soon(run_until, stopping, log_ready, mux)
            settle()  # after all imports and listeners, whose objects stay for good
        await stopping.wait()
        # First, so that the others send no more requests here. Those that are under way are still answered.
        if replica is not None:
            await replica.leave()
            clients.start_soon(replica.calls.drained, name="calls of other replicas")
        # Listens and sessions' own streams would last for the whole deadline.
        mux.hub.close()
        clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS


async def run_until(stopping: trio.Event, work: Callable[[Mux], Awaitable[None]], mux: Mux) -> None:
    """Do some work until it ends, or until `stopping`."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, mux)
        await stopping.wait()
        nursery.cancel_scope.cancel(reason="stopping")


async def log_ready(mux: Mux) -> None:
    """Log how many upstreams are ready after the first attempt to connect to each."""
    upstreams = list(mux.upstreams.values())
    async with trio.open_nursery() as nursery:
        for upstream in upstreams:
            nursery.start_soon(upstream.supervision.settled)
    ready = sum(upstream.state == "ready" for upstream in upstreams)
    more = {"note": "Ctrl-C stops mcpmux"} if sys.stderr.isatty() else {}
    log.info(f"{ready} of {len(upstreams)} upstreams are ready", **more)


@asynccontextmanager
async def open_cluster(config: Config, bodies: BodyBudget) -> AsyncIterator[Replica | None]:
    """Yield this process as a replica of its cluster; None without a cluster. Raises ConfigError.

    `bodies`: the budget for large requests in this process, including letters of other replicas.
    """
    if config.cluster.url is None:
        yield None
        return
    try:
        from mcpmux.cluster.redis_store import open_redis_store
        from mcpmux.cluster.replica import open_replica
        from mcpmux.cluster.seal import ClusterSeal
    except ImportError as error:
        raise ConfigError([f"{NO_CLUSTER} ({error})"]) from None
    async with (
        open_redis_store(config.cluster) as store,
        open_replica(config, store, ClusterSeal.of(config), bodies) as replica,
    ):
        yield replica


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse. Has no effect without glibc."""
    # It returns free memory at the end of the heap to the system once it is more than a message or two.
    # With large messages that is after each of them: for the next one the kernel has to find and clear the
    # pages again, which costs more than all the work on the message.
    if (library := _glibc()) is not None:
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, SEPARATE_BYTES)


def settle() -> None:
    """Return memory that only the start needed, tune the garbage collector, and watch the event loop."""
    gc.collect()
    if (library := _glibc()) is not None:
        library.malloc_trim(0)
    # The objects of now live as long as the process: a look at all 45,000 stops the event loop for 40 ms each
    # time. The collector runs rarely, as an exchange leaves no reference cycles behind.
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    trio.lowlevel.add_instrument(LoopWatch())


def _glibc() -> ctypes.CDLL | None:
    with suppress(OSError):  # a static interpreter cannot load libraries
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    return None


async def watch_signals(stopping: trio.Event, everything: trio.CancelScope) -> None:
    """Set `stopping` on the first SIGINT or SIGTERM, and cancel `everything` on the second."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for number in received:
            name = signal.Signals(number).name
            # A person presses Ctrl-C again when an exchange takes too long.
            if stopping.is_set():
                log.warning("stopping at once", signal=name)
                everything.cancel(reason=f"second {name}")
                return
            log.info("stopping; once more to stop at once", signal=name)
            stopping.set()


async def keep_reloading(
    control: Control,
    file: ConfigFile,
    stopping: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Reload on SIGHUP, and when a watched file changes, until we stop."""
    async with trio.open_nursery() as nursery:
        if sys.platform != "win32":
            await nursery.start(reload_on_hangup, control, stopping, name="hangup")
        if file.is_watched:
            nursery.start_soon(reload_on_change, control, file, name="configuration file")
        task_status.started()
        await stopping.wait()
        nursery.cancel_scope.cancel(reason="stopping")


async def reload_on_change(control: Control, file: ConfigFile) -> None:
    while True:
        await file.changed()
        await control.reload_or_tell()


if sys.platform != "win32":  # which has no SIGHUP

    async def reload_on_hangup(
        control: Control, stopping: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Reload on each SIGHUP, until cancelled. Set `stopping` if our terminal was closed.

        A process that was started with nohup goes on without its terminal.
        """
        had_terminal, streams = has_terminal(), [number for number in STREAMS if os.isatty(number)]
        is_to_stay = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
        with trio.open_signal_receiver(signal.SIGHUP) as received:
            task_status.started()
            async for _ in received:
                # Only this distinguishes a closed terminal from an administrator's SIGHUP.
                if had_terminal and not has_terminal():
                    nowhere = os.open(os.devnull, os.O_RDWR)
                    for number in streams:  # writing to a terminal that is gone would fail
                        os.dup2(nowhere, number)
                    os.close(nowhere)
                    if is_to_stay:
                        had_terminal = False  # the next one is an administrator's
                        continue
                    log.info("stopping, the terminal was closed")
                    stopping.set()
                    continue
                log.info("reading the configuration again", signal="SIGHUP")
                await control.reload_or_tell()

    def has_terminal() -> bool:
        """Return whether this process has a controlling terminal that is open."""
        try:
            os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
        except OSError:
            return False
        return True
