"""What ends our children when we are killed ourselves, by a process of its own. Not on Windows."""

from __future__ import annotations

import os
import sys
from subprocess import DEVNULL, PIPE

import structlog
import trio

from mcpmux.transports import orphan_reaper

log = structlog.get_logger()

FAREWELL_SECONDS = 1.0  # for a reaper that has nothing left to do
AGAIN_SECONDS = 1.0  # between attempts to start it


class OrphanGuard:
    """Ends the children of this process with it, even when it is killed with SIGKILL.

    A small process of its own, the reaper, hears of every process group that is started and that has ended.
    When mcpmux ends in any way, the reaper's input ends, and it ends the groups that are left: so servers
    behind `npx` are reached too. It runs while there is a group to watch; one that was killed is replaced.

    The kernel's parent-death signal would not do: it is sent when the *thread* that started the child ends,
    which for trio is a worker thread; it does not reach grandchildren; and only Linux has it.
    """

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
        """Have `group` ended with us, until `scope` is cancelled: the group has ended by then.

        Started as soon as the reaper knows it. A reaper that cannot be started is logged.
        """
        self._groups.add(group)
        try:
            with scope:
                reaper = await self._tell(group)
                task_status.started()
                while reaper is not None:
                    await reaper.wait()
                    await trio.sleep(AGAIN_SECONDS)
                    reaper = await self._tell(group)
        finally:
            self._groups.discard(group)
            self._say(b"-%d\n" % group)
            if not self._groups and (reaper := self._reaper) is not None:
                self._reaper = None
                with trio.move_on_after(FAREWELL_SECONDS, shield=True):
                    await _input_of(reaper).aclose()
                    await reaper.wait()

    async def _tell(self, group: int) -> trio.Process | None:
        """The reaper, which knows `group`; None when there can be none."""
        async with self._starting:
            if self.pid is None:
                try:
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
        """Write to the reaper; the pipe has room for thousands of lines."""
        if self._reaper is None:
            return
        try:
            os.write(_input_of(self._reaper).fileno(), line)
        except OSError as error:
            log.debug("the reaper does not listen", reason=error.strerror)


def _input_of(process: trio.Process) -> trio.lowlevel.FdStream:
    stream = process.stdin
    assert isinstance(stream, trio.lowlevel.FdStream)  # it is a pipe
    return stream
