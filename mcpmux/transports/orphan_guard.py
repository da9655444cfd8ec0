"""End the children of this process when it is killed, by means of a helper process. Not on Windows."""

from __future__ import annotations

import os
import sys
from subprocess import DEVNULL, PIPE

import structlog
import trio

from mcpmux.transports import orphan_reaper
from mcpmux.transports.thread import starting_thread

log = structlog.get_logger()

FAREWELL_SECONDS = 1.0  # for a reaper that has nothing left to do
AGAIN_SECONDS = 1.0  # between attempts to start it


class OrphanGuard:
    """Ends the children of this process with it, even when it is killed with SIGKILL.

    A small helper process, the reaper, is notified of every process group that starts and that has ended.
    When mcpmux ends in any way, the reaper's input ends, and it ends the groups that are left: so servers
    behind `npx` are reached too. It runs while there is a group to watch. A killed reaper is replaced.
    """

    # The kernel's parent-death signal would not do: it is sent when the *thread* that started the child ends,
    # which for trio is a worker thread; it does not reach grandchildren; and only Linux has it.

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._starting = trio.Lock()
        self._reaper: trio.Process | None = None

    @property
    def pid(self) -> int | None:
        """The reaper's process id, while it runs."""
        return self._reaper.pid if self._reaper is not None and self._reaper.returncode is None else None

    async def watch(
        self,
        group: int,
        scope: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Have the reaper end `group` with this process, until `scope` is cancelled after the group's end.

        Started as soon as the reaper knows the group. A reaper that cannot be started is logged.
        """
        self._groups.add(group)
        try:
            with scope:
                reaper = await self._tell(group)
                task_status.started()
                # The reaper ends before its input does only if it was killed; the next one knows no group.
                while reaper is not None:
                    await reaper.wait()
                    await trio.sleep(AGAIN_SECONDS)
                    reaper = await self._tell(group)
        finally:
            self._groups.discard(group)
            self._say(b"-%d\n" % group)
            if not self._groups and (reaper := self._reaper) is not None:
                self._reaper = None
                # `scope` was cancelled, and often all around it: bounded, so that stopping does not hang.
                with trio.move_on_after(FAREWELL_SECONDS, shield=True):
                    await _input_of(reaper).aclose()
                    await reaper.wait()

    async def _tell(self, group: int) -> trio.Process | None:
        """Notify the reaper of `group`, starting it if necessary; return None if it cannot be started."""
        # Groups that start together must not start a reaper each.
        async with self._starting:
            if self.pid is None:
                try:
                    # -I and -S: nothing of the environment or the working directory is imported. A session
                    # apart: Ctrl-C in our terminal is not for the reaper, which ends after us.
                    with starting_thread():
                        self._reaper = await trio.lowlevel.open_process(
                            [sys.executable, "-I", "-S", orphan_reaper.__file__],
                            stdin=PIPE,
                            stdout=DEVNULL,
                            stderr=DEVNULL,
                            start_new_session=True,
                            cwd=os.sep,
                        )
                except OSError as error:
                    log.warning("servers may outlive mcpmux if it is killed", reason=error.strerror)
                    return None
        self._say(b"+%d\n" % group)
        return self._reaper

    def _say(self, line: bytes) -> None:
        """Write a line to the reaper."""
        if self._reaper is None:
            return
        try:
            # It does not wait: the pipe has room for thousands of lines.
            os.write(_input_of(self._reaper).fileno(), line)
        except OSError as error:
            log.debug("the reaper does not listen", reason=error.strerror)


def _input_of(process: trio.Process) -> trio.lowlevel.FdStream:
    stream = process.stdin
    assert isinstance(stream, trio.lowlevel.FdStream)  # it is a pipe
    return stream
