"""Run commands: every exception becomes one sentence on stderr and an exit code.

    0    success                              2    a mistake in the usage or the configuration
    1    failure                              130  interrupted

A broken pipe ends the process silently. Tracebacks are shown at log level debug only.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import click
import structlog
import trio

from mcpmux.config import Config, Http
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.logs import configure_logs
from mcpmux.printable import printable, printable_lines
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.thread import NO_THREAD
from mcpmux.transports.wall import leaves_of

log = structlog.get_logger()

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
SURROGATES = re.compile("[\udc80-\udcff]")
"""Characters that stand for bytes that the locale cannot decode, see PEP 383. In JSON they cannot be."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk that takes no more: neither a bug nor a mistake of the user."""

LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})
"""Errors of a system that has no more files, memory, threads or processes for mcpmux."""


class Mistake(click.ClickException):
    """The user has to change the command line or a file."""

    exit_code = 2


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turn an InvalidValue into a Mistake that names the option, the argument or the like."""
    try:
        yield
    except InvalidValue as mistake:
        raise Mistake(f"{what}: {mistake}") from None


def run_inside(command: Callable[[], Any]) -> Any:
    """Run a command and return its result. Raises only what click turns into an exit code."""
    configure_logs("error", "console")
    try:
        return command()
    except click.ClickException as error:  # it may quote a file's name, or the text of a server
        error.message = printable_lines(error.message)  # type: ignore[misc]  # click prints it later
        raise
    except (click.Abort, click.exceptions.Exit):
        raise
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        raise error_for_user(error) from None


def error_for_user(error: BaseException) -> Exception:
    """Return the exception for `error` that click shows to the user."""
    causes = causes_of(error)
    if is_interrupted(error):
        return click.exceptions.Exit(INTERRUPTED)
    if broken := [cause for cause in causes if isinstance(cause, BrokenPipeError)]:
        return broken[0]
    problems = [text for cause in causes if isinstance(cause, ConfigError) for text in cause.problems]
    if problems:
        shown = list(dict.fromkeys(map(printable, problems)))
        return Mistake(shown[0] if len(shown) == 1 else "\n  ".join([f"{len(shown)} mistakes:", *shown]))
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in NO_ROOM:
            what = "the output" if cause.filename is None else printable(str(cause.filename))
            return click.ClickException(f"{what}: cannot write: {(cause.strerror or str(cause)).lower()}")
    for cause in causes:
        if isinstance(cause, UnicodeEncodeError) and SURROGATES.fullmatch(cause.object[cause.start]):
            return Mistake("an argument, or a variable of the environment, is no text in UTF-8")
    for cause in causes:
        is_limit = isinstance(cause, OSError) and cause.errno in LIMITS
        if is_limit or isinstance(cause, MemoryError) or str(cause) == NO_THREAD:
            reason = "out of memory" if isinstance(cause, MemoryError) else reason_of(cause)
            return click.ClickException(f"a limit of this system is reached: {reason}; `ulimit -a` shows it")
    strange = [cause for cause in causes if not isinstance(cause, McpmuxError)]
    if strange:
        log.debug("internal error", exc_info=error)
        reason = printable(f"{type(strange[0]).__name__}: {strange[0]}")
        return click.ClickException(
            f"{reason}; this is a bug in mcpmux, `--log-level debug` shows the traceback"
        )
    whole = [cause.in_full if isinstance(cause, McpmuxError) else str(cause) for cause in causes]
    return click.ClickException("; ".join(map(printable, whole)))


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the error, or those in a group of errors."""
    return leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error]


def is_interrupted(error: BaseException) -> bool:
    """Return whether an error is Ctrl-C, or a group with it."""
    return any(isinstance(cause, (KeyboardInterrupt, click.Abort)) for cause in causes_of(error))


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End a command that runs until Ctrl-C with code 0 at Ctrl-C. Raises Exit."""
    try:
        yield
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if is_interrupted(error):
            raise click.exceptions.Exit(0) from None
        raise


run = partial(trio.run, restrict_keyboard_interrupt_to_checkpoints=True)
"""Run an async function with arguments. Returns and raises what it does, and KeyboardInterrupt for Ctrl-C.

Ctrl-C interrupts it only where it waits. In the middle of a step it could not clean up.
"""


# The limit of open files and sockets.

SPARE_FILES = 200  # the event loop, logs, child processes with three pipes each, connections that are refused
FILES_PER_SERVER = 256  # connections to a server over HTTP at most


def allow_clients(config: Config) -> None:
    """Raise the limit of open files to what clients and servers may need, or log that it is too low."""
    clients = config.limits.max_connections * len(config.listeners.bound)
    servers = sum(isinstance(upstream.target, Http) for upstream in config.upstreams)
    allowed = may_open(SPARE_FILES + clients + FILES_PER_SERVER * servers)
    if allowed < SPARE_FILES + clients:
        log.warning(
            "too few open files are allowed for all clients: raise the limit (ulimit -n) or lower "
            "limits.max_connections",
            allowed=allowed,
            needed=SPARE_FILES + clients,
        )


if sys.platform == "win32":

    def may_open(needed: int) -> int:
        """Return `needed`, as this system has no such limit."""
        return needed

else:
    import resource

    def may_open(needed: int) -> int:
        """Raise the limit of open files to `needed`. Returns the limit: lower if the system forbids it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= needed:
            return needed
        limit = needed if hard == resource.RLIM_INFINITY else max(soft, min(needed, hard))
        with suppress(OSError, ValueError):  # some systems have a lower limit than the hard one they tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
        return soft
