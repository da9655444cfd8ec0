"""`serve` with several workers. The supervisor has the addresses, shared upstreams and the configuration.

Nesting is the stop order: shared upstreams ⊃ workers ⊃ accepting. The first SIGINT or SIGTERM drains the
workers, the second cancels. Only the supervisor reads the configuration; each worker is given its part.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import structlog
import trio

from mcpmux.app.control import ConfigFile, Control
from mcpmux.app.listeners import Announce, check_listeners, open_address, tls_of
from mcpmux.app.mux import CURSOR_KEY_BYTES, Follower
from mcpmux.app.serving import DRAIN_SECONDS, keep_reloading, watch_signals
from mcpmux.app.workers.admin_view import AdminView
from mcpmux.app.workers.config_split import worker_config
from mcpmux.app.workers.pool import WorkerPool
from mcpmux.app.workers.shared_upstream import SharedUpstreams
from mcpmux.config import Config, Secret
from mcpmux.config.plan import Plan, plan_change
from mcpmux.errors import ConfigError
from mcpmux.transports.handing import Note, can_hand
from mcpmux.transports.tls.context import TlsContexts

log = structlog.get_logger()

FULL_SECONDS = 0.1  # until the next accept when there are too many open files
OVERTIME_SECONDS = 5.0  # for workers to end after they have drained
CAPACITY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
STDIO = "--workers: the client on standard input and output is served by one process; leave --workers out"
SYSTEM = "--workers: this system cannot hand connections from one process to another; Linux can"


async def serve_workers(
    config: Config,
    announce: Announce,
    file: ConfigFile | None = None,
    *,
    workers: int,
    watch: bool = True,
    followers: Sequence[Follower] = (),
) -> None:
    """As `app.serve`, from `workers` processes. Raises what that raises, and what one of them raises."""
    if config.listeners.stdio:
        raise ConfigError([STDIO])
    if not can_hand():
        raise ConfigError([SYSTEM])
    await trio.to_thread.run_sync(check_listeners, config)
    if config.audit.directory is not None:  # the folder around the workers' own; they say when it is missing
        with suppress(OSError):
            await trio.Path(config.audit.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    stopping = trio.Event()
    async with trio.open_nursery() as signals:
        signals.start_soon(watch_signals, stopping, signals.cancel_scope, name="signals")
        async with _open_folder() as folder, trio.open_nursery() as sharing:
            supervisor = Supervisor(config, workers, folder, sharing, followers)
            for listener in config.listeners.bound:  # what the workers show, to know when it changes
                await tls_of(listener, supervisor.certificates)
            await supervisor.shared.open(config)
            async with trio.open_nursery() as pool:
                async with AsyncExitStack() as stack:
                    addresses = []
                    for listener in config.listeners.bound:
                        url, sockets = await stack.enter_async_context(open_address(listener))
                        for each in sockets:
                            stack.callback(each.socket.close)
                        addresses.append((url, sockets))
                    await pool.start(supervisor.pool.run)
                    control = Control(supervisor, file)
                    serving = await stack.enter_async_context(trio.open_nursery())
                    if file is not None:
                        await serving.start(keep_reloading, control, file if watch else None, stopping)
                    for number, (url, sockets) in enumerate(addresses):
                        for each in sockets:
                            serving.start_soon(_accept, each, partial(supervisor.pool.give, Note(number)))
                        announce(url)
                    if supervisor.admin is not None:
                        await serving.start(
                            supervisor.admin.serve, control, stopping, announce, supervisor.certificates
                        )
                    await stopping.wait()
                    serving.cancel_scope.cancel(reason="stopping")
                pool.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS + OVERTIME_SECONDS
                supervisor.pool.stop()
            sharing.cancel_scope.cancel(reason="stopped")
        signals.cancel_scope.cancel()


class Supervisor:
    """All workers and shared upstreams, to be controlled like one mux.

    `sharing`: for shared upstreams, whose sockets are in `folder`.
    """

    def __init__(
        self, config: Config, workers: int, folder: Path, sharing: trio.Nursery, followers: Sequence[Follower]
    ) -> None:
        self.config = config
        self.pool = WorkerPool(workers, self._start_for)
        self.shared = SharedUpstreams(folder, partial(self._act, "reconnect"), sharing)
        self.admin: AdminView | None = None
        if config.admin.port is not None:
            self.admin = AdminView(config, self.pool, self.shared)
            self.pool.on_traffic = self.admin.collector.take
        self.certificates = TlsContexts()
        self._folder = folder
        self._followers = followers
        self._key = Secret(secrets.token_hex(CURSOR_KEY_BYTES))
        self._drained: set[str] = set()

    def _config_of(self, worker: int) -> Config:
        return worker_config(self.config, worker, self.pool.count, self.shared.sockets, self._key)

    def _start_for(self, worker: int) -> tuple[Config, str, tuple[str, ...]]:
        if self.admin is not None:
            self.admin.collector.begin(worker)
        return self._config_of(worker), str(self._folder), tuple(sorted(self._drained))

    def _act(self, action: str, name: str) -> None:
        self.pool.tell("act", action, name)

    def apply(self, config: Config) -> Plan:
        plan = plan_change(self.config, config)
        self.config = config
        if plan:
            self._drained -= {*plan.removed, *plan.restarted}
            self.shared.adopt(config)
            for worker in self.pool.running:
                worker.control.post("apply", self._config_of(worker.number))
            if self.admin is not None:
                self.admin.follow(config)
            for follower in self._followers:
                follower(config)
        return plan

    def restart(self, name: str) -> None:
        self._drained.discard(name)
        self.shared.restart(name)
        self._act("restart", name)

    def drain(self, name: str) -> None:
        self._drained.add(name)
        self._act("drain", name)

    def release(self, name: str) -> None:
        self._drained.discard(name)
        self._act("release", name)

    async def renew(self) -> tuple[str, ...]:
        changed = await self.certificates.renew()
        # Also without a change: one of them may have failed where the others did not.
        self.pool.tell("renew")
        return changed

    async def settled(self) -> None:
        """A worker that does not answer is logged."""
        await self.pool.caught_up()


@asynccontextmanager
async def _open_folder() -> AsyncIterator[Path]:
    folder = Path(await trio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="mcpmux-")))
    try:
        yield folder
    finally:
        with trio.move_on_after(OVERTIME_SECONDS, shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


async def _accept(listener: trio.SocketListener, give: Callable[[socket.socket], Awaitable[None]]) -> None:
    while True:
        try:
            accepted, _ = await listener.socket.accept()
        except OSError as error:
            if error.errno in CAPACITY:
                log.error("connections wait: too many open files")
                await trio.sleep(FULL_SECONDS)
            continue
        with socket.socket(fileno=accepted.detach()) as connection:
            await give(connection)
