"""Handle SIGHUP: reload the configuration, or stop if our terminal was closed. Windows has no SIGHUP."""

from __future__ import annotations

import os
import signal

import structlog
import trio

from mcpmux.app.control import Control

log = structlog.get_logger()

TERMINAL = "/dev/tty"
STREAMS = (0, 1, 2)  # standard input, output and error


async def reload_on_hangup(
    control: Control, stopping: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Reload on each SIGHUP, until cancelled. Set `stopping` if our terminal was closed."""
    had_terminal, streams = has_terminal(), [number for number in STREAMS if os.isatty(number)]
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            # Only this distinguishes a closed terminal from an administrator's SIGHUP.
            if had_terminal and not has_terminal():
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number in streams:  # writing to a terminal that is gone would fail
                    os.dup2(nowhere, number)
                os.close(nowhere)
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
