"""When the configuration is read again: on SIGHUP, and when its file has changed."""

from __future__ import annotations

import os
import signal

import structlog
import trio

from mcpmux.app.config_file import ConfigFile
from mcpmux.app.control import Control

log = structlog.get_logger()

TERMINAL = "/dev/tty"
STREAMS = (0, 1, 2)  # standard input, output and error


async def keep_reloading(
    control: Control,
    watched: ConfigFile | None,
    stopping: trio.Event,
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Both, until `scope` is cancelled; `watched` is the file to follow."""
    with scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(reload_on_hangup, control, stopping, name="hangup")
            if watched is not None:
                nursery.start_soon(reload_on_change, control, watched, name="configuration file")
            task_status.started()


async def reload_on_change(control: Control, file: ConfigFile) -> None:
    """Follow the file until cancelled."""
    while True:
        await file.changed()
        await control.reload_or_tell()


async def reload_on_hangup(
    control: Control, stopping: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Follow SIGHUP until cancelled. When it means that our terminal was closed we stop."""
    had_terminal, streams = has_terminal(), [number for number in STREAMS if os.isatty(number)]
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            if had_terminal and not has_terminal():
                _let_go(streams)
                log.info("stopping, the terminal was closed")
                stopping.set()
                continue
            log.info("reading the configuration again", signal="SIGHUP")
            await control.reload_or_tell()


def _let_go(streams: list[int]) -> None:
    """What goes to a terminal that is gone would fail; it goes nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in streams:
        os.dup2(nowhere, number)
    os.close(nowhere)


def has_terminal() -> bool:
    """Whether this process has a terminal that somebody sits at."""
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
