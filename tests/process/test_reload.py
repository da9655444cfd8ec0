"""A configuration that changes under a running `mcpmux serve`: real files, real signals, real traffic."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.invoking import Invoke
from tests.peers.revision import MODERN, make_fields, make_request
from tests.process.running import COMMAND, WAIT_SECONDS, Running, demo_command, is_alive, wait_until

URI = "clock+clock:///utc"


def table(name: str, command: str, **settings: Any) -> str:
    program, *args = shlex.split(command)
    lines = [f"[upstreams.{name}]", f"command = {json.dumps(program)}", f"args = {json.dumps(args)}"]
    return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]) + "\n"


class File:
    """A configuration file with the clock, which never changes, and others that do."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "with a space" / "mcpmux.toml"
        self.path.parent.mkdir()
        self.pids = {name: folder / f"{name}.pid" for name in ("clock", "library", "notes")}
        self.write(self.table("notes"))

    def table(self, name: str, **settings: Any) -> str:
        return table(name, demo_command(name, self.pids[name]), **settings)

    def text(self, *tables: str) -> str:
        return "".join([self.table("clock"), *tables, '[listeners]\nhttp = ["127.0.0.1:0"]\n'])

    def write(self, *tables: str) -> None:
        """Write the file in place, as some editors do."""
        self.path.write_text(self.text(*tables))

    def replace(self, *tables: str) -> None:
        """Replace the file by another one that is renamed, as other editors do."""
        other = self.path.with_suffix(".new")
        other.write_text(self.text(*tables))
        other.replace(self.path)

    def pid(self, name: str) -> int:
        return int(self.pids[name].read_text())


def read(connection: HTTPConnection, path: str) -> Any:
    message = make_request("resources/read", {"uri": URI})
    connection.request("POST", path, json.dumps(message), make_fields(MODERN, message))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@contextmanager
def load(url: str, clients: int = 4) -> Iterator[Counter[str]]:
    """Run clients that read the clock all the time. Yield the counts of good answers and of each failure."""
    outcomes: Counter[str] = Counter()
    over = threading.Event()
    parts = urlsplit(url)

    def client() -> None:
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)
        while not over.is_set():
            try:
                status, answer = read(connection, parts.path)
            except OSError as error:
                outcomes[repr(error)] += 1
                return
            good = status == 200 and answer.get("result", {}).get("contents")
            outcomes["good" if good else json.dumps(answer)] += 1
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)


def test_only_changed_servers_restart_and_no_other_exchange_is_lost(tmp_path: Path, invoke: Invoke) -> None:
    file = File(tmp_path)
    with Running("serve", str(file.path)) as mux:
        url = mux.line().strip()
        for _ in range(2):
            mux.line("stderr", containing="upstream ready")
        clock, notes = file.pid("clock"), file.pid("notes")
        with load(url) as outcomes:
            file.write(file.table("notes"), file.table("library"))
            mux.line("stderr", containing="added=['library']")
            mux.line("stderr", containing="upstream ready")
            assert "library__" in invoke("ls", url, "tools").stdout

            file.replace(file.table("notes", session="per-client"), file.table("library", list_timeout=3))
            line = mux.line("stderr", containing="configuration reloaded")
            assert "adjusted=['library']" in line
            assert "restarted=['notes']" in line
            mux.line("stderr", containing="upstream ready")
            assert not is_alive(notes)
            library = file.pid("library")

            file.path.write_text(file.text(file.table("notes")) + "[upstreams.broken]\ncomand = 1\n")
            mistakes = invoke("check", str(file.path)).stderr.splitlines()
            assert "comand" in mistakes[-1]
            for mistake in mistakes[1:] or [mistakes[0].removeprefix("Error: ")]:
                assert "not reloaded" in mux.line("stderr", containing=mistake.strip())
            assert is_alive(library)

            file.path.unlink()
            mux.send_signal(signal.SIGHUP)
            assert "No such file" in mux.line("stderr", containing="not reloaded")

            file.replace(file.table("notes", session="per-client"))
            mux.line("stderr", containing="removed=['library']")
            count = outcomes["good"]
            mux.send_signal(signal.SIGHUP)
            mux.line("stderr", containing="configuration reloaded")
            assert "library__" not in invoke("ls", url, "tools").stdout
        assert set(outcomes) == {"good"}
        assert outcomes["good"] > count > 0
        assert file.pid("clock") == clock
        assert is_alive(clock)
        assert mux.stop() == 0, mux.stderr
    assert not any(is_alive(pid) for pid in (clock, library, file.pid("notes")))


def test_without_watching_the_file_only_a_signal_counts(tmp_path: Path) -> None:
    file = File(tmp_path)
    with Running("serve", str(file.path), "--no-watch") as mux:
        mux.line()
        for _ in range(2):
            mux.line("stderr", containing="upstream ready")
        file.write()
        with file.path.open("a") as more:
            more.write('[logging]\nlevel = "debug"\n')
        mux.send_signal(signal.SIGHUP)
        assert "SIGHUP" in mux.line("stderr", containing="reading the configuration")
        line = mux.line("stderr", containing="configuration reloaded")
        assert "removed=['notes']" in line
        assert "logging.level" in line
        assert mux.stop() == 0, mux.stderr


def test_redaction_and_log_level_change_while_it_runs(tmp_path: Path) -> None:
    file = File(tmp_path)
    talker = "echo employee-4711 >&2; exec sleep 60"
    with Running("serve", str(file.path)) as mux:
        mux.line()
        rules = "[redaction.patterns]\nnumber = 'employee-[0-9]+'\n"
        file.path.write_text(file.text(table("talker", shlex.join(["sh", "-c", talker]))) + rules)
        line = mux.line("stderr", containing="upstream says")
        assert "4711" not in line
        assert "[redacted: number]" in line
        assert mux.stop() == 0, mux.stderr


@pytest.fixture
def _hears_hangups() -> Iterator[None]:
    """Let child processes handle SIGHUP, even if the tests were started with nohup, which ignores it."""
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, handler)


@pytest.mark.usefixtures("_hears_hangups")
def test_a_configuration_from_standard_input_is_not_read_again(tmp_path: Path) -> None:
    with Running("serve", "-", stdin=File(tmp_path).text().encode()) as mux:
        mux.line()
        mux.send_signal(signal.SIGHUP)
        assert mux.wait() == -signal.SIGHUP


@pytest.mark.parametrize("nohup", [False, True])
def test_closing_the_terminal_does_not_reload_the_file(nohup: bool, tmp_path: Path) -> None:
    """It stops, unless it was started with nohup: then it goes on, and the next signal is for the file."""
    file, log = File(tmp_path), tmp_path / "log"
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        if nohup:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        os.execv(COMMAND[0], [*COMMAND, "serve", str(file.path), "--no-watch"])
    try:
        shown = b""
        while b"/mcp" not in shown:
            shown += os.read(terminal, 4096)
    finally:
        os.close(terminal)
    if nohup:

        def is_reloaded() -> bool:
            os.kill(pid, signal.SIGHUP)
            return "configuration reloaded" in log.read_text()

        wait_until(is_reloaded, "it is not there, or does not read the file again")
        os.kill(pid, signal.SIGTERM)
    for _ in range(int(WAIT_SECONDS * 10)):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        threading.Event().wait(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise AssertionError("it goes on without a terminal")
    assert os.waitstatus_to_exitcode(status) == 0
