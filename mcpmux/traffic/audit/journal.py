"""The audit log of one run: its files, opened, kept by a task while mcpmux runs, and closed at last."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from mcpmux import __version__
from mcpmux.config.traffic import Audit as AuditSettings
from mcpmux.traffic.audit.files import AuditFiles, AuditUnusable
from mcpmux.traffic.audit.keeper import Audit
from mcpmux.traffic.audit.record import FRAGMENT_LIMIT, AuditRecord, Cleaner, encode_audit, when

if TYPE_CHECKING:
    from outcome import Outcome

log = structlog.get_logger()

FLUSH_SECONDS = 5.0  # for what still waits at the end


class _FileStore:
    """The files, written by a thread."""

    def __init__(self, files: AuditFiles) -> None:
        self._files = files

    async def append(self, bodies: Sequence[bytes]) -> None:
        """See Store; one call at a time. Cancelling it leaves a thread behind that may still write."""
        # Half of what `trio.to_thread` costs: there is one write at a time, so nothing has to limit them.
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        is_waiting = True

        def deliver(result: Outcome[None]) -> None:  # in the thread
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(wake, result)

        def wake(result: Outcome[None]) -> None:
            if is_waiting:
                trio.lowlevel.reschedule(task, result)

        def abandon(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal is_waiting
            is_waiting = False
            return trio.lowlevel.Abort.SUCCEEDED

        trio.lowlevel.start_thread_soon(partial(self._files.append, bodies), deliver, "audit")
        await trio.lowlevel.wait_task_rescheduled(abandon)


class _AsItIs:
    """A Cleaner that knows nothing."""

    @property
    def current(self) -> _AsItIs:
        """See Cleaner."""
        return self

    def clean(self, text: str) -> str:
        """See Cleaner."""
        return text

    def spares_text(self, joined: str) -> bool:
        """See Cleaner."""
        return True


@asynccontextmanager
async def open_audit(
    settings: AuditSettings,
    run: str,
    cleaner: Cleaner | None = None,
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[Audit | None]:
    """The audit log as configured; None when there is none. `run` names this run in its records.

    Belongs around everything whose exchanges it keeps. Leaving writes what waits, for FLUSH_SECONDS at most.
    Raises AuditUnusable when it cannot be opened.
    """
    if settings.directory is None:
        yield None
        return
    key = settings.key.reveal().encode() if settings.key is not None else None
    opening = partial(_opening_body, run=run, keyed=key is not None, wall=wall)
    directory, sync = Path(settings.directory), settings.sync != "never"
    files = AuditFiles(directory, key, settings.rotate_size, opening, sync=sync)
    try:
        await trio.to_thread.run_sync(files.open)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AuditUnusable(f"cannot open the audit log in {directory}: {reason}") from None
    log.info("audit log opened", directory=str(directory), record=files.head.seq, head=files.head.hash)
    audit = Audit(_FileStore(files), settings, run, cleaner or _AsItIs(), wall)
    writing = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_to_the_end, writing, audit, files, name="audit")
        try:
            yield audit
        finally:
            audit.close()
            writing.deadline = trio.current_time() + FLUSH_SECONDS


async def _write_to_the_end(scope: trio.CancelScope, audit: Audit, files: AuditFiles) -> None:
    with scope:
        await audit.run()
    if scope.cancelled_caught:  # a thread may still be at the files
        log.error("audit log could not be finished in time", state=repr(audit))
        return
    files.close()
    log.info("audit log closed", record=files.head.seq, head=files.head.hash)


def _opening_body(
    number: int | None, torn: bytes, *, run: str, keyed: bool, wall: Callable[[], float]
) -> bytes:
    return encode_audit(
        AuditRecord(
            time=when(wall()),
            kind="open",
            run=run,
            version=__version__,
            file=number,
            keyed=keyed or None,
            torn=len(torn) or None,
            fragment=torn[:FRAGMENT_LIMIT].decode(errors="replace") or None,
        )
    )
