"""Hold exchanges back until the disk has their audit records.

Promises
- Every exchange that was admitted leaves one record, however it ends, cancellation included.
- The record is on the disk before the client has the answer: an answer that a client got is in the log, also
  after `kill -9`. A listen that was open when mcpmux was killed has a `begin` record only; a request that had
  begun and was not answered has none.
- Records that wait together, or follow each other closely, are written together, with one fsync. A record
  that is alone is written at once where the disk is quick: a thread would take longer than the disk.
- A slow disk loses no record: answers wait for their records, and with BACKLOG_LIMIT records waiting new
  exchanges wait as well. So memory holds that many records, and one for each exchange under way.
- A failed write is repeated every RETRY_SECONDS. Until then, with `on_full = "refuse"`, no exchange is
  admitted (BUSY), and answers are withheld; their records are written later. With
  `continue` all goes on; records beyond BACKLOG_LIMIT are lost, and a `gap` record counts them afterwards.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

import structlog
import trio

from mcpmux.config.traffic import Audit as AuditSettings
from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import BUSY, INTERNAL_ERROR
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.audit.record import AuditRecord
from mcpmux.traffic.audit.record_maker import RecordMaker
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.record import micros_of
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.inline import AT_ONCE, Wake, in_task, woken

log = structlog.get_logger()

BACKLOG_LIMIT: Final = 1024  # records that wait for the disk before exchanges are held back
GROUP_LIMIT: Final = 256  # records of one write: about 150 kB
GATHER_SECONDS: Final = 0.005  # for more records, while they come: a write costs as much as some exchanges
# Rounds of all tasks that can run; if no record comes in these, none will soon.
QUIET_ROUNDS: Final = 3
RETRY_SECONDS: Final = 1.0  # between attempts while the disk fails
REMIND_SECONDS: Final = 60.0  # between errors in the log about that

REFUSED: Final = (
    "The audit log cannot be written ({reason}), so nothing was done; try again once its disk is well"
)
WITHHELD: Final = (
    "The audit log cannot be written ({reason}), so the answer is withheld; the work was done already"
)


Append = Callable[[Sequence[bytes]], Awaitable[None]]
"""Writes all records or none, as durably as configured. Raises OSError: none was written."""

AppendAtOnce = Callable[[Sequence[bytes]], bool]
"""Does the same without a wait, if the disk is quick. Returns whether it has."""


def _never(_bodies: Sequence[bytes]) -> bool:
    return False


class _Entry:
    """A record that waits for the disk. `wake` is set while its exchange waits for it to be written."""

    __slots__ = ("record", "wake", "written")

    def __init__(self, record: AuditRecord) -> None:
        self.record = record
        self.wake: Wake | None = None
        self.written = False


class _Outage:
    """A time in which the log cannot be written. `began` and `reminded`: trio's time."""

    def __init__(self, reason: str, since: str, began: float) -> None:
        self.reason, self.since, self.began = reason, since, began
        self.reminded = -math.inf
        self.refused = 0
        self.lost = 0


class Audit:
    """See ExchangeObserver. Records are only written while `run` runs."""

    passes = False

    def __init__(
        self,
        append: Append,
        settings: AuditSettings,
        records: RecordMaker,
        append_at_once: AppendAtOnce = _never,
    ) -> None:
        self._append, self._append_at_once = append, append_at_once
        self._continues = settings.on_full == "continue"
        self._group_limit = 1 if settings.sync == "always" else GROUP_LIMIT
        self._records = records
        self._backlog: deque[_Entry] = deque()
        self._open = 0  # exchanges that were admitted and have not ended
        self._written = 0  # records so far
        self._outage: _Outage | None = None
        self._rest = trio.lowlevel.ParkingLot()  # of `run`, until there is something to write
        self._resting = False
        self._parked = trio.lowlevel.ParkingLot()  # exchanges that wait for room in the backlog
        self._closing = False

    def __repr__(self) -> str:
        state = f"failing: {self._outage.reason}" if self._outage is not None else "well"
        return f"<Audit {self._written} written, {len(self._backlog)} waiting, {state}>"

    @property
    def held_back(self) -> int:
        """The number of exchanges that wait for the disk: for the record of an answer, or to begin."""
        return sum(entry.wake is not None for entry in self._backlog) + len(self._parked)

    @property
    def failing(self) -> bool:
        """Whether the last attempt to write failed."""
        return self._outage is not None

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Admit an exchange, see ExchangeObserver. Raises RpcError: the log cannot be written."""
        begins = exchange.call.method == m.LISTEN
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
        except BaseException as error:  # `ended` is not called for a refused exchange
            self._open -= 1
            self._queue(self._records.end(exchange, error, 0.0))
            raise

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Queue a record. Wait until an answer's record is written; if cancelled, it is written all the same.

        Raises RpcError, which replaces the answer: its record cannot be written now.
        """
        self._open -= 1
        record = self._records.end(exchange, outcome, seconds)
        # With an empty backlog no thread is at the files.
        if not self._open and not self._backlog and self._append_at_once(self._records.encode([record])):
            self._written += 1
            return AT_ONCE
        entry = self._queue(record)
        is_answer = not isinstance(outcome, BaseException) or isinstance(outcome, RpcError)
        return self._hold(entry, True) if is_answer else AT_ONCE

    async def run(self) -> None:
        """Write records. Ends after `close` once none wait any more; cancelling it loses the waiting ones."""
        while self._backlog or not self._closing:
            if not self._backlog:
                self._resting = True
                await self._rest.park()
                continue
            # Exchanges that are about to end are waited for: one write is for all of them.
            count, quiet = len(self._backlog), 0
            with trio.move_on_after(GATHER_SECONDS):
                while self._open and count < self._group_limit and quiet < QUIET_ROUNDS:
                    await trio.lowlevel.checkpoint()
                    quiet = 0 if len(self._backlog) > count else quiet + 1
                    count = len(self._backlog)
            group = list(islice(self._backlog, self._group_limit))
            try:
                await self._append(self._records.encode([entry.record for entry in group]))
            except OSError as error:
                self._failed(error)
                await trio.sleep(RETRY_SECONDS)
            else:
                self._succeeded(group)

    def close(self) -> None:
        """End the log: queue its last record, and let `run` end when all is written."""
        self._add(self._records.plain("close"))
        self._closing = True

    def _refusal(self, *, is_done: bool) -> RpcError:
        reason = self._outage.reason if self._outage is not None else "it failed a moment ago"
        if is_done:
            return RpcError(INTERNAL_ERROR, WITHHELD.format(reason=reason))
        return Refused(BUSY, REFUSED.format(reason=reason), "audit")

    def _queue(self, record: AuditRecord) -> _Entry | None:
        if self._outage is not None and self._continues and len(self._backlog) >= BACKLOG_LIMIT:
            self._outage.lost += 1
            return None  # it is lost
        return self._add(record)

    def _add(self, record: AuditRecord) -> _Entry:
        entry = _Entry(record)
        self._backlog.append(entry)
        if self._resting:
            self._resting = False
            self._rest.unpark()
        return entry

    async def _hold(self, entry: _Entry | None, is_done: bool) -> None:
        """Wait for an exchange's record. Raises RpcError if it should have been written, and was not."""
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
            # Woken without a written record, each answer is withheld or goes on, as configured.
            _wake(list(self._backlog))
        if now - self._outage.reminded >= REMIND_SECONDS:
            self._outage.reminded = now
            policy = "exchanges go on UNAUDITED" if self._continues else "exchanges are refused"
            log.error(f"audit log cannot be written; {policy}", reason=reason, waiting=len(self._backlog))


def _wake(entries: Sequence[_Entry]) -> None:
    """Resume the exchanges that wait for these records, here and now unless they have a task."""
    for entry in entries:
        if entry.wake is not None:
            entry.wake()
