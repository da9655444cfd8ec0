"""`serve` for several workers: the keeper has the addresses, the homes and the configuration.

Nesting is the stop order: homes ⊃ workers ⊃ accepting. The first SIGINT or SIGTERM drains the workers, the
second cancels. The configuration is read here and nowhere else; each worker is given its share of it.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import structlog
import trio

from mcpmux.app.config_file import ConfigFile
from mcpmux.app.control import Control
from mcpmux.app.gates import check_doors
from mcpmux.app.listeners import Announce, open_http, open_streams, tls_of
from mcpmux.app.mux import CURSOR_KEY_BYTES, Follower
from mcpmux.app.reloading import keep_reloading
from mcpmux.app.serving import DRAIN_SECONDS, watch_signals
from mcpmux.app.workers.config_split import is_homed, worker_config
from mcpmux.app.workers.control_channel import Act, Adopt, Begin, Renew, Saying
from mcpmux.app.workers.overview import Overview
from mcpmux.app.workers.shared_upstream import Homes
from mcpmux.app.workers.traffic_forwarder import Parcel
from mcpmux.app.workers.worker_pool import Crew
from mcpmux.config import Config, Secret, Upstream
from mcpmux.config.plan import Plan, plan_change
from mcpmux.errors import ConfigError
from mcpmux.transports.handing import Note, can_hand
from mcpmux.transports.tls.context import TlsContexts

log = structlog.get_logger()

FULL_SECONDS = 0.1  # after which is accepted again when there are too many open files
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
    check_workers(config)
    await trio.to_thread.run_sync(check_doors, config)
    await trio.to_thread.run_sync(make_audit_folder, config)
    stopping, reloading = trio.Event(), trio.CancelScope()
    async with trio.open_nursery() as signals:
        signals.start_soon(watch_signals, stopping, signals.cancel_scope, name="signals")
        async with _open_folder() as folder, trio.open_nursery() as around:
            whole = Whole(config, workers, folder, followers)
            await whole.open_certificates()
            await around.start(whole.homes.run)
            await whole.homes.open(config, homed_in(config))
            async with _open_addresses(config) as addresses, trio.open_nursery() as crew:
                await crew.start(whole.crew.run)
                control = Control(whole, file)
                async with trio.open_nursery() as serving:
                    serving.start_soon(whole.tell_forever, name="sayings")
                    if file is not None:
                        watched = file if watch else None
                        await serving.start(keep_reloading, control, watched, stopping, reloading)
                    for number, (_, sockets) in enumerate(addresses):
                        for each in sockets:
                            serving.start_soon(_accept, each, partial(whole.crew.give, Note(number)))
                    for url, _ in addresses:
                        announce(url)
                    if whole.overview is not None:
                        await serving.start(
                            whole.overview.serve, control, stopping, announce, whole.certificates
                        )
                    await stopping.wait()
                    serving.cancel_scope.cancel(reason="stopping")
                for _, sockets in addresses:
                    for each in sockets:
                        each.socket.close()
                crew.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS + OVERTIME_SECONDS
                await whole.crew.stop()
            around.cancel_scope.cancel(reason="stopped")
        signals.cancel_scope.cancel()


def check_workers(config: Config) -> None:
    """Raises ConfigError for what several workers cannot do."""
    if config.listeners.stdio:
        raise ConfigError([STDIO])
    if not can_hand():
        raise ConfigError([SYSTEM])


def make_audit_folder(config: Config) -> None:
    """The folder of the workers' own: nobody else looks in. Workers tell when it cannot be made."""
    if config.audit.directory is not None:
        with suppress(OSError):
            Path(config.audit.directory).mkdir(mode=0o700, parents=True, exist_ok=True)


def homed_in(config: Config) -> list[Upstream]:
    """The upstreams that run once for all workers."""
    return [upstream for upstream in config.upstreams if is_homed(upstream)]


class Whole:
    """All workers and homes, to be steered like one mux; see `Steered`. `tell_forever` has to run."""

    def __init__(self, config: Config, workers: int, folder: Path, followers: Sequence[Follower]) -> None:
        self.config = config
        self.crew = Crew(workers, self._begin, self._take)
        self.homes = Homes(folder, self._renew)
        has_admin = config.admin.port is not None
        self.overview = Overview(config, self.crew, self.homes) if has_admin else None
        self.certificates = TlsContexts()
        self._followers = followers
        self._folder = folder
        self._key = Secret(secrets.token_hex(CURSOR_KEY_BYTES))
        self._drained: set[str] = set()
        self._unsaid: deque[Callable[[int], Saying] | trio.Event] = deque()
        self._something = trio.Event()

    def __repr__(self) -> str:
        return f"<Whole {self.crew!r} {self.homes!r}>"

    def _share(self, worker: int) -> Config:
        return worker_config(self.config, worker, self.crew.count, self.homes.sockets, self._key)

    def _take(self, worker: int, parcel: Parcel) -> None:
        if self.overview is not None:
            self.overview.gathering.take(worker, parcel)

    def _begin(self, worker: int) -> Begin:
        if self.overview is not None:
            self.overview.gathering.begin(worker)
        return Begin(self._share(worker), str(self._folder), tuple(sorted(self._drained)))

    def _say(self, saying_for: Callable[[int], Saying] | trio.Event) -> None:
        self._unsaid.append(saying_for)
        self._something.set()

    async def tell_forever(self) -> None:
        """Tell the workers what has to be told, in order, and who waits for that."""
        while True:
            while self._unsaid:
                unsaid = self._unsaid.popleft()
                if isinstance(unsaid, trio.Event):
                    unsaid.set()
                else:
                    await self.crew.tell(unsaid)
            self._something = trio.Event()
            await self._something.wait()

    def apply(self, config: Config) -> Plan:
        """See Mux."""
        plan = plan_change(self.config, config)
        self.config = config
        if plan:
            self._drained -= {*plan.removed, *plan.restarted}
            self.homes.become(config, homed_in(config))
            self._say(lambda worker: Adopt(self._share(worker)))
            if self.overview is not None:
                self.overview.follow(config)
            for follower in self._followers:
                follower(config)
        return plan

    def restart(self, name: str) -> None:
        """See Mux."""
        self._drained.discard(name)
        self.homes.restart(name)
        self._say(lambda _: Act("restart", name))

    def drain(self, name: str) -> None:
        """See Mux."""
        self._drained.add(name)
        self._say(lambda _: Act("drain", name))

    def release(self, name: str) -> None:
        """See Mux."""
        self._drained.discard(name)
        self._say(lambda _: Act("release", name))

    async def open_certificates(self) -> None:
        """Read what the workers show, to know when it changes. Raises ConfigError."""
        for listener in (*self.config.listeners.http, *self.config.listeners.streams):
            await tls_of(listener, self.certificates)

    async def renew(self) -> tuple[str, ...]:
        """See Mux."""
        changed = await self.certificates.renew()
        self._say(lambda _: Renew())  # one of them may have failed where the others did not
        return changed

    async def settled(self) -> None:
        """See Steered. A worker that does not answer is told in the log."""
        said = trio.Event()
        self._say(said)
        await said.wait()
        await self.crew.heard()

    def _renew(self, name: str) -> None:
        self._say(lambda _: Act("renew", name))


@asynccontextmanager
async def _open_folder() -> AsyncIterator[Path]:
    """A folder that nobody else can get into; it is removed at the end."""
    folder = Path(await trio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="mcpmux-")))
    try:
        yield folder
    finally:
        with trio.move_on_after(OVERTIME_SECONDS, shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


@asynccontextmanager
async def _open_addresses(config: Config) -> AsyncIterator[list[tuple[str, list[trio.SocketListener]]]]:
    """Every listener's URL, and what listens there, in the workers' order. Raises TransportError."""
    async with AsyncExitStack() as stack:
        addresses: list[tuple[str, list[trio.SocketListener]]] = []
        for listener in config.listeners.http:
            url, sockets = await open_http(listener)
            for each in sockets:
                stack.callback(each.socket.close)
            addresses.append((url, sockets))
        for stream_listener in config.listeners.streams:
            url, sockets = await stack.enter_async_context(open_streams(stream_listener))
            for each in sockets:
                stack.callback(each.socket.close)
            addresses.append((url, sockets))
        yield addresses


async def _accept(listener: trio.SocketListener, give: Callable[[socket.socket], Awaitable[None]]) -> None:
    """Have workers serve whoever comes, until cancelled."""
    while True:
        try:
            accepted, _ = await listener.socket.accept()
        except OSError as error:
            if error.errno in CAPACITY:
                log.error("connections have to wait: too many files are open")
                await trio.sleep(FULL_SECONDS)
            continue
        with socket.socket(fileno=accepted.detach()) as connection:
            await give(connection)
