"""Keeps the screen of `mcpmux top` up to date, until its user leaves it.

Promises: a mcpmux that goes away is told and asked again until it is back; what was seen last stays in sight.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

import msgspec
import trio
import urwid

from mcpmux.cli.admin_client import AdminClient, NotDone
from mcpmux.cli.top_model import EXCHANGES_LIMIT, Exchanges, Item, Line, exchange_lines
from mcpmux.cli.top_screen import PALETTE, TopScreen
from mcpmux.errors import McpmuxError
from mcpmux.printable import printable

LOOK_SECONDS = 2.0  # between two looks at the upstreams
SHOW_SECONDS = 0.25  # between two changes of the list, so that a flood costs little; a person sees no faster
RETRY_SECONDS = 1.0
PATIENCE_SECONDS = 5.0  # for the state of the upstreams; more is told

Look = Callable[[], Awaitable[list[Item]]]


class Live:
    """Asks mcpmux for what the screen shows. `look`: returns the upstreams, as `measured` does."""

    def __init__(self, admin: AdminClient, wanted: str, look: Look) -> None:
        self._admin, self._look = admin, look
        self.screen = TopScreen(admin.origin.url, wanted, self._open, self._close, self._list_again)
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
        """Do it again and again, whatever goes wrong on the way."""
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
        async with self._admin.watch_exchanges(filter_, listed["messages"]) as events:
            async for event in events:
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

    async def _read(self, row: int, scope: trio.CancelScope) -> None:
        lines: list[Line]
        with scope:
            try:
                _, answer = await self._admin.ask_text("GET", f"/api/exchanges/{row}")
                lines = list(exchange_lines(answer))
            except (McpmuxError, msgspec.MsgspecError) as error:
                lines = [(printable(str(error)), "red")]
            self.screen.show_lines(lines)


async def show_live(admin: AdminClient, wanted: str, look: Look) -> None:
    """Show it on the terminal until the user quits. Closes nothing of `admin`; the terminal is as it was."""
    live = Live(admin, wanted, look)
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
