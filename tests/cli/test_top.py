"""`mcpmux top` with a running mcpmux: as a table, as a screen in this process, and on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

import pytest
import trio
import urwid
from urwid.vterm import TermCanvas

from benchmarks.process import free_port
from mcpmux.cli.admin.client import AdminClient
from mcpmux.cli.top.command import look_at
from mcpmux.cli.top.screen import Live
from mcpmux.config import Intercept
from tests.cli.invoking import Invoke
from tests.cli.test_ctl import TOKEN
from tests.process.running import COMMAND, WAIT_SECONDS, Running
from tests.runtime.test_interception import DELETE, disk
from tests.traffic.admin_world import Listening, Traffic, listening


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcpmux.toml"
    path.write_text(
        f'[upstreams.notes]\ncommand = "{sys.executable}"\nargs = ["-m", "mcpmux.demo.notes"]\n'
        f'[listeners]\nhttp = ["127.0.0.1:0"]\n[admin]\nport = {free_port()}\ntoken = "{TOKEN}"\n'
    )
    return path


@contextmanager
def running(config: Path) -> Iterator[str]:
    """Run an mcpmux until its server is ready, and yield its URL."""
    with Running("serve", str(config), "--no-watch") as mux:
        url = mux.line(containing="/mcp").strip()
        mux.line("stderr", containing="upstream ready")
        yield url
        assert mux.stop() == 0, mux.stderr


# As a table, and what is wrong with a command line.


@pytest.mark.parametrize("options", [["--once"], []], ids=["once", "no terminal"])
async def test_a_table_is_printed_for_scripts(options: list[str], invoke: Invoke) -> None:
    async with listening() as here:
        here.traffic.exchange(ms=20.0)
        here.traffic.exchange(ms=20.0, answer={"error": {"code": -32603, "message": "no"}})
        place = ["--url", here.url, "--token", here.token]
        done = await trio.to_thread.run_sync(lambda: invoke("top", *options, *place))
    assert (done.exit_code, done.stderr) == (0, "")
    headings, clients, docs, search = done.stdout.splitlines()
    assert headings.split()[:6] == ["NAME", "STATE", "RATE", "P50", "P95", "ERRORS"]
    assert clients.split()[:9] == ["(clients)", "-", "0.0333/s", "20.0", "ms", "20.0", "ms", "1", "50.0%"]
    assert docs.split()[:4] == ["docs", "ready", "0.0333/s", "16.0"]
    assert search.endswith("nobody there")


async def test_rows_are_printed_as_json(invoke: Invoke) -> None:
    async with listening() as here:
        here.traffic.exchange(ms=20.0)
        place = ["--url", here.url, "--token", here.token]
        done = await trio.to_thread.run_sync(lambda: invoke("top", "--json", *place))
    clients, docs, search = map(json.loads, done.stdout.splitlines())
    assert (clients["name"], clients["p50"]) == ("(clients)", 20.0)
    assert (docs["state"], search["trouble"]) == ("ready", "nobody there")


async def test_a_table_of_names_begins_with_the_longest_call(invoke: Invoke) -> None:
    async with listening() as here:
        here.traffic.exchange(ms=20.0)
        here.traffic.exchange("prompts/get", {"name": "docs__ask"}, ms=40.0)
        place = ["--url", here.url, "--token", here.token]
        done = await trio.to_thread.run_sync(lambda: invoke("top", "--once", "--by", "name", *place))
        world = World(here, "", by="name")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run)
            await world.see("docs__ask  prompts/get")
            world.press("tab", "enter")
            await world.see("Esc back", "prompts/get", '"name": "docs__ask"')
            nursery.cancel_scope.cancel()
    assert (done.exit_code, done.stderr) == (0, "")
    headings, ask, tool = done.stdout.splitlines()
    assert headings.split() == ["NAME", "METHOD", "RATE", "P50", "P95", "LONGEST", "ERRORS"]
    assert ask.split()[:4] == ["docs__ask", "prompts/get", "0.0167/s", "40.0"]
    assert tool.split()[:2] == ["docs__find", "tools/call"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--url", "http://127.0.0.1:9", "--token", "x"], 1, "no mcpmux answers at http://127.0.0.1:9"),
        (["--url", "http://127.0.0.1:9", "status=q"], 2, "expected one of ok, error"),
        (["--url", "http://127.0.0.1:9", "status=ok"], 2, "a table shows upstreams"),
        ([], 2, "no mcpmux given"),
    ],
)
def test_what_cannot_be_shown_is_told(
    args: list[str], code: int, words: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # without another mcpmux of this user
    done = invoke("top", *args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr


# Live, in this process.


SIZE = (130, 30)


class World:
    """A screen that is kept up to date, without a terminal."""

    def __init__(self, here: Listening, wanted: str, by: str = "upstream") -> None:
        admin = AdminClient.at(here.url, here.token)
        self.traffic = here.traffic
        self._live = Live(admin, wanted, partial(look_at, admin, by), by)
        self.run = self._live.run

    def press(self, *keys: str) -> None:
        for key in keys:
            self._live.screen.keypress(SIZE, key)

    async def see(self, *texts: str, gone: str = "\0") -> str:
        """Wait until all `texts` are on the screen and `gone` is not, and return the screen's text."""
        with trio.fail_after(WAIT_SECONDS):
            while True:
                canvas = self._live.screen.render(SIZE, focus=True)
                shown = "\n".join(line.decode().rstrip() for line in canvas.text)
                if all(text in shown for text in texts) and gone not in shown:
                    return shown
                await trio.sleep(0.02)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening() as here, trio.open_nursery() as nursery:
        world = World(here, "")
        nursery.start_soon(world.run)
        yield world
        nursery.cancel_scope.cancel()


async def test_upstreams_and_exchanges_are_shown_as_they_happen(world: World) -> None:
    await world.see("docs      ready", "search    down", "nobody there")
    world.traffic.exchange(params={"name": "docs__first"})
    await world.see("tools/call docs__first")
    request, _ = world.traffic.begin("tools/list", {})
    await world.see("tools/call docs__first", "open    ", "tools/list")
    world.traffic.message_passed(world.traffic.client, "out", {"id": request, "result": {"tools": []}})
    await world.see("tools/list", gone="open    ")


async def test_an_exchange_is_opened_with_both_legs(world: World) -> None:
    world.traffic.exchange(params={"name": "docs__find"}, inside={"name": "find"})
    await world.see("docs__find")
    world.press("enter")
    shown = await world.see("c1 →", "→ docs", '"name": "docs__find"', '"name": "find"')
    assert shown.index("c1 →") < shown.index("→ docs")
    world.press("end")
    await world.see("c1 ←", "tools/call docs__find  ok  12.0 ms", '"text": "found"')
    world.press("esc")
    await world.see("Exchanges")


async def test_another_filter_shows_other_exchanges(world: World) -> None:
    world.traffic.exchange(upstream="docs")
    world.traffic.exchange(upstream="search")
    await world.see("docs__find", "search__find")
    world.press("/", *"upstream=docs", "enter")
    await world.see("docs__find", gone="search__find")
    world.traffic.exchange(upstream="search")
    world.traffic.exchange(params={"name": "docs__last"})
    assert "search__find" not in await world.see("docs__last")
    world.press("/", *["backspace"] * len("upstream=docs"), "enter")
    await world.see("docs__find", "search__find", "docs__last")


async def test_an_exchange_that_is_gone_is_told() -> None:
    async with listening(Traffic(rows=1)) as here, trio.open_nursery() as nursery:
        world = World(here, "status=ok")
        nursery.start_soon(world.run)
        here.traffic.exchange()
        await world.see("docs__find")
        world.press("p")
        here.traffic.exchange()
        world.press("enter")
        await world.see("it is not here any more")
        nursery.cancel_scope.cancel()


async def test_a_held_call_is_let_go_by_a_key() -> None:
    settings = (Intercept(builtin="hold", methods=("tools/call",)),)
    async with (
        listening(servers={"x": disk()}, intercept=settings) as here,
        trio.open_nursery() as nursery,
    ):
        world, client = World(here, ""), here.world.client()
        nursery.start_soon(world.run)
        for key, member in (("a", "result"), ("r", "error")):
            request_id = await client.start("tools/call", DELETE)
            await world.see("1 held, h shows them")
            world.press("h")
            await world.see("x__delete", "then it is refused")
            world.press(key)
            assert member in await client.answer(request_id)
            world.press("esc")
        nursery.cancel_scope.cancel()


# On a terminal.

ROWS, COLUMNS = 24, 80


class Terminal:
    """`mcpmux top` on a new terminal, whose screen can be read."""

    def __init__(self, config: Path, **environment: str) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", **environment}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execve(COMMAND[0], [*COMMAND, "top", "-c", str(config)], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self._terminal)
        self.written = b""
        self._canvas = TermCanvas(COLUMNS, ROWS, urwid.Terminal(["true"]))

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def see(self, shows: Callable[[str], bool]) -> None:
        """Read until the screen shows something."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not shows(self._shown()):
            ready, _, _ = select.select([self._terminal], [], [], max(0, deadline - time.monotonic()))
            assert ready, self._shown()
            self._read()

    def _shown(self) -> str:
        lines = (b"".join(text for _, _, text in row) for row in self._canvas.term)
        return "\n".join(line.decode(errors="replace") for line in lines)

    def _read(self) -> None:
        chunk = os.read(self._terminal, 65536)
        self.written += chunk
        self._canvas.addstr(chunk)

    def end(self) -> int:
        """Wait for its end: the exit code. The terminal has to be as it was."""
        with suppress(OSError):  # EIO: no process has it open any more
            self.see(lambda _: False)
        assert termios.tcgetattr(self._terminal) == self.before
        for begun, ended in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):
            assert self.written.rindex(ended) > self.written.rindex(begun)
        return os.waitstatus_to_exitcode(self._wait())

    def _wait(self) -> int:
        pid, self.pid = self.pid, 0
        os.close(self._terminal)
        return os.waitpid(pid, 0)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()


@pytest.mark.process
def test_it_is_used_on_a_terminal(config: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    with ExitStack() as stack:
        with running(config) as url:
            invoke("read", url, "notes+note:///welcome")
            top = stack.enter_context(Terminal(config))
            top.see(lambda shown: "notes+note:///w" in shown and "notes     ready" in shown)
            assert b"\x1b[0;32" in top.written  # green
            top.press(b"\r")
            top.see(lambda shown: '"uri": "notes+note:///welcome"' in shown)
            top.press(b"\x1b")
            top.see(lambda shown: "Tab table" in shown)
        top.see(lambda shown: "trying again" in shown and "notes     ready" in shown)
        url = stack.enter_context(running(config))
        top.see(lambda shown: "trying again" not in shown)
        invoke("read", url, "notes+note:///welcome")
        top.see(lambda shown: "resources/read" in shown)
        top.press(b"q")
        assert top.end() == 0
        plain = stack.enter_context(Terminal(config, NO_COLOR="1"))
        killed = stack.enter_context(Terminal(config))
        plain.see(lambda shown: "resources/read" in shown and "notes     ready" in shown)
        plain.press(b"\x03")
        assert plain.end() == 0
        assert b"\x1b[0;3" not in plain.written.replace(b"\x1b[0;39", b"")
        killed.see(lambda shown: "notes     ready" in shown)
        os.kill(killed.pid, signal.SIGTERM)
        assert killed.end() == 0
