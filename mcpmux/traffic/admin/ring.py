"""Keep the last exchanges in memory, for the inspector.

Promises: bounded in rows and in bytes; messages are put into rows only for a reader, and decoded only
when they are shown: without a reader, taking a message is putting it into a list. Messages are kept as they
were on the wire: they may be shown only through `view`, which redacts.

A row is one line of the inspector's list: an exchange with all its messages on both legs, or a message that
belongs to none, such as a notification. Rows have consecutive numbers, and messages consecutive positions. A
reader keeps the last position that it has read, and misses what is dropped before its next read. Requests of
mcpmux itself are in a ring of their own, with numbers of their own, so that they take no room from the
exchanges of clients.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

import trio

from mcpmux.protocol import method as m
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.observer import BATCH, Exchange, Observation
from mcpmux.traffic.outcome import CANCELLED, OPEN, word_of
from mcpmux.traffic.record import ANSWERS
from mcpmux.transports.inline import AT_ONCE

MESSAGE_BYTES: Final = 350  # of a message besides its texts
TEXT_BYTES: Final = 50  # of a text besides its characters
ROW_BYTES: Final = 1000  # of a row besides its messages, with the short texts of `brief`
SHORT: Final = 2048  # characters of the target and the method of a message whose text is not kept
OWN_SHARE: Final = 8  # the ring of mcpmux's own requests has this part of the limits, in addition
SHARE: Final = 8  # one row may take this part of the memory, one message half of that
ROW_MESSAGES: Final = 2000  # of one row; a listen lasts for days
NOTE: Final = "note"  # the status of a notification
RECENT: Final = 16_384  # messages that a reader may be behind; some seconds of a flood
SORTED_AT_ONCE: Final = 8  # batches of messages: more than come meanwhile
NO_ROW: Final = 0  # the number of the row of a message that was dropped before it got one


Note: TypeAlias = tuple[int, str | None]
"""An exchange that was admitted, with the view of its client, or that was cancelled (None)."""


class StoredMessage:
    """A message. `size`: on the wire; `observed.data` is empty if it was too large to keep."""

    __slots__ = ("observed", "position", "size")

    def __init__(self, position: int, size: int, observed: Observation) -> None:
        self.position, self.size, self.observed = position, size, observed

    @property
    def too_large(self) -> bool:
        """Whether its text was not kept."""
        return self.size > len(self.observed.data)


class Row:
    """One line of the list, begun by `first`. `shown`: its redacted texts, after the first reading.

    `brief`: its status at the last reading, and what `LiveView` made of its messages then.
    `status`: a word of `outcome`, or `note` for a notification.
    `ms` is from its request to its answer on the leg where it began, `http` the HTTP status of that answer.
    `redacted`: whether its first message holds a secret. `view`: of its exchange's client.
    `marked` and `note`: set by a user of the inspector.
    """

    def __init__(self, number: int, first: Observation) -> None:
        self.number, self.exchange, self.first = number, first.exchange, first
        self.messages: list[StoredMessage] = []
        self.upstreams: tuple[str, ...] = ()
        self.status = OPEN
        self.code: int | None = None
        self.ms: float | None = None
        self.http: int | None = None
        self.size = 0  # bytes on the wire, of all its messages
        self.weight = ROW_BYTES  # bytes that it takes here
        self.left_out = 0  # dropped messages
        self.shown: tuple[str | None, str | None] | None = None
        self.brief: tuple[str, str, str] = "", "", ""
        self.redacted = False
        self.view = ""
        self.marked = False
        self.note = ""

    @property
    def count(self) -> int:
        """The number of its messages, dropped ones included."""
        return len(self.messages) + self.left_out

    @property
    def answer(self) -> StoredMessage | None:
        """The answer to its first message, if it is here."""
        number = self.first.number
        answers = (stored for stored in self.messages if stored.observed.kind in ANSWERS)
        return next((answer for answer in answers if answer.observed.answers == number), None)

    def add(self, stored: StoredMessage) -> None:
        """Add a message."""
        observed = stored.observed
        self.messages.append(stored)
        self.size += stored.size
        self.weight += weight_of(observed)
        upstream = observed.leg.upstream
        if upstream is not None and upstream not in self.upstreams:
            self.upstreams = (*self.upstreams, upstream)
        first = self.first
        if observed.kind in ANSWERS:
            is_back = observed.leg is first.leg and observed.direction != first.direction
            if observed is first or (is_back and observed.answers == first.number):  # or unexpected
                self.status = word_of(observed.kind, observed.failed) or NOTE
                self.code, self.ms, self.http = observed.code, observed.ms, observed.status
        elif observed is first and observed.kind != "request":
            self.status = word_of(observed.kind, observed.failed) or NOTE
        elif observed.method == m.CANCELLED and observed.leg is first.leg and self.status == OPEN:
            self.status = CANCELLED

    def shorten(self) -> None:
        """Drop the older half of the messages, but not the first."""
        end = max(2, len(self.messages) // 2)
        gone = self.messages[1:end]
        del self.messages[1:end]
        self.left_out += len(gone)
        self.weight -= sum(weight_of(stored.observed) for stored in gone)


def weight_of(observed: Observation) -> int:
    """Return the bytes that a message takes, at most."""
    texts = _bytes_of(observed.method) + _bytes_of(observed.target)
    if isinstance(observed.id, str):
        texts += _bytes_of(observed.id)
    return MESSAGE_BYTES + len(observed.data) + texts


def _bytes_of(text: str | None) -> int:
    # `sys.getsizeof` knows better, and takes far longer: it was half of what a message costs here.
    if text is None:
        return 0
    return TEXT_BYTES + (len(text) if text.isascii() else 4 * len(text))


class LiveRing:
    """See the module. A MessageObserver, and an ExchangeObserver that never waits.

    Call `catch_up` or `settle` before reading.
    """

    most_waiting = BATCH
    passes = False

    def __init__(self, most_rows: int, most_bytes: int, *, is_own: bool = False) -> None:
        """`is_own`: it is the ring for mcpmux's own requests."""
        self._settle: Callable[[], None] = lambda: None
        self.own: LiveRing | None = None
        if not is_own:
            self.own = LiveRing(max(1, most_rows // OWN_SHARE), most_bytes // OWN_SHARE, is_own=True)
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._rows: dict[int, Row] = {}
        # By exchange, or by its number, negative, for an unanswered request without an exchange.
        self._growing: dict[int, Row] = {}
        self._recent: deque[int] = deque(maxlen=RECENT)  # the number of the row of each of the last messages
        # Messages that have no rows yet, their bytes, and the notes that were made since those before them.
        self._unsorted: deque[tuple[Sequence[Observation], int, list[Note]]] = deque()
        self._notes: list[Note] = []  # since the last of these messages
        self._bytes = 0
        self.first = 1  # number of the oldest row; above `last` when there is none
        self.last = 0  # number of the newest row
        self.position = 0  # of the newest message

    def expect(self, settle: Callable[[], None]) -> None:
        """Remember how to settle. See MessageObserver."""
        self._settle = settle
        if self.own is not None:
            self.own._settle = self.settle

    def take_all(self, batch: Sequence[Observation]) -> None:
        """Take messages in order. See MessageObserver."""
        if self.own is not None:
            own = [observed for observed in batch if not observed.exchange and observed.own]
            if own:  # they must not be dropped together with those of clients
                self.own.take_all(own)
                batch = [observed for observed in batch if observed.exchange or not observed.own]
        size = sum([weight_of(observed) for observed in batch])
        size += sum([len(view) for _, view in self._notes if view is not None])
        self._unsorted.append((batch, size, self._notes))
        self._notes = []
        self._bytes += size
        if size > self._most_bytes // SHARE // 2:  # perhaps of messages that are too large to be kept
            self._sort()
        while self._bytes > self._most_bytes and len(self._rows) + len(self._unsorted) > 1:
            if self._rows:
                self._forget_oldest()
            else:
                batch, size, _ = self._unsorted.popleft()
                self._bytes -= size
                self.position += len(batch)
                self._recent.extend([NO_ROW] * len(batch))

    def settle(self) -> None:
        """Put all messages so far into rows."""
        self._settle()
        self._sort()
        if self.own is not None:
            self.own._sort()

    async def catch_up(self) -> None:
        """Put messages into rows until only a few are left, while other tasks run."""
        while len(self._unsorted) > SORTED_AT_ONCE:
            for _ in range(SORTED_AT_ONCE):
                self._sort_next()
            await trio.lowlevel.checkpoint()

    def _sort(self) -> None:
        while self._unsorted:
            self._sort_next()
        self._note(self._notes)
        self._notes = []

    def _sort_next(self) -> None:
        batch, size, notes = self._unsorted.popleft()
        self._bytes -= size
        for observed in batch:
            self.take(observed)
        self._note(notes)

    def _note(self, notes: Sequence[Note]) -> None:
        for exchange, view in notes:  # requests pass before they are admitted, so each has its row by now
            if view is None:
                self.cut_off(exchange)
            else:
                self.set_view(exchange, view)

    def take(self, observed: Observation, size: int | None = None) -> None:
        """Put one message into its row. `size`: on the wire, if its text is incomplete."""
        if self.own is not None and observed.own:
            self.own.take(observed, size)
            return
        self.position += 1
        size = len(observed.data) if size is None else size
        if size > self._most_bytes // SHARE // 2:
            kind, exchange, method, request_id, target, *more = observed.facts()
            texts = (method and method[:SHORT], request_id, target and target[:SHORT])
            observed = Observation(
                observed.leg, observed.direction, b"", observed.at, kind, exchange, *texts, *more
            )
        if observed.exchange:
            row = self._growing.get(observed.exchange) or self._new_row(observed, observed.exchange)
        elif observed.kind in ANSWERS:
            unanswered = self._growing.pop(-observed.answers, None)
            row = self._new_row(observed, None) if unanswered is None else unanswered
        else:
            row = self._new_row(observed, -observed.number if observed.kind == "request" else None)
        weight = row.weight
        row.add(StoredMessage(self.position, size, observed))
        self._recent.append(row.number)
        if len(row.messages) > ROW_MESSAGES or row.weight > self._most_bytes // SHARE:
            row.shorten()
        self._bytes += row.weight - weight
        while len(self._rows) > self._most_rows or (self._bytes > self._most_bytes and len(self._rows) > 1):
            self._forget_oldest()

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Note the view of an exchange's client. See ExchangeObserver."""
        view = exchange.call.principal.view
        if view:
            self._notes.append((exchange.number, view))
        return AT_ONCE

    def set_view(self, exchange: int, view: str) -> None:
        """Set the view of the client of an exchange that has passed."""
        row = self._growing.get(exchange)
        if row is not None:
            row.view = view
            row.weight += len(view)  # a client may narrow its view by much text
            self._bytes += len(view)

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Note a cancelled exchange. See ExchangeObserver."""
        # The first test is fast and mostly false; trio's class makes the second take ten times as long.
        if isinstance(outcome, BaseException) and isinstance(outcome, trio.Cancelled):
            self._notes.append((exchange.number, None))
        return AT_ONCE

    def cut_off(self, exchange: int) -> None:
        """Mark an exchange as cancelled that has ended without an answer, so that it has no last message."""
        row = self._growing.get(exchange)
        if row is not None and row.status == OPEN:
            row.status = CANCELLED
            self._tell_again(row)

    def mark(self, row: Row, marked: bool, note: str) -> None:
        """Set the mark and the note of a row."""
        if self._rows.get(row.number) is row:  # else it was dropped just now
            row.weight += len(note) - len(row.note)
            self._bytes += len(note) - len(row.note)
            row.marked, row.note = marked, note
            self._tell_again(row)

    def _tell_again(self, row: Row) -> None:
        """Have readers read a row again that has no new message."""
        self.position += 1
        self._recent.append(row.number)

    def row(self, number: int) -> Row | None:
        """Return the row with a number, or None."""
        return self._rows.get(number)

    def row_of(self, exchange: int) -> int | None:
        """Return the number of the row of a client's exchange that has begun, or None."""
        self.settle()
        row = self._growing.get(exchange)
        return row.number if row is not None else None

    def before(self, number: int) -> Iterator[Row]:
        """Yield the rows before a number, newest first. Ends early when the ring has dropped them."""
        for position in range(min(number - 1, self.last), self.first - 1, -1):
            row = self._rows.get(position)
            if row is None:
                return
            yield row

    def changed_since(self, since: int) -> tuple[list[Row], int]:
        """Return the rows with messages after `since`, each once, and the number of missed messages."""
        numbers, position = self._passed_since(since)
        rows = map(self._rows.get, dict.fromkeys(numbers))
        return [row for row in rows if row is not None], position - since

    def messages_since(self, since: int, most: int) -> tuple[list[StoredMessage], int, int]:
        """Return up to `most` messages after `since`, the last position, and the number of missed ones."""
        numbers, begin = self._passed_since(since)
        news = []
        for position, number in enumerate(numbers[:most], begin + 1):
            row = self._rows.get(number)
            messages = row.messages if row is not None else []
            index = bisect.bisect_left(messages, position, key=attrgetter("position"))
            news += [message for message in messages[index : index + 1] if message.position == position]
        return news, begin + len(numbers[:most]), begin - since

    def _passed_since(self, since: int) -> tuple[list[int], int]:
        """Return the number of the row of each known message after `since`, and the position before."""
        begin = max(since, self.position - len(self._recent))
        return list(islice(reversed(self._recent), self.position - begin))[::-1], begin

    def _new_row(self, observed: Observation, key: int | None) -> Row:
        self.last += 1
        row = self._rows[self.last] = Row(self.last, observed)
        self._bytes += row.weight
        if key is not None:
            self._growing[key] = row
        return row

    def _forget_oldest(self) -> None:
        row = self._rows.pop(self.first)
        self.first += 1
        self._bytes -= row.weight
        row.messages.clear()
        key = row.exchange or -row.first.number
        if self._growing.get(key) is row:
            del self._growing[key]
