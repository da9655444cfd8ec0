"""A child process that speaks over its standard input and output.

Promises: the child runs in a separate session, with the inherited part of our environment and the given
variables on top; its standard error is always drained; when the block is left, the child and its whole
process group are gone, within bounded time, cancelled or not.

The stop ladder: close its input and wait; SIGTERM to the group and wait; SIGKILL to the group. When mcpmux is
killed, the child sees the end of its input, and the reaper goes on down the ladder (see `orphan_guard`).
Windows has no groups: there the child is ended with its descendants, and there is no reaper.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec
import trio
from trio.abc import ReceiveStream, SendStream

from mcpmux.errors import ConnectFailed, PeerFinished, TransportClosed
from mcpmux.protocol.framing import Line, LineDecoder, Oversized
from mcpmux.transports import orphan_reaper
from mcpmux.transports.message_stream import LineStream, sending
from mcpmux.transports.orphan_guard import OrphanGuard
from mcpmux.transports.send_queue import BROKEN
from mcpmux.transports.thread import starting_thread

STDERR_LINE_BYTES = 16 * 1024  # longer lines are data, not words for people
KILL_SECONDS = 2.0  # SIGKILL works at once, unless the kernel itself hangs; then the child stays behind
EXIT_SECONDS = 1.0  # between the end of a child and the end of its streams, in either order

OWN_SECRETS = frozenset({"MCPMUX_TOKEN", "MCPMUX_ADMIN_TOKEN", "MCPMUX_AUDIT_KEY"})
"""Variables that are for mcpmux alone. A child has them only if its `env` in the settings names them."""

# Ctrl-C in our terminal must not reach the child: mcpmux stops it by the ladder.
_APART: dict[str, Any] = {}
if sys.platform == "win32":
    _APART["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _APART["start_new_session"] = True

StdioPipes = trio.StapledStream[SendStream, ReceiveStream]

OnStderrLine = Callable[[str], None]
"""Takes one line of the child's standard error, without its newline. Never waits."""


FIRST_LINES = 3  # of standard error that explain an end: installers begin with the cause
LAST_LINES = 3  # the same: programs end with it
SHOWN_CHARACTERS = 300  # of each of these lines
OUTPUT_LINES = 40  # that a person may read


class LastWords:
    """The first and the last lines that a child wrote to its standard error, each bounded in length.

    `output`: more of the last lines.
    """

    def __init__(self) -> None:
        self.output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._left_out = 0

    def add(self, line: str) -> None:
        line = line.strip()
        if not line:
            return
        line = line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
        self.output.append(line)
        if len(self._first) < FIRST_LINES:
            self._first.append(line)
            return
        self._left_out += len(self._last) == LAST_LINES
        self._last.append(line)

    def __str__(self) -> str:
        """Return them on one line, with the number of those between. Empty if there are none."""
        between = [f"… {self._left_out} more …"] if self._left_out else []
        return " | ".join([*self._first, *between, *self._last])


class StopLadder(msgspec.Struct, frozen=True):
    """Seconds that a child may take to stop: after the end of its input, then after SIGTERM."""

    close_seconds: float
    terminate_seconds: float


class ChildProcess(LineStream):
    """A running child, and a message stream to it. Made by `open_process`.

    `pid` is also the id of its process group. `wait` returns its `returncode`, which is None while it runs,
    and the negative number of the signal that ended it.
    """

    def __init__(self, process: trio.Process, stdio: StdioPipes, max_message_bytes: int) -> None:
        super().__init__(stdio, max_message_bytes)
        self._process = process
        self._output = stdio.receive_stream
        self.pid = process.pid
        self.wait = process.wait

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def _ended(self, reason: str) -> TransportClosed:
        """Return the error with which `receive` ends: it describes the process's end."""
        # The end of the pipe and the exit status come at almost the same time, in either order.
        with trio.move_on_after(EXIT_SECONDS):
            await self.wait()
        if self.returncode is None:
            return TransportClosed(f"{reason}, while the process is still running")
        if self.returncode < 0:
            name = signal.strsignal(-self.returncode)
            return TransportClosed(f"the process was ended by signal {-self.returncode} ({name})")
        kind = PeerFinished if self.returncode == 0 else TransportClosed
        return kind(f"the process exited with status {self.returncode}")

    async def stop(self, ladder: StopLadder) -> None:
        """Go down the stop ladder to its end, even when cancelled. Bounded by the sum of its steps."""
        output_ended = trio.Event()

        # Its output is discarded meanwhile, or a full pipe could keep the child from ending.
        async def discard() -> None:
            with suppress(*BROKEN):
                while await self._output.receive_some():
                    pass
            output_ended.set()

        # Most children are stopped by cancelling, which must not end the steps below. Each has a bound.
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discard)
                with trio.move_on_after(ladder.close_seconds):
                    await self.send_eof()
                    await self.wait()
                if sys.platform == "win32":
                    await self._end_tree()
                # Also when the child has exited: processes that it started may still be in the group.
                elif orphan_reaper.signal_group(self.pid, signal.SIGTERM):
                    with trio.move_on_after(ladder.terminate_seconds):
                        await self.wait()
                        await output_ended.wait()  # once the grandchildren have closed it, too
                    orphan_reaper.signal_group(self.pid, signal.SIGKILL)
                with trio.move_on_after(KILL_SECONDS):
                    await self.wait()
                nursery.cancel_scope.cancel()

    async def _end_tree(self) -> None:
        """End the child and its descendants on Windows."""
        end = ["taskkill", "/T", "/F", "/PID", str(self.pid)]
        if self.returncode is None:  # those that have outlived it cannot be found
            with suppress(OSError), trio.move_on_after(KILL_SECONDS):
                await trio.run_process(end, check=False, capture_stdout=True, capture_stderr=True)


def _advice(program: str, env: Mapping[str, str], cwd: Path | None, error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return f"{error} in the command or its environment"
    if cwd is not None and error.filename == cwd:
        return f"its working directory {str(cwd)!r} cannot be entered: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        hint = "; are there arguments in it? These go into `args`" if " " in program else ""
        if os.sep in program:
            return f"there is no such file, or the interpreter in its first line is missing{hint}"
        if "PATH" not in env:
            return "it gets no PATH in which to look; name PATH in `inherit_env`, or give the full path"
        return f"it was not found in PATH; install it, or give its full path{hint}"
    if isinstance(error, PermissionError):
        return "it is not executable; check its permissions"
    return str(error.strerror)


def _program(command: str) -> str:
    """Return the path to start."""
    # Windows looks only for `.exe` files, and `npx` is `npx.cmd` there.
    return shutil.which(command) or command if sys.platform == "win32" else command


async def _pass_on_lines(stream: ReceiveStream, on_line: OnStderrLine, scope: trio.CancelScope) -> None:
    """Pass lines to `on_line` until the stream ends or `scope` is cancelled. Closes the stream."""

    def hand_on(lines: list[Line]) -> None:
        for line in lines:
            if isinstance(line, Oversized):
                on_line(f"[a line of {line.size} bytes was left out]")
            else:
                on_line(line.decode(errors="replace"))

    decoder = LineDecoder(STDERR_LINE_BYTES)
    with scope:
        async with stream:
            while chunk := await stream.receive_some():
                hand_on(decoder.feed(bytes(chunk)))
    hand_on(decoder.close())  # a last line without a newline, as a crash may leave it


@asynccontextmanager
async def open_process(
    command: str,
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    *,
    stop: StopLadder,
    on_stderr_line: OnStderrLine,
    max_message_bytes: int,
    inherited: Collection[str] | None = None,
    guard: OrphanGuard | None = None,
) -> AsyncIterator[ChildProcess]:
    """Run a child until the block is left, then stop it by the ladder, cancelled or not.

    `command` is a path or is looked up in PATH. `env` is added to the `inherited` variables of our
    environment; None means all but OWN_SECRETS. A child that exits early only ends its pipe. A `guard` ends
    the child when mcpmux is killed. Raises ConnectFailed when it cannot be started.
    """
    names = os.environ.keys() - OWN_SECRETS if inherited is None else inherited
    env = {**{name: os.environ[name] for name in names if name in os.environ}, **env}
    try:
        with starting_thread():
            process = await trio.lowlevel.open_process(
                [_program(command), *args],
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=env,
                cwd=cwd,
                **_APART,
            )
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        raise ConnectFailed(f"cannot start {command!r}: {_advice(command, env, cwd, error)}") from error
    assert process.stdio is not None and process.stderr is not None  # they are pipes
    # Shielded, and ended below: standard error is drained until the child has ended, or it might block.
    reading_errors = trio.CancelScope(shield=True)
    watching = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_pass_on_lines, process.stderr, on_stderr_line, reading_errors)
        try:
            child = ChildProcess(process, process.stdio, max_message_bytes)
            async with sending(child, child.queue):
                try:
                    if guard is not None and sys.platform != "win32":
                        # Cancelled here, the shielded task could not be handed over and would never end.
                        with trio.CancelScope(shield=True):
                            await nursery.start(guard.watch, process.pid, watching, name="orphan guard")
                    yield child
                finally:
                    await child.stop(stop)
        finally:
            watching.cancel(reason="the child has ended")
            # A process outside of its group may hold standard error open for ever.
            reading_errors.deadline = trio.current_time() + EXIT_SECONDS
