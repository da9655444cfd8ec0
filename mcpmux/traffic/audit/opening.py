"""Open the audit log of one run: the queue, and a thread that writes it to files."""

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
from mcpmux.traffic.audit.chain import REPLICA_FOLDER, AuditFiles, AuditUnusable
from mcpmux.traffic.audit.journal import Audit
from mcpmux.traffic.audit.record_maker import FRAGMENT_LIMIT, RecordMaker
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.thread import starting_thread

if TYPE_CHECKING:
    from outcome import Outcome

log = structlog.get_logger()

FLUSH_SECONDS = 5.0  # for the records that wait at the end
QUICK_SECONDS = 0.0005  # that a write may take for which the traffic waits


async def append_in_thread(files: AuditFiles, bodies: Sequence[bytes]) -> None:
    """Append to the files; one call at a time. If cancelled, its thread stays behind and may still write."""
    # Half of the cost of `trio.to_thread`: with one write at a time no limiter is needed.
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()
    results: list[Outcome[None]] = []

    def deliver(result: Outcome[None]) -> None:  # in the thread
        results.append(result)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)

    with starting_thread():
        trio.lowlevel.start_thread_soon(partial(files.append, bodies), deliver, "audit")
    await ended.wait()
    results[0].unwrap()


def append_at_once(files: AuditFiles, bodies: Sequence[bytes]) -> bool:
    """Append to the files, if the last time took at most QUICK_SECONDS. Return whether it was done."""
    if files.seconds <= QUICK_SECONDS:
        with suppress(OSError):  # the next attempt reports it
            files.append(bodies)
            return True
    return False


@asynccontextmanager
async def open_audit(
    settings: AuditSettings,
    run: str,
    redactor: Redactor | None = None,
    wall: Callable[[], float] = time.time,
    *,
    replica: str | None = None,
) -> AsyncIterator[Audit]:
    """Open the audit log in the configured `directory`. `run` names this run in its records.

    `replica`: the name of one of a cluster, which has its own folder in that directory.

    It encloses everything whose exchanges it records. Leaving writes the rest, for FLUSH_SECONDS at most.
    Raises AuditUnusable when it cannot be opened.
    """
    assert settings.directory is not None
    key = settings.key.reveal().encode() if settings.key is not None else None
    records = RecordMaker(run, redactor or Redactor(), wall)

    def opening(number: int | None, torn: bytes) -> bytes:
        facts = {"file": number, "keyed": key is not None or None, "torn": len(torn) or None}
        fragment = torn[:FRAGMENT_LIMIT].decode(errors="replace") or None
        return records.encode([records.plain("open", version=__version__, fragment=fragment, **facts)])[0]

    directory = Path(settings.directory)
    try:
        if replica is not None:
            await trio.Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            directory /= f"{REPLICA_FOLDER}{replica}"
        files = AuditFiles(directory, key, settings.rotate_size, opening)
        await trio.to_thread.run_sync(files.open)
    except OSError as error:
        raise AuditUnusable(f"cannot open the audit log in {directory}: {reason_of(error)}") from None
    log.info("audit log opened", directory=str(directory), record=files.head.seq, head=files.head.hash)
    audit = Audit(partial(append_in_thread, files), settings, records, partial(append_at_once, files))
    writing = trio.CancelScope(shield=True)

    async def write_to_the_end() -> None:
        with writing:
            await audit.run()
        if writing.cancelled_caught:  # a thread may still be at the files
            log.error("audit log could not be finished in time", state=repr(audit))
            return
        files.close()
        log.info("audit log closed", record=files.head.seq, head=files.head.hash)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_to_the_end, name="audit")
        try:
            yield audit
        finally:
            audit.close()
            writing.deadline = trio.current_time() + FLUSH_SECONDS
