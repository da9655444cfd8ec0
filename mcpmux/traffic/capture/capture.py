"""The capture: messages from the tap into files, redacted, without holding anything up.

    tap → queue, bounded in bytes: redact, encode many → one writer task → thread: write, begin new files
                                                                         → thread: compress, remove

A message that finds the queue full is dropped: its number (`seq`) is missing in the files, and a warning
counts them. With `on_full = "wait"` new requests of clients wait while the queue is more than half full, so
that a slow disk slows clients down instead. While files cannot be written at all (full, read-only), capture
pauses and says so, traffic goes on, and what the queue holds is written when it works again.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from mcpmux.config.traffic import Capture
from mcpmux.errors import McpmuxError
from mcpmux.traffic.capture.files import CaptureWriter, Stopped, sweep
from mcpmux.traffic.capture.message import Run
from mcpmux.traffic.capture.sink import CaptureSink, Levels, reason_of
from mcpmux.traffic.observer import ExchangeObserver
from mcpmux.traffic.redaction.redactor import Redactor

log = structlog.get_logger()

TIDY_SECONDS = 600.0  # between looks at the folder when no file is complete
CLOSE_SECONDS = 5.0  # for the last messages when mcpmux stops


class CaptureUnusable(McpmuxError):
    """Its folder cannot be written; the text advises."""


class Capturing(NamedTuple):
    """Observers for the recorder; none when nothing is captured."""

    exchange_observers: tuple[ExchangeObserver, ...] = ()
    sink: CaptureSink | None = None
    levels: Levels | None = None


@asynccontextmanager
async def open_capture(
    config: Capture,
    redactor: Redactor,
    run: Run,
    prefixes: Mapping[str, str],
    clock: Callable[[], float] = trio.current_time,
) -> AsyncIterator[Capturing]:
    """Capture while this is open. `prefixes`: of each upstream, by name. `clock`: that of the run.

    Raises CaptureUnusable when the folder cannot be written at the start. Leaving writes what is left, within
    CLOSE_SECONDS also when that is cancelled, and ends the tasks.
    """
    if not config.on:
        yield Capturing()
        return
    writer = CaptureWriter(Path(config.directory), run, config.rotate_size, config.rotate_age)
    try:
        await trio.to_thread.run_sync(writer.open, clock())
    except OSError as error:
        reason = f"cannot write in {config.directory}: {reason_of(error)}"
        raise CaptureUnusable(f"capture: {reason}; `capture.directory` says where") from None
    levels = Levels(config, prefixes)
    sink = CaptureSink(config, levels, redactor, run, writer, clock)
    stop = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_tidy, config, sink, stop, name="capture files")
        writing: trio.CancelScope = await nursery.start(_write, sink, name="capture")
        try:
            yield Capturing((sink,) if config.on_full == "wait" else (), sink, levels)
        finally:
            stop.set()
            sink.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await sink.finished.wait()
            if not sink.finished.is_set():
                log.error("the capture is incomplete, its last messages could not be written in time")
            writing.cancel(reason="capture has ended")
            nursery.cancel_scope.cancel(reason="capture has ended")


async def _write(sink: CaptureSink, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Writing outlives the cancelling of whatever is captured."""
    with trio.CancelScope(shield=True) as scope:
        task_status.started(scope)
        await sink.run()


async def _keep_tidy(config: Capture, sink: CaptureSink, stop: threading.Event) -> None:
    """Compress and remove files: at first, when a file is complete, and now and then."""
    while not stop.is_set():
        complete = sink.complete
        work = partial(sweep, Path(config.directory), config, stop, sink.wall())
        try:
            await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except OSError as error:
            log.warning("capture files could not be compressed or removed", reason=reason_of(error))
        except Stopped:
            return
        with trio.move_on_after(TIDY_SECONDS):
            await complete.wait()
