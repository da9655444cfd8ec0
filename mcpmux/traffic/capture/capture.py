"""Write messages from the tap to files, redacted, without delaying traffic.

    tap → queue, bounded in bytes: redact, encode many → one writer task: compress → thread: write
                                                                                   → thread: remove old files

A message that finds the queue full is dropped: its number (`seq`) is missing in the files, and a warning
counts them. A message that is longer than the queue is taken when the queue is empty. With `on_full = "wait"`
new requests of clients wait while the queue is more than half full, so that a slow disk slows clients down
instead. While files cannot be written at all (full, read-only), capture
pauses with an error in the log, traffic goes on, and the queue is written when files can be written again.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import msgspec
import structlog
import trio

from mcpmux.config.traffic import LEVELS, Capture
from mcpmux.errors import McpmuxError
from mcpmux.lru import Lru
from mcpmux.protocol import method as m
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.capture.files import CaptureWriter, remove_surplus
from mcpmux.traffic.capture.line import data_of, encode_lines
from mcpmux.traffic.observer import LONG_BYTES, Exchange, Observation
from mcpmux.traffic.record import ANSWERS, Run
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.inline import AT_ONCE, in_task
from mcpmux.transports.thread import run_in_thread

log = structlog.get_logger()

Clock = Callable[[], float]

TIDY_SECONDS = 600.0  # between sweeps of the folder when no file is complete
CLOSE_SECONDS = 5.0  # for the last messages when mcpmux stops
FLUSH_SECONDS = 0.25  # that a message may be in the queue alone
RETRY_SECONDS = 5.0  # between attempts to write after a failure
MESSAGE_COST = 300  # bytes that a message takes in the queue besides its own
BATCH_BYTES = 2**20  # of messages that are written together; soon, so that their memory is used again
ENCODED_AT_ONCE = 128  # messages that are encoded in one go, before other tasks run
SHARE = 8  # undecoded messages may take this part of the queue (one eighth)
_SLOW, _PAUSED = "they came faster than it writes", "its files could not be written"
LARGE = 256 * 2**10  # bytes that are encoded in one go; a longer message is encoded in a thread
REMEMBERED = 4096  # levels by upstream and method, and exchanges; a hostile peer may send new methods all day
REMEMBERED_BYTES = 2**20  # of either
OFF = "off"
ANY = "*"  # in the place of an upstream's name

_ORDER = {level: number for number, level in enumerate(LEVELS)}
_OF_UPSTREAMS = frozenset(
    {*m.PAGED, *m.MAY_ASK_FOR_INPUT, *m.ABOUT_TASKS, m.COMPLETE, m.CREATE_MESSAGE, m.ELICIT, m.LOG_MESSAGE}
)
_PREFIX = re.compile(r"(?:ui://)?([a-z][a-z0-9.-]{0,31})(?:\+|__|/)")


class Levels:
    """Decides how much of a message is kept, by the user's rules. `prefixes`: that of each upstream, by name.

    On the leg of an upstream a rule's `upstream` is that upstream. On a client's leg it is the one whose
    prefix the request's target has, and each that the exchange has gone to so far. It may be any when these
    are unknown: the target is a new name or has no prefix, or the answer comes from a cache. Of several the
    least level counts, so that a message left out by one rule does not come in by the other leg.
    """

    def __init__(self, config: Capture, prefixes: Mapping[str, str]) -> None:
        self._default = config.level
        self._rules = config.rules
        self._by_upstream = any(rule.upstream is not None for rule in config.rules)
        self._found: Lru[tuple[str | None, str | None], str] = Lru(REMEMBERED, REMEMBERED_BYTES)
        self._asked: Lru[int, tuple[str, ...]] = Lru(REMEMBERED, REMEMBERED_BYTES)
        self.adopt(prefixes)

    def adopt(self, prefixes: Mapping[str, str]) -> None:
        """Use another set of upstreams."""
        self._owners = {prefix: name for name, prefix in prefixes.items()}
        self._found.clear()  # the level for ANY

    @property
    def only(self) -> str | None:
        """The level of all messages, or None when there are rules."""
        return None if self._rules else self._default

    def level(self, observed: Observation) -> str:
        """Return the level for a message. Call it for every message, in order."""
        if not self._by_upstream:
            return self._level_of(None, observed.method)
        upstream = observed.leg.upstream
        if upstream is not None:
            upstreams = self._asked.get(observed.exchange, ())
            if observed.exchange and upstream not in upstreams:
                self._asked[observed.exchange] = (*upstreams, upstream)
            return self._level_of(upstream, observed.method)
        is_answer = observed.direction == "out" and observed.kind in ANSWERS
        find = self._asked.pop if is_answer else self._asked.get
        names: tuple[str | None, ...] | None = find(observed.exchange)
        if not names:
            match = _PREFIX.match(observed.target or "")
            owner = self._owners.get(match[1]) if match is not None else None
            if owner is not None:
                names = (owner,)
                if observed.exchange and observed.kind == "request":  # a listen has updates of several
                    self._asked[observed.exchange] = names
            else:
                names = (ANY if _is_about_upstreams(observed) else self._owners.get(""),)
        return self._least(names, observed.method)

    def _least(self, names: Iterable[str | None], method: str | None) -> str:
        return min((self._level_of(name, method) for name in names), key=_ORDER.__getitem__)

    def _level_of(self, upstream: str | None, method: str | None) -> str:
        level = self._found.get((upstream, method))
        if level is None:
            owners = self._owners.values() or (None,)
            level = self._least(owners, method) if upstream == ANY else self._by_rules(upstream, method)
            self._found[upstream, method] = level
        return level

    def _by_rules(self, upstream: str | None, method: str | None) -> str:
        for rule in self._rules:
            pairs = (rule.upstream, upstream), (rule.method, method)
            if all(glob is None or (name is not None and fnmatchcase(name, glob)) for glob, name in pairs):
                return rule.level
        return self._default


def _is_about_upstreams(observed: Observation) -> bool:
    """Return whether a client's message goes to an upstream or has something of one, of a list the answer."""
    if observed.target is not None:
        return True
    return observed.method in _OF_UPSTREAMS and (observed.kind != "request" or observed.method not in m.PAGED)


class _Batch(msgspec.Struct, gc=False):
    """Messages of one level, or their `lines`. `count`: of messages; `size`: bytes in the queue."""

    level: str
    messages: list[Observation]
    count: int = 0
    size: int = 0
    lines: Sequence[bytes] = ()


class CaptureSink:
    """Takes messages and writes them. See MessageObserver and ExchangeObserver.

    `holds_back`: whether it observes exchanges, too, so that they wait for room in the queue.
    `dropped`: number of messages that found the queue full, or could not be written at the end. `paused`:
    whether files cannot be written.
    """

    def __init__(
        self, config: Capture, redactor: Redactor, run: Run, prefixes: Mapping[str, str], clock: Clock
    ) -> None:
        self.holds_back = config.on_full == "wait"
        self.dropped = 0
        self.paused = False
        self._rotated = trio.Event()  # a file is complete since the last sweep
        self.most_waiting = max(1, config.queue_bytes // (SHARE * (LONG_BYTES + MESSAGE_COST)))
        self._limit = config.queue_bytes
        self._enough = min(
            config.queue_bytes // 4, BATCH_BYTES
        )  # bytes that are written without a wait for more
        self.levels = Levels(config, prefixes)
        self._settle: Callable[[], None] = lambda: None
        self._encode = partial(encode_lines, run, redactor, config.body_bytes)
        self._config = config
        self._run = run
        self._clock = clock
        folder, size, age = Path(config.directory), config.rotate_size, config.rotate_age
        self.writer = CaptureWriter(folder, run, size, age, compress=config.compress)
        self._queue: deque[_Batch] = deque()
        self._bytes = 0
        self._unlogged: Counter[str] = Counter()  # dropped messages, by the reason to log
        self._gives_up = False  # at the end
        self._filled = trio.Event()
        self._urgent = trio.Event()
        self._waiting_for_room = trio.lowlevel.ParkingLot()
        self._closed = trio.Event()
        self._writing = trio.CancelScope(shield=True)  # it outlives the cancellation of the traffic

    def expect(self, settle: Callable[[], None]) -> None:
        """Remember how to settle, and wake the writer."""
        self._settle = settle
        self._filled.set()

    def take_all(self, batch: Sequence[Observation]) -> None:
        """Put messages into the queue, or drop them, in order."""
        only_level = self.levels.only
        size = sum(map(len, map(data_of, batch))) + MESSAGE_COST * len(batch)
        # One level for all, and there is room for all: the usual case takes no step for each message.
        if only_level is not None and size <= LARGE and self._bytes + size <= self._limit:
            self._put(only_level, batch, size)
            return
        for observed in batch:
            level = self.levels.level(observed)
            size = len(observed.data) + MESSAGE_COST
            if level == OFF:
                continue
            if self._bytes + size <= self._limit or not self._bytes:
                self._put(level, (observed,), size)
            else:
                self.dropped += 1
                self._unlogged[_PAUSED if self.paused else _SLOW] += 1

    def _put(self, level: str, messages: Sequence[Observation], size: int) -> None:
        """Add messages to the last batch of the queue, or to a new one."""
        last = self._queue[-1] if self._queue else None
        if (  # it cannot be encoded together with the last batch
            last is None
            or last.lines
            or last.level != level
            or len(last.messages) + len(messages) > ENCODED_AT_ONCE
            or last.size + size > LARGE
        ):
            last = _Batch(level, [])
            self._queue.append(last)
        last.messages += messages
        last.count += len(messages)
        last.size += size
        if len(last.messages) >= ENCODED_AT_ONCE and last.size <= LARGE:
            # Now, while they are in the processor's caches.
            last.lines = self._encode(level, last.messages)
            last.messages.clear()
        self._bytes += size
        self._filled.set()
        if self._bytes > self._enough:
            self._urgent.set()

    @property
    def passes(self) -> bool:
        """Whether an exchange may begin: not while the disk is slow, but when it does not work at all."""
        return self._bytes <= self._limit // 2 or self.paused

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Admit an exchange, after a wait for room in the queue. See ExchangeObserver."""
        return AT_ONCE if self.passes else self._wait_for_room()

    async def _wait_for_room(self) -> None:
        await in_task()
        while not self.passes:
            await self._waiting_for_room.park()

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Do nothing. See ExchangeObserver."""
        return AT_ONCE

    async def run(self) -> None:
        """Write messages until `close`, and the rest of the queue then, also when cancelled."""
        with self._writing:
            await self._write_until_closed()
        if self._writing.cancelled_caught:
            log.error("the capture is incomplete, its last messages could not be written in time")

    async def _write_until_closed(self) -> None:
        while True:
            await self._filled.wait()
            self._urgent = trio.Event()
            if self._bytes <= self._enough and not self._closed.is_set():
                with trio.move_on_after(FLUSH_SECONDS):  # for more messages, which are written together
                    await self._urgent.wait()
            if self._bytes <= self._enough:  # else unsettled messages wait for the next round
                self._settle()
                self._filled = trio.Event()
            await self._write_queue()
            for why, lost in self._unlogged.items():
                log.warning(f"messages are missing in the capture: {why}", dropped=lost, in_all=self.dropped)
            self._unlogged.clear()
            if self._closed.is_set():
                self._settle()
                if not self._queue:
                    break
        self.writer.end()
        await self._write()
        self.writer.close()
        if lost := self.writer.waiting:
            self.dropped += lost
            log.error("the capture is incomplete: its last messages could not be written", lost=lost)

    def close(self) -> None:
        """End the capture: `run` returns when the rest is written, within CLOSE_SECONDS."""
        self._writing.deadline = trio.current_time() + CLOSE_SECONDS
        self._closed.set()
        self._filled.set()
        self._urgent.set()

    async def _write_queue(self) -> None:
        """Encode and write the queue of now; its bytes count until it is written."""
        queue, self._queue = self._queue, deque()
        size = 0
        while queue:
            batch = queue.popleft()
            add = partial(self._add, batch, self._clock())
            if batch.size > LARGE:
                try:
                    await run_in_thread(add)
                except OSError:  # there is no thread
                    add()
            else:
                # Encoding and compressing block, so other tasks run before each batch.
                await trio.lowlevel.checkpoint()
                add()
            size += batch.size
            if size >= BATCH_BYTES or not queue:
                await self._write()
                self._bytes -= size
                self._waiting_for_room.unpark_all()
                size = 0

    def _add(self, batch: _Batch, now: float) -> None:
        lines = batch.lines or self._encode(batch.level, batch.messages)
        self.writer.add(b"".join(lines), batch.count, now)

    async def _write(self) -> None:
        """Write all that was added, retrying for ever; after `close`, stop at the first failure."""
        written = False
        while not written and not self._gives_up:
            try:
                await run_in_thread(self.writer.write)
            except OSError as error:
                if not self.paused:
                    self.paused = True
                    what = "capture pauses, its files cannot be written; traffic goes on"
                    log.error(what, directory=str(self.writer.directory), reason=reason_of(error))
                self._waiting_for_room.unpark_all()
                self._gives_up = self._closed.is_set()
                with trio.move_on_after(RETRY_SECONDS):
                    await self._closed.wait()
            else:
                if self.paused:
                    self.paused = False
                    log.warning("capture goes on")
                if self.writer.rotated:
                    self._rotated.set()
                written = True

    async def keep_tidy(self) -> None:
        """Remove files: at the start, when a file is complete, and every TIDY_SECONDS."""
        while True:
            self._rotated, self.writer.rotated = trio.Event(), False
            now = self._run.wall_at(self._clock())
            work = partial(remove_surplus, self.writer.directory, self._config, now)
            try:
                await run_in_thread(work)
            except OSError as error:
                log.warning("capture files could not be removed", reason=reason_of(error))
            with trio.move_on_after(TIDY_SECONDS):
                await self._rotated.wait()


class CaptureUnusable(McpmuxError):
    """The folder cannot be written; the text advises."""


@asynccontextmanager
async def open_capture(
    config: Capture,
    redactor: Redactor,
    run: Run,
    prefixes: Mapping[str, str],
    clock: Clock = trio.current_time,
) -> AsyncIterator[CaptureSink]:
    """Capture while the context lasts. `prefixes`: by upstream. `clock`: that of the run.

    Raises CaptureUnusable when the folder cannot be written at the start. Leaving writes the rest, within
    CLOSE_SECONDS also when that is cancelled, and ends the tasks.
    """
    sink = CaptureSink(config, redactor, run, prefixes, clock)
    try:
        sink.writer.add(b"", 0, clock())
        await trio.to_thread.run_sync(sink.writer.write)
    except OSError as error:
        reason = f"cannot write in {config.directory}: {reason_of(error)}"
        raise CaptureUnusable(f"capture: {reason}; `capture.directory` says where") from None
    async with trio.open_nursery() as writer, trio.open_nursery() as sweeper:
        writer.start_soon(sink.run, name="capture")
        sweeper.start_soon(sink.keep_tidy, name="capture files")
        try:
            yield sink
        finally:
            sweeper.cancel_scope.cancel(reason="capture has ended")
            sink.close()
