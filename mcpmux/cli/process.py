"""The wall around the process: whatever a command raises becomes one sentence and an exit code.

    0    done                                 2    a mistake in the usage or the configuration
    1    it did not work out                  130  interrupted

A broken pipe ends it silently. Tracebacks are shown at log level debug only.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, TypeVarTuple

import click
import structlog
import trio

from mcpmux.config import Config, Http
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.logs import configure_logs
from mcpmux.printable import printable, printable_lines

log = structlog.get_logger()

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a disk says that takes no more: nobody's fault here, and nobody's mistake."""


class Mistake(click.ClickException):
    """The user has to change what they wrote."""

    exit_code = 2


def run_inside(command: Callable[[], Any]) -> Any:
    """What a command returns. Raises only what click turns into an exit code."""
    configure_logs("error", "console")
    try:
        return command()
    except click.ClickException as error:  # it may quote a file's name, or what a server said
        error.message = printable_lines(error.message)  # type: ignore[misc]  # nobody has read it yet
        raise
    except (click.Abort, click.exceptions.Exit):
        raise
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        raise judge(error) from None


def judge(error: BaseException) -> Exception:
    """What to tell the user, as an exception that click shows."""
    causes = list(_causes(error))
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
        return click.exceptions.Exit(INTERRUPTED)
    for cause in causes:
        if isinstance(cause, BrokenPipeError):
            return cause
    problems = [text for cause in causes if isinstance(cause, ConfigError) for text in cause.problems]
    if problems:
        return Mistake(_list_problems(problems))
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in NO_ROOM:
            what = "the output" if cause.filename is None else printable(str(cause.filename))
            return click.ClickException(f"{what}: cannot write: {(cause.strerror or str(cause)).lower()}")
    strange = [cause for cause in causes if not isinstance(cause, McpmuxError)]
    if strange:
        log.debug("internal error", exc_info=error)
        reason = printable(f"{type(strange[0]).__name__}: {strange[0]}")
        return click.ClickException(f"{reason}; this is a fault in mcpmux, `--log-level debug` shows where")
    return click.ClickException("; ".join(printable(str(cause)) for cause in causes))


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _list_problems(problems: list[str]) -> str:
    shown = list(dict.fromkeys(printable(problem) for problem in problems))
    return shown[0] if len(shown) == 1 else "\n  ".join([f"{len(shown)} mistakes:", *shown])


# How a command runs what is asynchronous.

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


def run(work: Callable[[*Given], Awaitable[Result]], *given: *Given) -> Result:
    """Do `work` and return what it returns. Raises what it raises, and KeyboardInterrupt for Ctrl-C.

    Ctrl-C interrupts it where it waits, never in the middle of a step: what is half made cannot clean up.
    """
    return trio.run(work, *given, restrict_keyboard_interrupt_to_checkpoints=True)


# How many files and sockets this process may have open: as many as the system lets us, when we need them.

if sys.platform != "win32":
    import resource


SPARE_FILES = 200  # the event loop, logs, child processes with three pipes each, connections that are refused
FILES_PER_SERVER = 256  # connections to a server over HTTP at most


def allow_clients(config: Config) -> None:
    """Allow this process what its clients and servers may need; say so when the system forbids it."""
    listeners = config.listeners
    clients = config.limits.max_connections * (len(listeners.http) + len(listeners.streams))
    servers = sum(isinstance(upstream.target, Http) for upstream in config.upstreams)
    allowed = may_open(SPARE_FILES + clients + FILES_PER_SERVER * servers)
    if allowed < SPARE_FILES + clients:
        log.warning(
            "too few open files are allowed for all clients: raise the limit (ulimit -n) or lower "
            "limits.max_connections",
            allowed=allowed,
            needed=SPARE_FILES + clients,
        )


def may_open(needed: int) -> int:
    """Allow this process `needed` open files; how many it may open now, fewer where the system says no."""
    if sys.platform == "win32":
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, soft), hard))
    except (OSError, ValueError):  # some systems have a lower limit than the hard one they tell
        return soft
    return max(wanted, soft)
