"""The screen of `mcpmux top`: widgets of urwid, the effects of keys, and the task that keeps it up to date.

Promises: only printable characters of strangers' texts reach the terminal; only rows in sight have widgets. A
mcpmux that goes away is asked again until it is back; the last state stays in sight meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
import trio
import urwid

from mcpmux.cli.admin.client import AdminClient, NotDone
from mcpmux.cli.console import Columns
from mcpmux.cli.top.command import (
    EXCHANGES,
    EXCHANGES_LIMIT,
    NUMBERS,
    SORTS,
    TABLES,
    Exchanges,
    Item,
    Line,
    exchange_lines,
    held_lines,
    ordered,
    request_of,
    time_of,
    upstream_lines,
)
from mcpmux.errors import McpmuxError
from mcpmux.printable import printable
from mcpmux.traffic.reading.filters import LIVE_NAMES, FilterError, parse_filter

MOST_WIDE = 24  # columns of a cell, besides the one that takes what is left
LEAST_WIDE = 40  # columns of that one, if it has so much text; with less, others are left out
LEAST_TEXT = 10  # columns of a text that gives way to it
MEASURED_ROWS = 100  # that decide how wide a column is

# The colours of the terminal itself, on its own background, where they are readable. The widget with the
# focus is reversed. The fourth word applies without colours.
PALETTE = [
    ("green", "dark green", "default", "default"),
    ("yellow", "brown", "default", "default"),
    ("red", "dark red", "default", "bold"),
    ("bold", "bold", "default", "bold"),
    ("focus", "standout", "default", "standout"),
]
_FOCUSED = dict.fromkeys((None, "green", "yellow", "red", "bold"), "focus")

KEYS = "Tab table  Enter open  / filter  s sort  p pause  q quit"
HELD_KEYS = "a let it go  r refuse it  ↑ ↓ Page scroll  Esc back  q quit"
MOVED = "the exchange before has ended: press a key once more to decide about this one"
DETAIL_KEYS = "↑ ↓ Page scroll  Esc back  q quit"
EDIT_KEYS = "Enter apply  Esc back"


class Row(urwid.WidgetWrap):
    """A row of a table, which can have the focus."""

    def selectable(self) -> bool:
        return True

    def keypress(self, size: Any, key: str) -> str:
        """Take no key."""
        return key


class Walker(urwid.ListWalker):
    """Makes widgets of items when they come into sight."""

    def __init__(self, widget_of: Callable[[Any], urwid.Widget]) -> None:
        self.items: Sequence[Any] = ()
        self.focus = 0
        self._widget_of = widget_of
        self._widgets: dict[int, urwid.Widget] = {}

    def show(self, items: Sequence[Any], focus: int = 0) -> None:
        """Show other items, of which one has the focus."""
        self.items, self.focus = items, focus
        self._widgets.clear()
        self._modified()

    def __getitem__(self, position: int) -> urwid.Widget:
        if position not in self._widgets:
            self._widgets[position] = self._widget_of(self.items[position])
        return self._widgets[position]

    def set_focus(self, position: int) -> None:
        self.focus = position
        self._modified()

    def positions(self, reverse: bool = False) -> Sequence[int]:
        return range(len(self.items))[:: -1 if reverse else 1]

    def next_position(self, position: int) -> int:
        if position + 1 >= len(self.items):
            raise IndexError
        return position + 1

    def prev_position(self, position: int) -> int:
        if position < 1:
            raise IndexError
        return position - 1


class Table(urwid.Frame):
    """Headings and rows. The `wide` column takes the room that the others leave.

    Texts give way to it, and then the last columns are left out, until it has what it needs, or LEAST_WIDE.

    The first row keeps the focus when others come before it; any other row that has the focus keeps it.
    """

    def __init__(
        self, columns: Columns, wide: str, key_of: Callable[[Item], Hashable], numbers: frozenset[str]
    ) -> None:
        self._columns, self._wide, self._numbers = columns, wide, numbers
        self._key_of = key_of
        self._widths = {heading: len(heading) for heading in columns}
        self._room = 0
        self._shown: dict[str, int] = {}
        self._marked: str | None = None
        self._walker = Walker(self._row)
        super().__init__(urwid.ListBox(self._walker))
        self.show([])

    def show(self, rows: Sequence[Item], marked: str | None = None) -> None:
        """Show other rows. `marked`: the heading by which they are sorted."""
        place, focused = 0, self.focused
        if focused is not None and self._walker.focus > 0:
            keys = [self._key_of(row) for row in rows]
            key = self._key_of(focused)
            place = keys.index(key) if key in keys else max(0, min(self._walker.focus, len(rows) - 1))
        for row in rows[:MEASURED_ROWS]:  # columns become wider, never narrower: else they would jump
            for heading, cell_of in self._columns.items():
                text, _ = _cell(cell_of(row))
                width = urwid.calc_width(text, 0, len(text))
                most = width if heading == self._wide else min(MOST_WIDE, width)
                self._widths[heading] = max(self._widths[heading], most)
        self._marked = marked
        self._walker.show(rows, place)
        self._lay_out()

    def render(self, size: Any, focus: bool = False) -> Any:
        """Lay the columns out anew when the screen has another size."""
        if size[0] != self._room:
            self._room = size[0]
            self._lay_out()
            self._walker.show(self._walker.items, self._walker.focus)
        return super().render(size, focus)

    def _lay_out(self) -> None:
        """Choose the columns, and their widths, for the room that there is."""
        kept, place = list(self._columns), list(self._columns).index(self._wide)
        after = kept[place + 1 :]
        droppable = after[:] or kept[2:place]  # of upstreams, name and state stay
        widths = {
            heading: min(width, LEAST_TEXT) if heading in after and heading not in self._numbers else width
            for heading, width in self._widths.items()
        }
        need = min(widths[self._wide], LEAST_WIDE)

        def count_left() -> int:
            return self._room - sum(widths[name] + 1 for name in kept if name != self._wide)

        while count_left() < need and droppable:
            kept.remove(droppable.pop())
        for heading in kept:
            if heading in after:
                spare = max(0, count_left() - widths[self._wide])
                widths[heading] = min(self._widths[heading], widths[heading] + spare)
        widths[self._wide] = max(1, count_left())
        self._shown = {heading: widths[heading] for heading in kept}
        self.header = self._line(
            {heading: (heading, "focus" if heading == self._marked else "bold") for heading in self._columns}
        )

    @property
    def rows_count(self) -> int:
        return len(self._walker.items)

    @property
    def focused(self) -> Item | None:
        """The row that has the focus."""
        row: Item | None = self._walker.items[self._walker.focus] if self._walker.items else None
        return row

    def _row(self, item: Item) -> urwid.Widget:
        line = self._line({heading: _cell(cell_of(item)) for heading, cell_of in self._columns.items()})
        return Row(urwid.AttrMap(line, None, _FOCUSED))

    def _line(self, cells: Mapping[str, Line]) -> urwid.Columns:
        line = []
        for heading, width in self._shown.items():
            text, style = cells[heading]
            align: Literal["left", "right"] = "right" if heading in self._numbers else "left"
            widget = urwid.Text((style or None, text), align, wrap="ellipsis")
            line.append(widget if heading == self._wide else (width, widget))
        return urwid.Columns(line, dividechars=1)


def _cell(cell: Any) -> Line:
    """See `console.show_table`."""
    value, style = cell if isinstance(cell, tuple) else (cell, "")
    return ("-" if value is None else printable(str(value))), style


class Tables(urwid.Pile):
    """Upstreams above, as many as there are but on a third of the screen; exchanges below."""

    def __init__(self, upper: Table, title: urwid.Text, lower: Table) -> None:
        super().__init__([("given", 2, upper), ("pack", title), lower])
        self.upper, self.lower = upper, lower

    def render(self, size: Any, focus: bool = False) -> Any:
        """Give the upper table the height that it needs."""
        options = self.options("given", min(self.upper.rows_count + 1, max(2, size[1] // 3)))
        if self.contents[0] != (self.upper, options):
            self.contents[0] = (self.upper, options)
        return super().render(size, focus)


class TopScreen(urwid.Frame):
    """The whole screen.

    `place`: where mcpmux is. `wanted`: the filter to begin with. `on_open` gets the number of a row to open,
    `on_close` is called when it is closed, `on_filter` when `wanted` is another filter, which can be read.
    `on_decision` gets the key of a held exchange, and "pass" or "refuse".
    `by`: a word of TABLES.
    """

    def __init__(
        self,
        place: str,
        wanted: str,
        on_open: Callable[[int], None],
        on_close: Callable[[], None],
        on_filter: Callable[[], None],
        on_decision: Callable[[str, str], None],
        by: str = "upstream",
    ) -> None:
        self._place, self.wanted = place, wanted
        self._on_open, self._on_close, self._on_filter = on_open, on_close, on_filter
        self._on_decision = on_decision
        self._held: Sequence[Item] = ()
        self._shows_held = False
        self._has_moved = False  # another held exchange came to the place of the one that was being read
        self._paused = False
        self._sorted_by: str | None = None
        self._troubles: dict[str, str] = {}
        self._upstreams: Sequence[Item] = ()
        self._exchanges: Sequence[Item] = ()
        self._title, self._filter_line = urwid.Text(""), urwid.Text("", wrap="ellipsis")
        columns, wide = TABLES[by]
        self._sorts = [None, *(heading for heading in SORTS if heading in columns)]
        upper = Table(columns, wide, lambda row: (row["name"], row.get("method")), NUMBERS)
        lower = Table(EXCHANGES, "REQUEST", lambda row: row["row"], frozenset({"DURATION"}))
        self._tables = Tables(upper, self._filter_line, lower)
        self._tables.focus_position = 2
        self._lines = Walker(lambda line: urwid.Text((line[1] or None, line[0]), wrap="any"))
        self._detail = urwid.ListBox(self._lines)
        self._edit: urwid.Edit | None = None
        self._detail_keys = {"esc": self._close, "q": self._quit}
        self._table_keys = {
            "tab": self._switch,
            "enter": self._enter,
            "/": self._edit_filter,
            "s": self._sort,
            "p": self._pause,
            "h": self._open_held,
            "q": self._quit,
        }
        self._held_keys = {
            **self._detail_keys,
            "a": lambda: self._decide("pass"),
            "r": lambda: self._decide("refuse"),
        }
        super().__init__(self._tables, header=self._title)
        self._show_footer()
        self._show_titles()

    # Showing

    def show_upstreams(self, rows: Sequence[Item]) -> None:
        """Show what `measured` returns."""
        self._upstreams = rows
        if not self._paused:
            self._tables.upper.show(ordered(rows, self._sorted_by), self._sorted_by)

    def show_exchanges(self, rows: Sequence[Item]) -> None:
        """Show rows, the newest first."""
        self._exchanges = rows
        if not self._paused:
            self._tables.lower.show(rows)

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show what is in the opened exchange."""
        self._lines.show(lines)

    def show_held(self, held: Sequence[Item]) -> None:
        """Show how many exchanges are held, and the first of them if held ones are opened."""
        # Another person may decide about the first one just before a key is pressed.
        self._has_moved |= bool(self._held and held) and self._held[0]["key"] != held[0]["key"]
        self._held = held
        if self._shows_held:
            lines = [(printable(line), style) for line, style in held_lines(held)]
            self.show_lines([(MOVED, "yellow"), *lines] if self._has_moved else lines)
        self._show_titles()

    def tell(self, part: str, trouble: str | None) -> None:
        """Say what is wrong with a part, or that nothing is."""
        self._troubles.pop(part, None)
        if trouble is not None:
            self._troubles[part] = trouble
        self._show_titles()

    def _show_titles(self) -> None:
        title: list[Any] = [("bold", "mcpmux top"), f"  {printable(self._place)}"]
        if self._paused:
            title.append(("yellow", "  paused"))
        if self._held:
            title.append(("yellow", f"  {len(self._held)} held, h shows them"))
        if self._troubles:
            title.append(("red", f"\ntrying again: {printable(next(iter(self._troubles.values())))}"))
        self._title.set_text(title)
        filtered = f"  {printable(self.wanted)}" if self.wanted else ""
        self._filter_line.set_text([("bold", "Exchanges"), filtered])

    def _show_footer(self, keys: str = KEYS) -> None:
        self.footer = urwid.Text(("bold", keys), wrap="ellipsis")

    # Keys

    def keypress(self, size: Any, key: str) -> str | None:
        """Pass a key to the filter that is being edited, else to a list; the screen takes what is left."""
        if self._edit is not None:
            actions = {"enter": self._apply_filter, "esc": self._stop_editing}
            left = key if key in actions else super().keypress(size, key)
        else:
            opened = self._held_keys if self._shows_held else self._detail_keys
            actions = opened if self.body is self._detail else self._table_keys
            left = super().keypress(size, key)
        if left not in actions:
            return left
        actions[left]()
        return None

    def _quit(self) -> None:
        raise urwid.ExitMainLoop

    def _switch(self) -> None:
        self._tables.focus_position = 2 - self._tables.focus_position

    def _sort(self) -> None:
        self._sorted_by = self._sorts[(self._sorts.index(self._sorted_by) + 1) % len(self._sorts)]
        self._tables.upper.show(ordered(self._upstreams, self._sorted_by), self._sorted_by)

    def _pause(self) -> None:
        self._paused = not self._paused
        self.show_upstreams(self._upstreams)
        self.show_exchanges(self._exchanges)
        self._show_titles()

    def _enter(self) -> None:
        """Open an exchange, which is asked for, or an upstream, of which all is known."""
        is_upstream = self._tables.focus_position == 0
        row = (self._tables.upper if is_upstream else self._tables.lower).focused
        if row is None:
            return
        self.body = self._detail
        self._show_footer(DETAIL_KEYS)
        if is_upstream and "slowest" not in row:
            self.show_lines(upstream_lines(row))
        else:
            title = row["name"] if is_upstream else f"{time_of(row['at'])}  {request_of(row)}"
            self.show_lines([(printable(title), "bold"), ("…", "")])
            self._on_open(row["slowest"] if is_upstream else row["row"])

    def _open_held(self) -> None:
        self.body, self._shows_held, self._has_moved = self._detail, True, False
        self._show_footer(HELD_KEYS)
        self.show_held(self._held)

    def _decide(self, verdict: str) -> None:
        if self._held and not self._has_moved:
            first, *self._held = self._held
            self._on_decision(first["key"], verdict)
        self._has_moved = False
        self.show_held(self._held)

    def _close(self) -> None:
        self.body, self._shows_held = self._tables, False
        self._show_footer()
        self._on_close()

    def _edit_filter(self) -> None:
        self._edit = urwid.Edit(("bold", "filter: "), printable(self.wanted))
        self._note = urwid.Text(EDIT_KEYS)
        self.footer = urwid.Pile([self._edit, self._note])
        self.focus_position = "footer"

    def _apply_filter(self) -> None:
        assert self._edit is not None
        text = self._edit.edit_text.strip()
        try:
            parse_filter(text, datetime.now(UTC), LIVE_NAMES)
        except FilterError as error:
            self._note.set_text(("red", printable(str(error))))
            return
        self._stop_editing()
        self.wanted, self._paused = text, False
        self._show_titles()
        self._on_filter()

    def _stop_editing(self) -> None:
        self._edit = None
        self.focus_position = "body"
        self._show_footer()


LOOK_SECONDS = 2.0  # between two looks at the upstreams
SHOW_SECONDS = 0.25  # between two changes of the list, so that a flood costs little; a person sees no faster
RETRY_SECONDS = 1.0
PATIENCE_SECONDS = 5.0  # for the state of the upstreams; then the screen shows an error

Look = Callable[[], Awaitable[list[Item]]]


class Live:
    """Asks mcpmux for the contents of the screen. `look`: returns the upstreams, as `measured` does."""

    def __init__(self, admin: AdminClient, wanted: str, look: Look, by: str = "upstream") -> None:
        self._admin, self._look = admin, look
        self.screen = TopScreen(
            admin.origin.url, wanted, self._open, self._close, self._list_again, self._decide, by
        )
        self._exchanges = Exchanges()
        self._changed = trio.Event()
        self._listing = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Ask until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._keep_on, "upstreams", self._look_on)
            self._nursery.start_soon(self._show_changes)
            while True:
                with trio.CancelScope() as self._listing:
                    await self._keep_on("exchanges", self._follow)

    async def _keep_on(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat the work, also after errors."""
        while True:
            try:
                await work()
            except McpmuxError as error:
                self.screen.tell(part, str(error))
            await trio.sleep(RETRY_SECONDS)

    async def _look_on(self) -> None:
        while True:
            with trio.move_on_after(PATIENCE_SECONDS) as scope:
                self.screen.show_upstreams(await self._look())
                self.screen.show_held((await self._admin.ask("GET", "/api/held"))["held"])
            if scope.cancelled_caught:
                raise NotDone(f"no answer within {PATIENCE_SECONDS:g} s")
            self.screen.tell("upstreams", None)
            await trio.sleep(LOOK_SECONDS)

    async def _follow(self) -> None:
        filter_ = self.screen.wanted
        query = urlencode({"filter": filter_, "limit": EXCHANGES_LIMIT})
        listed = await self._admin.ask("GET", f"/api/exchanges?{query}")
        self._exchanges.begin(listed["rows"])
        self._changed.set()
        self.screen.tell("exchanges", None)
        async with self._admin.watch_exchanges(filter_, listed["messages"]) as batches:
            async for events in batches:
                for event in events:
                    self._exchanges.change(event)
                self._changed.set()

    async def _show_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self.screen.show_exchanges(self._exchanges.newest_first())
            await trio.sleep(SHOW_SECONDS)

    def _list_again(self) -> None:
        self._exchanges.begin([])
        self._changed.set()
        self._listing.cancel()

    def _open(self, row: int) -> None:
        self._reading = trio.CancelScope()
        self._nursery.start_soon(self._read, row, self._reading)

    def _close(self) -> None:
        self._reading.cancel()

    def _decide(self, key: str, verdict: str) -> None:
        self._nursery.start_soon(self._send_decision, key, verdict)

    async def _send_decision(self, key: str, verdict: str) -> None:
        more = {"reason": "a person refused it"} if verdict == "refuse" else {}
        try:
            await self._admin.ask("POST", f"/api/held/{key}", {"verdict": verdict, **more})
        except McpmuxError as error:  # it may have ended meanwhile
            self.screen.tell("held", str(error))
        else:
            self.screen.tell("held", None)

    async def _read(self, row: int, scope: trio.CancelScope) -> None:
        lines: list[Line]
        with scope:
            try:
                _, answer = await self._admin.ask_text("GET", f"/api/exchanges/{row}")
                lines = list(exchange_lines(answer))
            except (McpmuxError, msgspec.MsgspecError) as error:
                lines = [(printable(str(error)), "red")]
            self.screen.show_lines(lines)


async def show_live(admin: AdminClient, wanted: str, look: Look, by: str) -> None:
    """Show it on the terminal until the user quits. `admin` stays open; the terminal is restored."""
    live = Live(admin, wanted, look, by)
    terminal = urwid.display.raw.Screen(bracketed_paste_mode=False, focus_reporting=False)
    if os.environ.get("NO_COLOR"):  # see https://no-color.org
        terminal.set_terminal_properties(colors=1)
    event_loop = urwid.TrioEventLoop()
    loop = urwid.MainLoop(live.screen, PALETTE, terminal, handle_mouse=False, event_loop=event_loop)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.run)
        nursery.start_soon(_interrupt)
        with loop.start():
            await event_loop.run_async()
        nursery.cancel_scope.cancel()


async def _interrupt() -> None:
    """End on SIGTERM as on Ctrl-C, so that the terminal is as it was."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            raise KeyboardInterrupt
