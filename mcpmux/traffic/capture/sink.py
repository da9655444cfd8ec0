"""The queue of the capture, which is bounded, and the task that writes it. See `capture` for the whole.

Redacting and encoding are done for many messages at a time: as soon as there are that many, or else in the
writer's task. Files are touched in threads, and long messages are encoded there.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import partial

import msgspec
import structlog
import trio

from mcpmux.config.traffic import LEVELS, Capture
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.capture.files import CaptureWriter, behind
from mcpmux.traffic.capture.line import LineEncoder, data_of
from mcpmux.traffic.capture.message import Run
from mcpmux.traffic.observer import LONG_BYTES, Exchange, Observation
from mcpmux.traffic.redaction.redactor import Redactor

log = structlog.get_logger()

FLUSH_SECONDS = 0.25  # for how long a message may be in the queue alone
RETRY_SECONDS = 5.0  # between attempts to write while it does not work
MESSAGE_COST = 300  # bytes that a message takes in the queue besides its own
BATCH_BYTES = 2**20  # of messages that are written together; soon, so that their memory is used again
ENCODED_AT_ONCE = 128  # messages that are encoded in one go, before others may do something
SHARE = 8  # what waits to be looked at may be so large a part of the queue
LARGE = 256 * 2**10  # bytes that are encoded in one go; a longer message is encoded in a thread


def reason_of(error: OSError) -> str:
    """What went wrong, for the end of a sentence."""
    return (error.strerror or str(error)).lower()


class _Batch(msgspec.Struct, gc=False):
    """Messages that are encoded together: of one level, with consecutive numbers. `size`: what they cost.

    `lines`: in place of the messages once there are enough of them.
    """

    first: int
    level: str
    messages: list[Observation]
    size: int
    lines: Sequence[bytes] = ()

    def has_room_for(self, number: int, level: str, count: int, size: int) -> bool:
        """Whether so many messages from that number on may be added."""
        return (
            not self.lines
            and number == self.first + len(self.messages)
            and len(self.messages) + count <= ENCODED_AT_ONCE
            and self.size + size <= LARGE
            and level == self.level
        )


class CaptureSink:
    """Takes messages and writes them. See BatchObserver and ExchangeObserver.

    `dropped` counts messages that found the queue full, or could not be written when it had to end; `paused`
    says that files cannot be written.
    `complete` is set, and replaced, when a file is complete; `finished` when `run` has written what was left.
    """

    def __init__(
        self,
        config: Capture,
        levels: Levels,
        redactor: Redactor,
        run: Run,
        writer: CaptureWriter,
        clock: Callable[[], float],
    ) -> None:
        self.dropped = 0
        self.paused = False
        self.complete = trio.Event()
        self.finished = trio.Event()
        self.most_waiting = max(1, config.queue_bytes // (SHARE * (LONG_BYTES + MESSAGE_COST)))
        self._limit = config.queue_bytes
        self._enough = min(config.queue_bytes // 4, BATCH_BYTES)  # not to wait for more
        self._levels = levels
        self._settle: Callable[[], None] = lambda: None
        self._lines = LineEncoder(run, redactor, config.body_bytes)
        self._lines_in_thread = LineEncoder(run, redactor, config.body_bytes)
        self._run = run
        self._writer = writer
        self._clock = clock
        self._queue: deque[_Batch] = deque()
        self._bytes = 0
        self._seq = 0
        self._logged = 0
        self._lost = 0  # at the end
        self._has_paused = False  # since dropped messages were logged last
        self._filled = trio.Event()
        self._urgent = trio.Event()
        self._room = trio.Event()
        self._closed = trio.Event()

    def __repr__(self) -> str:
        state = "paused" if self.paused else "writing"
        return f"<CaptureSink {state} {self._bytes} bytes waiting, {self.dropped} dropped>"

    def expect(self, settle: Callable[[], None]) -> None:
        """See BatchObserver."""
        self._settle = settle
        self._filled.set()

    def take_all(self, batch: Sequence[Observation]) -> None:
        """See BatchObserver."""
        level = self._levels.only
        size = sum(map(len, map(data_of, batch))) + MESSAGE_COST * len(batch)
        if level is None or size > LARGE or self._bytes + size > self._limit:
            for observed in batch:
                self.take(observed)
        else:
            self._put(level, batch, size)

    def take(self, observed: Observation) -> None:
        """One of them."""
        level = self._levels.level(observed)
        if level == OFF:
            return
        size = len(observed.data) + MESSAGE_COST
        if self._bytes + size > self._limit:
            self._seq += 1
            self.dropped += 1
            return
        self._put(level, (observed,), size)

    def _put(self, level: str, messages: Sequence[Observation], size: int) -> None:
        """Into the queue, beside what was there last if they can be encoded together."""
        first, self._seq = self._seq + 1, self._seq + len(messages)
        last = self._queue[-1] if self._queue else None
        if last is not None and last.has_room_for(first, level, len(messages), size):
            last.messages += messages
            last.size += size
        else:
            last = _Batch(first, level, list(messages), size)
            self._queue.append(last)
        if len(last.messages) >= ENCODED_AT_ONCE and last.size <= LARGE:
            # Now, while they are in the processor's caches.
            last.lines = self._lines.encode(last.first, level, last.messages)
            last.messages.clear()
        self._bytes += size
        self._filled.set()
        if self._bytes > self._enough:
            self._urgent.set()

    @property
    def is_open(self) -> bool:
        """See AdmissionObserver: closed while the disk is slow, not when it does not work."""
        return self._bytes <= self._limit // 2 or self.paused

    async def admit(self, exchange: Exchange) -> None:
        """See ExchangeObserver."""
        while not self.is_open:
            await self._room.wait()

    async def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> None:
        """See ExchangeObserver."""

    async def run(self) -> None:
        """Write what is taken until `close`, and what is left then. Cancelling it leaves whole lines."""
        while True:
            await self._filled.wait()
            await self._gather()
            is_urgent = self._bytes > self._enough
            if not is_urgent:
                self._settle()
            self._filled = trio.Event()
            if is_urgent:  # what has passed since it was last settled waits for more
                self._filled.set()
            await self._write_queue()
            self._log_dropped()
            if self._closed.is_set():
                self._settle()
                if not self._queue:
                    self._log_lost()
                    self.finished.set()
                    return

    def wall(self) -> float:
        """Seconds since 1970, by the run's clock."""
        return self._run.wall + self._clock() - self._run.clock

    def close(self) -> None:
        """Nothing more will pass; `run` returns when all is written."""
        self._closed.set()
        self._filled.set()
        self._urgent.set()

    async def _gather(self) -> None:
        """Wait a little for more messages, which are written together."""
        self._urgent = trio.Event()
        if self._bytes <= self._enough and not self._closed.is_set():
            with trio.move_on_after(FLUSH_SECONDS):
                await self._urgent.wait()

    async def _write_queue(self) -> None:
        """Encode and write what is in the queue now; it stays counted until it is written."""
        queue, self._queue = self._queue, deque()
        parts: list[bytes] = []
        length = size = 0
        while queue:
            batch = queue.popleft()
            lines = batch.lines or await self._encode(batch)
            parts += lines
            length += sum(map(len, lines))
            size += batch.size
            if length >= BATCH_BYTES or not queue:
                await self._write(parts, size)
                parts = []
                length = size = 0

    async def _encode(self, batch: _Batch) -> Sequence[bytes]:
        work = (batch.first, batch.level, batch.messages)
        if batch.size > LARGE:
            return await trio.to_thread.run_sync(self._lines_in_thread.encode, *work, abandon_on_cancel=True)
        await trio.lowlevel.checkpoint()
        return self._lines.encode(*work)

    async def _write(self, parts: Sequence[bytes], size: int) -> None:
        """Write all of them, however long it does not work; at the end, up to where it does not."""
        while parts and not self._lost:
            write = partial(self._writer.write, parts, self._clock())
            try:
                written = await trio.to_thread.run_sync(write, abandon_on_cancel=True)
            except OSError as error:
                self._pause(error)
                if self._closed.is_set():
                    break
                with trio.move_on_after(RETRY_SECONDS):
                    await self._closed.wait()
            else:
                self._go_on()
                parts = behind(parts, written)
        self._lost += sum(part.count(b"\n") for part in parts)
        self._bytes -= size
        self._make_room()

    def _go_on(self) -> None:
        """It works."""
        if self.paused:
            self.paused = False
            log.warning("capture goes on")
        if self._writer.take_rotated():
            complete, self.complete = self.complete, trio.Event()
            complete.set()

    def _make_room(self) -> None:
        """Whoever waits in `admit` looks again."""
        room, self._room = self._room, trio.Event()
        room.set()

    def _pause(self, error: OSError) -> None:
        if not self.paused:
            self.paused = self._has_paused = True
            log.error(
                "capture pauses, its files cannot be written; traffic goes on",
                directory=str(self._writer.directory),
                reason=reason_of(error),
            )
        self._make_room()

    def _log_dropped(self) -> None:
        if self.dropped > self._logged:
            why = "its files could not be written" if self._has_paused else "they came faster than it writes"
            log.warning(
                f"messages are missing in the capture: {why}",
                dropped=self.dropped - self._logged,
                in_all=self.dropped,
            )
            self._logged = self.dropped
        self._has_paused = self.paused

    def _log_lost(self) -> None:
        if self._lost:
            self.dropped += self._lost
            log.error("the capture is incomplete: its last messages could not be written", lost=self._lost)


# How much of a message is kept: the user's rules, for both legs. State: whom exchanges have asked.
#
# On the leg of an upstream a rule's `upstream` is that upstream. On a client's leg it is whichever the
# exchange has asked so far, and for a request the one whose prefix its target bears; of several the least
# level counts, so that what one rule leaves out does not come in by the other leg.

REMEMBERED = 4096  # levels by upstream and method, and exchanges; a hostile peer may send new methods all day
OFF = "off"

_ORDER = {level: number for number, level in enumerate(LEVELS)}
_PREFIX = re.compile(r"(?:ui://)?([a-z][a-z0-9.-]{0,31})(?:\+|__|/)")


class Levels:
    """`prefixes`: prefix by name of each upstream."""

    def __init__(self, config: Capture, prefixes: Mapping[str, str]) -> None:
        self._default = config.level
        self._rules = [(_pattern(rule.upstream), _pattern(rule.method), rule.level) for rule in config.rules]
        self._by_upstream = any(rule.upstream is not None for rule in config.rules)
        self.adopt(prefixes)
        self._known: dict[tuple[str | None, str | None], str] = {}
        self._asked: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Levels {self._default}, {len(self._rules)} rules, {len(self._asked)} exchanges>"

    def adopt(self, prefixes: Mapping[str, str]) -> None:
        """The set of upstreams has changed."""
        self._owners = {prefix: name for name, prefix in prefixes.items()}

    @property
    def only(self) -> str | None:
        """The level of all messages, when there are no rules."""
        return None if self._rules else self._default

    def level(self, observed: Observation) -> str:
        """The level for a message. To be called for every message, in order."""
        if not self._rules:
            return self._default
        if not self._by_upstream:
            return self._level_of(None, observed.method)
        upstream = observed.leg.upstream
        if upstream is not None:
            if observed.exchange:
                self._remember(observed.exchange, upstream)
            return self._level_of(upstream, observed.method)
        names = self._upstreams_of(observed)
        if not names:
            return self._level_of(None, observed.method)
        return min((self._level_of(name, observed.method) for name in names), key=_ORDER.__getitem__)

    def _upstreams_of(self, observed: Observation) -> tuple[str, ...]:
        """Which upstreams a message on a client's leg has to do with."""
        is_answer = observed.direction == "out" and observed.kind in ("result", "error")
        asked = (
            self._asked.pop(observed.exchange, ()) if is_answer else self._asked.get(observed.exchange, ())
        )
        return asked or self._owner_of(observed.target)

    def _owner_of(self, target: str | None) -> tuple[str, ...]:
        match = _PREFIX.match(target) if target is not None else None
        owner = self._owners.get(match[1]) if match is not None else None
        owner = owner or self._owners.get("")
        return (owner,) if owner is not None else ()

    def _remember(self, exchange: int, upstream: str) -> None:
        asked = self._asked.get(exchange, ())
        if upstream not in asked:
            self._asked[exchange] = (*asked, upstream)
            if len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)

    def _level_of(self, upstream: str | None, method: str | None) -> str:
        key = (upstream, method)
        level = self._known.get(key)
        if level is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            level = self._known[key] = self._find(upstream, method)
        return level

    def _find(self, upstream: str | None, method: str | None) -> str:
        for upstreams, methods, level in self._rules:
            if _fits(upstreams, upstream) and _fits(methods, method):
                return level
        return self._default


def _pattern(glob: str | None) -> re.Pattern[str] | None:
    return re.compile(translate(glob)) if glob is not None else None


def _fits(pattern: re.Pattern[str] | None, name: str | None) -> bool:
    return pattern is None or (name is not None and pattern.match(name) is not None)
