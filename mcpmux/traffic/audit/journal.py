"""The audit log of one run: it holds exchanges back until the disk has their records.

Promises
- Every exchange that was admitted leaves one record, whatever ended it, cancellation included.
- The record is written, and with `sync` other than `never` on the disk, before the client has the answer:
  an answer that a client got is in the log, also after `kill -9`. What had begun and was not answered when
  mcpmux was killed has a `begin` record only: listens, or with `begin = "all"` every request.
- Records that wait together, or follow each other closely, are written together, with one fsync.
- A slow disk loses nothing: answers wait for their records, and with BACKLOG_LIMIT records waiting new
  exchanges wait as well. So memory holds that many records, and one for each exchange under way.
- A failed write is tried again every RETRY_SECONDS. Until then, with `on_full = "refuse"`, no exchange is
  admitted (BUSY, nothing was done), and answers are withheld; their records are written later. With
  `continue` all goes on; records beyond BACKLOG_LIMIT are lost. A `gap` record tells it afterwards.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import trio

from mcpmux import __version__
from mcpmux.config.traffic import Audit as AuditSettings
from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.audit.chain import AuditFiles, AuditUnusable
from mcpmux.traffic.audit.record import FRAGMENT_LIMIT, RecordMaker
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.record import micros_of
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.inline import AT_ONCE, Wake, in_task, woken

if TYPE_CHECKING:
    from outcome import Outcome

log = structlog.get_logger()

FLUSH_SECONDS = 5.0  # for what still waits at the end
BACKLOG_LIMIT = 1024  # records that wait for the disk before exchanges are held back
GROUP_LIMIT = 256  # records of one write: about 150 kB
GATHER_SECONDS = 0.005  # for more records, while they come: a write costs as much as some exchanges
QUIET_ROUNDS = 3  # of everybody who has something to do; when no record comes of these, none will soon
RETRY_SECONDS = 1.0  # between attempts while the disk fails
REMIND_SECONDS = 60.0  # between complaints about that

REFUSED = "The audit log cannot be written ({reason}), so nothing was done; try again once its disk is well"
WITHHELD = "The audit log cannot be written ({reason}), so the answer is withheld; the work was done already"


Append = Callable[[Sequence[bytes]], Awaitable[None]]
"""Writes all records or none, so that they are as durable as configured. Raises OSError: none was written."""


class _Entry(msgspec.Struct):
    """A record that waits for the disk. `wake` is set while its exchange waits for it to be written."""

    record: Any
    wake: Wake | None = None
    written: bool = False


class _Outage(msgspec.Struct):
    """A time in which the log cannot be written. `began` and `reminded`: trio's time."""

    reason: str
    since: str
    began: float
    reminded: float = -math.inf
    refused: int = 0
    lost: int = 0


class Audit:
    """See ExchangeObserver. Nothing is written unless `run` runs."""

    def __init__(self, append: Append, settings: AuditSettings, records: RecordMaker) -> None:
        self._append = append
        self._continues = settings.on_full == "continue"
        self._begins_all = settings.begin == "all"
        self._group_limit = 1 if settings.sync == "always" else GROUP_LIMIT
        self._records = records
        self._backlog: deque[_Entry] = deque()
        self._open = 0  # exchanges that were admitted and have not ended
        self._written = 0  # records so far
        self._outage: _Outage | None = None
        self._work = trio.Event()
        self._parked = trio.lowlevel.ParkingLot()  # exchanges that wait for room in the backlog
        self._closing = False

    def __repr__(self) -> str:
        state = f"failing: {self._outage.reason}" if self._outage is not None else "well"
        return f"<Audit {self._written} written, {len(self._backlog)} waiting, {state}>"

    @property
    def held_back(self) -> int:
        """How many exchanges wait for the disk: with an answer that must be recorded first, or to begin."""
        return sum(entry.wake is not None for entry in self._backlog) + len(self._parked)

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """See ExchangeObserver. Raises RpcError: the log cannot be written."""
        begins = self._begins_all or exchange.call.method == m.LISTEN
        if begins or self._outage is not None or len(self._backlog) >= BACKLOG_LIMIT:
            return self._admit(exchange, begins)
        self._open += 1
        return AT_ONCE

    async def _admit(self, exchange: Exchange, begins: bool) -> None:
        await in_task()
        while len(self._backlog) >= BACKLOG_LIMIT and self._outage is None:
            await self._parked.park()
        if self._outage is not None and not self._continues:
            self._outage.refused += 1
            raise self._refusal(is_done=False)
        self._open += 1
        try:
            if begins:
                await self._hold(self._queue(self._records.begin(exchange)), False)
        except BaseException as error:  # `ended` is not called for it
            self._open -= 1
            self._queue(self._records.end(exchange, error, 0.0))
            raise

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """See ExchangeObserver. Waits for an answer's record only; cancelled, it leaves that to be written.

        Raises RpcError, in place of an answer: its record cannot be written now.
        """
        self._open -= 1
        entry = self._queue(self._records.end(exchange, outcome, seconds))
        is_answer = not isinstance(outcome, BaseException) or isinstance(outcome, RpcError)
        return self._hold(entry, True) if is_answer else AT_ONCE

    async def run(self) -> None:
        """Write what waits. Ends after `close` once nothing waits any more; cancelling it loses what does."""
        while self._backlog or not self._closing:
            if not self._backlog:
                self._work = trio.Event()
                await self._work.wait()
                continue
            await self._gather()
            group = list(islice(self._backlog, self._group_limit))
            try:
                await self._append(self._records.encode([entry.record for entry in group]))
            except OSError as error:
                self._failed(error)
                await trio.sleep(RETRY_SECONDS)
            else:
                self._succeeded(group)

    async def _gather(self) -> None:
        """Let exchanges that are about to end do so, if there are any: one write is for all of them."""
        count, quiet = len(self._backlog), 0
        with trio.move_on_after(GATHER_SECONDS):
            while self._open and count < self._group_limit and quiet < QUIET_ROUNDS:
                await trio.lowlevel.checkpoint()
                quiet = 0 if len(self._backlog) > count else quiet + 1
                count = len(self._backlog)

    def close(self) -> None:
        """Nothing comes any more: write what waits and end."""
        self._backlog.append(_Entry(self._records.plain("close")))
        self._closing = True
        self._work.set()

    def _refusal(self, *, is_done: bool) -> RpcError:
        reason = self._outage.reason if self._outage is not None else "it failed a moment ago"
        if is_done:
            return RpcError(INTERNAL_ERROR, WITHHELD.format(reason=reason))
        return Refused(BUSY, REFUSED.format(reason=reason), "audit")

    def _queue(self, record: Any) -> _Entry | None:
        if self._outage is not None and self._continues and len(self._backlog) >= BACKLOG_LIMIT:
            self._outage.lost += 1
            return None  # it is lost
        entry = _Entry(record)
        self._backlog.append(entry)
        self._work.set()
        return entry

    async def _hold(self, entry: _Entry | None, is_done: bool) -> None:
        """Wait for an exchange's record. Raises RpcError if it should be written, and is not."""
        if entry is not None and not entry.written and self._outage is None:
            await woken(entry)
        if not self._continues and (entry is None or not entry.written):
            raise self._refusal(is_done=is_done)

    def _succeeded(self, group: Sequence[_Entry]) -> None:
        for entry in group:
            self._backlog.popleft()
            entry.written = True
        self._written += len(group)
        outage, self._outage = self._outage, None
        if outage is not None:
            seconds, late = trio.current_time() - outage.began, len(group) + len(self._backlog)
            counts = {"refused": outage.refused, "late": late, "lost": outage.lost}
            log.warning("audit log can be written again", seconds=round(seconds, 1), **counts)
            facts = {"since": outage.since, "ms": micros_of(seconds) / 1000, "reason": outage.reason}
            self._queue(self._records.plain("gap", **facts, **counts))
        self._parked.unpark(count=max(0, BACKLOG_LIMIT - len(self._backlog)))
        _wake(group)

    def _failed(self, error: OSError) -> None:
        now, reason = trio.current_time(), reason_of(error)
        if self._outage is None:
            self._outage = _Outage(reason, self._records.now(), now)
            self._parked.unpark_all()
            _wake(list(self._backlog))
        if now - self._outage.reminded >= REMIND_SECONDS:
            self._outage.reminded = now
            policy = "exchanges go on UNAUDITED" if self._continues else "exchanges are refused"
            log.error(f"audit log cannot be written; {policy}", reason=reason, waiting=len(self._backlog))


def _wake(entries: Sequence[_Entry]) -> None:
    """Exchanges that wait for these go on, here and now unless they have a task."""
    for entry in entries:
        if entry.wake is not None:
            entry.wake()


async def append_in_thread(files: AuditFiles, bodies: Sequence[bytes]) -> None:
    """Append to the files; one call at a time. Cancelling it leaves a thread behind that may still write."""
    # Half of what `trio.to_thread` costs: there is one write at a time, so nothing has to limit them.
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()
    results: list[Outcome[None]] = []

    def deliver(result: Outcome[None]) -> None:  # in the thread
        results.append(result)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)

    trio.lowlevel.start_thread_soon(partial(files.append, bodies), deliver, "audit")
    await ended.wait()
    results[0].unwrap()


@asynccontextmanager
async def open_audit(
    settings: AuditSettings, run: str, redactor: Redactor | None = None, wall: Callable[[], float] = time.time
) -> AsyncIterator[Audit]:
    """The audit log in the configured `directory`. `run` names this run in its records.

    Belongs around everything whose exchanges it keeps. Leaving writes what waits, for FLUSH_SECONDS at most.
    Raises AuditUnusable when it cannot be opened.
    """
    assert settings.directory is not None
    key = settings.key.reveal().encode() if settings.key is not None else None
    records = RecordMaker(run, redactor or Redactor(), wall)

    def opening(number: int | None, torn: bytes) -> bytes:
        facts = {"file": number, "keyed": key is not None or None, "torn": len(torn) or None}
        fragment = torn[:FRAGMENT_LIMIT].decode(errors="replace") or None
        return records.encode([records.plain("open", version=__version__, fragment=fragment, **facts)])[0]

    directory, sync = Path(settings.directory), settings.sync != "never"
    files = AuditFiles(directory, key, settings.rotate_size, opening, sync)
    try:
        await trio.to_thread.run_sync(files.open)
    except OSError as error:
        raise AuditUnusable(f"cannot open the audit log in {directory}: {reason_of(error)}") from None
    log.info("audit log opened", directory=str(directory), record=files.head.seq, head=files.head.hash)
    audit = Audit(partial(append_in_thread, files), settings, records)
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
