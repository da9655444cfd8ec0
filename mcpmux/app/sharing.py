"""One mcpmux for all host apps of a user that start it from the same file.

    the process that a host app starts                     the shared process
    connects to the socket of the file  -----------------> counts one client more
    Hello, a line of JSON               ----------------->
                                        <----------------- Welcome, a line of JSON
    bytes from standard input           -----------------> messages of a client, as on standard input
    bytes to standard output            <-----------------

The first process forks the shared one, which ends LINGER_SECONDS after its last client. The socket is in a
folder that only the user can enter, so every client may do what the user may. Not on Windows.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog
import trio
from attrs import frozen
from trio.abc import Stream

from mcpmux import __version__
from mcpmux.app.listeners import Announce, Serving
from mcpmux.errors import ConfigError, ConnectFailed, RemoteProtocolError, TransportError
from mcpmux.files import (
    OTHERS,
    PRIVATE,
    PRIVATE_FOLDER,
    lock_file,
    remove_file,
    replace_private,
    state_folder,
)
from mcpmux.protocol.principal import ANYONE
from mcpmux.transports.stream import open_unix, open_unix_listener, serve_streams

log = structlog.get_logger()

LINGER_SECONDS: Final = 60.0  # for a host app that restarts to come back, before one without clients ends
START_SECONDS: Final = 30.0  # for the shared process to open its socket, or for another to start it
ANSWER_SECONDS: Final = 10.0  # for a Welcome
LOOK_SECONDS: Final = 0.02  # between two looks for a process that starts
LINE_BYTES: Final = 256 * 1024  # of a Hello or Welcome; variables are few
PATH_BYTES: Final = 100  # of a socket; systems allow 103 to 107
LOG_BYTES: Final = 2**20  # of a log that the next start continues; a longer one begins anew
QUOTED_BYTES: Final = 2000  # of the log's end, for an error

_VARIABLE: Final = re.compile(r"\$\{(?:env:)?(\w+)", re.ASCII)


class Hello(msgspec.Struct):
    """The first line of a connection. `environ`: fingerprints of the variables that the file names."""

    ask: Literal["serve", "status", "stop"] = "serve"
    view: str = ""
    environ: dict[str, str] = {}


class Welcome(msgspec.Struct):
    """The answer. `error`: why this client is not served. `differing`: variables that had other values.

    `started`: in seconds since 1970.
    """

    version: str
    pid: int
    file: str
    started: float
    clients: int
    log: str
    error: str | None = None
    differing: list[str] = []


# Where it is.


@frozen
class SharedPlace:
    """The files about the shared mcpmux of one configuration file."""

    file: Path
    socket: Path
    log: Path

    @classmethod
    def of(cls, file: str | Path) -> SharedPlace:
        """Return the place of a file. Makes the folders. Raises TransportError when they cannot be used."""
        # One file has one place, also by links. It is read by the link: that may lead to another file later,
        # and paths in it are relative to the folder of the link.
        name = hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:16]
        logs = state_folder() / "logs"
        for folder in (logs, socket_folder()):
            make_private(folder)
        return cls(Path(file).absolute(), socket_folder() / f"{name}.sock", logs / f"{name}.log")

    @property
    def lock(self) -> Path:
        """The file that a process locks while it starts the shared one."""
        return self.socket.with_suffix(".lock")

    @property
    def admin(self) -> Path:
        """The file with the URL of the admin listener of a mcpmux that serves the file, shared or not."""
        return self.socket.with_suffix(".admin")

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the variables that the file names, as this process has them."""
        return fingerprints(self.file.read_text(errors="replace"), os.environ)


def socket_folder() -> Path:
    """Return the folder of sockets: $XDG_RUNTIME_DIR/mcpmux, or a short path where that is not set."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # A path of a socket has 103 to 107 bytes, and a home folder may be long.
    folder = (Path(runtime) if runtime.startswith("/") else state_folder() / "run") / "mcpmux"
    is_short = len(os.fsencode(folder)) + len("/0123456789abcdef.sock") <= PATH_BYTES
    return folder if is_short or sys.platform == "win32" else Path(f"/tmp/mcpmux-{os.getuid()}")


def make_private(folder: Path) -> None:
    """Make a folder that only the user can enter. Raises TransportError if it is there and is none."""
    # `lstat`: in /tmp another user may have put a link or a folder in its place.
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        there = folder.lstat()
    except OSError as error:
        raise TransportError(f"cannot make the folder {folder}: {error.strerror}") from None
    is_ours = sys.platform == "win32" or there.st_uid == os.getuid()
    if not stat.S_ISDIR(there.st_mode) or not is_ours or there.st_mode & OTHERS:
        raise TransportError(f"{folder} has to be a folder that only you can enter (mode 0700)")


def fingerprints(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of each variable that a configuration names; "" of one that is not set."""
    prints = {}
    for name in sorted(set(_VARIABLE.findall(text))):
        # With the name: variables with the same value have different ones, and a Hello reveals neither.
        value = f"{name}\0{environ.get(name)}".encode(errors="surrogateescape")
        prints[name] = hashlib.sha256(value).hexdigest()[:16] if name in environ else ""
    return prints


# The shared process.


class SharedMux:
    """Serves the clients of the host apps' processes, and ends when it had none for LINGER_SECONDS."""

    def __init__(self, place: SharedPlace, environ: Mapping[str, str]) -> None:
        """`environ`: the fingerprints of the variables that this process has expanded."""
        self._place, self._environ = place, environ
        self._started = time.time()
        self._clients = 0  # those that are connected
        self._left_at = 0.0  # when the last one left

    def __repr__(self) -> str:
        return f"<SharedMux of {self._place.file}, {self._clients} clients>"

    async def serve(
        self, serving: Serving, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `stopping`, which is set when there was no client for a while.

        Raises TransportError when the socket cannot be opened.
        """
        limits = serving.limits
        most = min(limits.max_connections, limits.max_sessions)
        async with (
            open_unix_listener(str(self._place.socket), PRIVATE) as unix,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self.end_unused, serving.stopping)
            handle = partial(self.serve_client, serving)
            await serve_streams([unix], handle, serving.stopping, most, most, None, task_status)
            nursery.cancel_scope.cancel()

    async def end_unused(self, stopping: trio.Event) -> None:
        """Set `stopping` once there was no client for LINGER_SECONDS."""
        # As if one had just left: the host app that started this has yet to connect.
        self._left_at = now = trio.current_time()
        while (ends := (now if self._clients else self._left_at) + LINGER_SECONDS) > now:
            await trio.sleep_until(ends)
            now = trio.current_time()
        log.info("ending, as no host app has used this for a while", file=str(self._place.file))
        stopping.set()

    async def serve_client(self, serving: Serving, stream: Stream, crowded: str) -> None:
        """Answer a client's Hello, and serve it if it asks for that. `crowded`: see `serve_streams`."""
        # Not at the top: it imports WebSocket, too, and `serve` without --share needs neither.
        from mcpmux.clients.stream_clients import FIRST_SECONDS, StreamClients

        hello = None
        with trio.move_on_after(FIRST_SECONDS), suppress(trio.BrokenResourceError, msgspec.MsgspecError):
            hello = msgspec.json.decode(await read_line(stream), type=Hello)
        if hello is None:
            return
        place, own = self._place, self._environ
        welcome = Welcome(
            version=__version__,
            pid=os.getpid(),
            file=str(place.file),
            started=self._started,
            clients=self._clients,
            log=str(place.log),
            # The servers have the environment of the first host app.
            differing=[name for name, value in hello.environ.items() if own.get(name, "") != value],
        )
        if hello.ask == "stop":
            serving.stopping.set()
        elif hello.ask == "serve" and serving.service.enter(ANYONE, hello.view) is None:
            welcome.error = f"there is no view {hello.view!r}"
        with suppress(trio.BrokenResourceError):
            await stream.send_all(msgspec.json.encode(welcome) + b"\n")
        if hello.ask != "serve" or welcome.error is not None:
            return
        clients = StreamClients(
            serving.service, serving.limits, serving.stopping, None, view=hello.view, bodies=serving.bodies
        )
        self._clients += 1
        try:
            await clients.serve(stream, crowded)
        finally:
            self._clients -= 1
            self._left_at = trio.current_time()


async def read_line(stream: Stream) -> bytes:
    """Return the one line that a peer sends before it waits. Raises BrokenResourceError for anything else."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = await stream.receive_some()
        line += data
        if not data or len(line) > LINE_BYTES:
            raise trio.BrokenResourceError("the peer sent no line")
    return bytes(line)


# Where commands find it.


@contextmanager
def noting_admin(file: str, announce: Announce) -> Iterator[Announce]:
    """Yield `announce`, which also keeps the URL of the admin listener where commands of the user find it.

    Where that cannot be written the commands need the URL.
    """
    noted: list[tuple[Path, str, int]] = []

    def note(url: str) -> None:
        if "token=" in url:  # else the file has the token
            with suppress(TransportError, ConfigError, OSError):
                path = SharedPlace.of(file).admin
                replace_private(path, url)
                noted.append((path, url, os.open(path, os.O_RDONLY)))
                # The lock ends with this process, also when it is killed and the file stays.
                lock_file(noted[-1][2])
        announce(url)

    try:
        yield note
    finally:
        for path, url, descriptor in noted:
            os.close(descriptor)
            with suppress(ConfigError):  # another process of this file may have the place now
                remove_file(path, url)


def noted_admins(file: str | None) -> list[str]:
    """Return the URL that a running mcpmux keeps for a file; without a file those of all.

    Raises McpmuxError, OSError.
    """
    urls = []
    for path in socket_folder().glob("*.admin") if file is None else [SharedPlace.of(file).admin]:
        with suppress(FileNotFoundError), path.open("rb") as noted:
            try:
                lock_file(noted.fileno())  # its process has gone, and another one may have the port by now
            except BlockingIOError:
                urls.append(noted.read().decode())
    return urls


# The process of a host app.


async def reach(path: Path, hello: Hello) -> tuple[trio.SocketStream, Welcome] | None:
    """Connect to a shared mcpmux; None when none is there. Raises RemoteProtocolError for another program."""
    try:
        stream = await open_unix(str(path))
    except ConnectFailed:
        return None
    try:
        with trio.fail_after(ANSWER_SECONDS):
            await stream.send_all(msgspec.json.encode(hello) + b"\n")
            welcome = msgspec.json.decode(await read_line(stream), type=Welcome)
    except trio.BrokenResourceError:  # it has ended with this connection in its queue
        await trio.aclose_forcefully(stream)
        return None
    except (trio.TooSlowError, msgspec.MsgspecError):
        await trio.aclose_forcefully(stream)
        raise RemoteProtocolError(f"what listens on unix:{path} is no shared mcpmux, or hangs") from None
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream, welcome


async def ask(path: Path, what: Literal["status", "stop"]) -> Welcome | None:
    """Ask a shared mcpmux; None when none is there. Raises RemoteProtocolError for another program."""
    found = await reach(path, Hello(what))
    if found is None:
        return None
    await found[0].aclose()
    return found[1]


async def join(place: SharedPlace, hello: Hello) -> tuple[trio.SocketStream, Welcome] | None:
    """Connect to the shared mcpmux of a file; None when it has ended meanwhile.

    Raises TransportError if it does not serve this client.
    """
    found = await reach(place.socket, hello)
    if found is None:
        return None
    stream, welcome = found
    if welcome.error is not None:
        await trio.aclose_forcefully(stream)
        raise TransportError(f"the shared mcpmux of {place.file}: {welcome.error}")
    return stream, welcome


def ensure(place: SharedPlace) -> bool:
    """Return False once the shared mcpmux of a file is there.

    When it is not there this process is forked. In the new process this returns True: it has to become the
    shared mcpmux. Raises TransportError when that fails.
    """
    ends = time.monotonic() + START_SECONDS
    with place.lock.open("w") as lock:  # so that one of several processes starts it
        while True:
            with suppress(BlockingIOError):
                lock_file(lock.fileno())
                break
            _wait(ends, place)
        if _is_there(place.socket):
            return False
        # A fork takes less time than to start Python once more. Both processes would write a line that is
        # still in the buffer.
        sys.stdout.flush()
        if not (child := os.fork()):
            lock.close()  # the parent has the lock
            _leave_parent(place)
            return True
        while not _is_there(place.socket):
            if os.waitpid(child, os.WNOHANG)[0]:
                end = place.log.read_bytes()[-QUOTED_BYTES:].decode(errors="replace").strip()
                raise TransportError(f"the shared mcpmux ended as it started: {end or 'no reason given'}")
            _wait(ends, place)
    return False


def _wait(ends: float, place: SharedPlace) -> None:
    if time.monotonic() > ends:
        late = f"the shared mcpmux did not start within {START_SECONDS:g} s; its log is {place.log}"
        raise TransportError(late)
    time.sleep(LOOK_SECONDS)


def _is_there(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _leave_parent(place: SharedPlace) -> None:
    """Detach this process from the host app: from its session, folder and streams."""
    # Signals to the group of the host app must not end it. Its servers start in the folder of the file, so
    # that they are the same for all host apps.
    os.setsid()
    os.chdir(place.file.parent)
    is_short = place.log.exists() and place.log.stat().st_size < LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if is_short else os.O_TRUNC)
    nothing, log_file = os.open(os.devnull, os.O_RDONLY), os.open(place.log, flags, PRIVATE)
    for fd, standard in ((nothing, 0), (log_file, 1), (log_file, 2)):
        os.dup2(fd, standard)
    for fd in (nothing, log_file):
        os.close(fd)


async def pipe(own: Stream, shared: trio.SocketStream) -> bool:
    """Pass bytes on in both directions. Return whether the host app has ended it, not the shared mcpmux."""
    has_ended = False

    async def forward() -> None:
        nonlocal has_ended
        with suppress(trio.BrokenResourceError):
            while data := await own.receive_some():
                await shared.send_all(data)
            has_ended = True
            # Only this direction: answers to what was sent may still come.
            await shared.send_eof()

    async with shared, trio.open_nursery() as nursery:
        nursery.start_soon(forward)
        with suppress(trio.BrokenResourceError):
            while data := await shared.receive_some():
                await own.send_all(data)
        nursery.cancel_scope.cancel()
    return has_ended
