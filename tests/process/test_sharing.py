"""Several host apps start mcpmux from one file, and share one process of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mcpmux.app.sharing import SharedPlace
from tests.process.running import COMMAND, WAIT_SECONDS, is_alive, wait_until
from tests.process.test_workers import COUNTING, META

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")


class User:
    """A user with a configuration file, whose host apps start mcpmux."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self.folder, self.file = folder, folder / "mux.toml"
        self.environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": runtime}
        self.apps: list[subprocess.Popen[str]] = []
        server = folder / "server.py"
        server.write_text(COUNTING)
        args = json.dumps([str(server), str(folder)])
        self.file.write_text(
            f'[upstreams.counting]\ncommand = "{sys.executable}"\nargs = {args}\n'
            "[listeners]\nstdio = true\nshare = true\n[admin]\nport = 0\n"
            '[views.none]\nexclude = [{ upstream = "counting" }]\n'
        )

    def open(self, *options: str, **environ: str) -> subprocess.Popen[str]:
        """Start mcpmux as a host app does."""
        app = subprocess.Popen(
            [*COMMAND, "serve", str(self.file), "--stdio", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environ, **environ},
        )
        self.apps.append(app)
        return app

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=WAIT_SECONDS,
            check=False,
        )

    def shared(self) -> list[dict[str, Any]]:
        """Return what `ps` lists."""
        return [json.loads(line) for line in self.run("ps", "--json").stdout.splitlines()]

    def count(self, what: str) -> int:
        return len(list(self.folder.glob(f"{what}-*")))


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    runtime = tempfile.mkdtemp(prefix="mux", dir="/tmp")  # the path of a socket must be short
    user = User(tmp_path, runtime)
    try:
        yield user
    finally:
        for app in user.apps:
            app.kill()
            app.communicate(timeout=WAIT_SECONDS)
        for mux in user.shared():
            os.kill(mux["pid"], signal.SIGKILL)
        shutil.rmtree(runtime)


def call(app: subprocess.Popen[str], method: str = "tools/list", **params: Any) -> dict[str, Any]:
    """Send a request of 2026-07-28, and return its result."""
    assert app.stdin is not None
    assert app.stdout is not None
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
    app.stdin.write(json.dumps(message) + "\n")
    app.stdin.flush()
    answer = json.loads(app.stdout.readline())
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


def test_host_apps_share_servers_and_one_that_is_killed_harms_no_other(user: User) -> None:
    apps = [user.open() for _ in range(3)]  # at the same time: only one may start the shared process
    assert [len(call(app)["tools"]) for app in apps] == [4, 4, 4]
    (mux,) = user.shared()
    assert (mux["file"], mux["clients"]) == (str(user.file), 3)
    assert user.count("started") == 1
    apps[0].kill()
    wait_until(lambda: user.shared()[0]["clients"] == 2, "the killed one is gone")
    texts = [call(app, "tools/call", name="count", arguments={})["content"][0]["text"] for app in apps[1:]]
    assert texts == ["1", "2"]
    apps[1].communicate(timeout=WAIT_SECONDS)  # closes its input
    assert apps[1].returncode == 0
    assert len(call(apps[2])["tools"]) == 4
    assert user.count("started") == 1


def test_a_link_that_leads_to_another_file_is_followed(user: User) -> None:
    """Paths in the file are relative to the folder of the link."""
    (user.folder / "links").mkdir()
    (user.folder / "links" / ".env").write_text("LESS=count\n")
    text = 'env_file = ".env"\n' + user.file.read_text()
    user.file.write_text(text)
    other = user.folder / "other.toml"
    other.write_text(text.replace("[listeners]", 'exclude_tools = ["${LESS}"]\n[listeners]'))
    user.file = user.folder / "links" / "mux.toml"
    user.file.symlink_to("../mux.toml")
    app = user.open()
    assert len(call(app)["tools"]) == 4
    next_link = user.file.with_suffix(".next")
    next_link.symlink_to("../other.toml")
    next_link.replace(user.file)
    wait_until(lambda: len(call(app)["tools"]) == 3, "the other file is not read")
    assert user.count("started") == 1


def test_each_host_app_has_its_view(user: User) -> None:
    everything, nothing = user.open(), user.open("--view", "none")
    assert len(call(everything)["tools"]) == 4
    assert call(nothing)["tools"] == []
    assert len(user.shared()) == 1


def test_it_is_stopped_and_started_anew(user: User) -> None:
    app = user.open()
    call(app)
    assert "stopped, with 1 clients" in user.run("stop", str(user.file)).stderr
    _, stderr = app.communicate(timeout=WAIT_SECONDS)
    assert (app.returncode, "the shared mcpmux has ended" in stderr) == (1, True)
    assert user.run("stop", str(user.file)).returncode == 1
    assert len(call(user.open())["tools"]) == 4


def test_one_that_was_killed_is_replaced(user: User) -> None:
    call(user.open())
    (mux,) = user.shared()
    os.kill(mux["pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(mux["pid"]), "it is dead")
    assert len(call(user.open())["tools"]) == 4
    assert user.shared()[0]["pid"] != mux["pid"]


def test_commands_find_it_without_a_url_or_token(user: User) -> None:
    call(user.open())
    listed = user.run("ctl", "status", "--json", "-c", str(user.file))
    assert json.loads(listed.stdout)["name"] == "counting", listed.stderr


def test_other_values_of_variables_are_reported(user: User) -> None:
    user.file.write_text(user.file.read_text() + '[upstreams.counting.env]\nGH = "${GH}"\n')
    call(user.open(GH="one"))
    other = user.open(GH="two")
    call(other)
    _, stderr = other.communicate(timeout=WAIT_SECONDS)
    assert "other values" in stderr
    assert "GH" in stderr
    assert "two" not in stderr


def test_a_file_with_mistakes_is_refused_as_without_sharing(user: User) -> None:
    user.file.write_text(user.file.read_text() + "[upstreams.broken]\n")
    app = user.open()
    _, stderr = app.communicate(timeout=WAIT_SECONDS)
    assert app.returncode == 2
    assert "upstreams.broken" in stderr
    assert user.shared() == []


def test_a_command_line_leads_there_too(user: User) -> None:
    command = shlex.join([*COMMAND, "serve", str(user.file), "--stdio"])
    for expected in ("1\n", "2\n"):
        assert user.run("call", command, "count").stdout == expected


@pytest.mark.parametrize("connections", [1, 2])  # that come before its end
def test_a_host_app_that_comes_at_the_last_moment_starts_it_anew(
    user: User, monkeypatch: pytest.MonkeyPatch, connections: int
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, user.environ[name])
    path = SharedPlace.of(user.file).socket
    with socket.socket(socket.AF_UNIX) as ending:
        ending.bind(str(path))
        ending.listen()

        def end() -> None:
            for _ in range(connections):  # by the first the host app has seen that a shared one is there
                ending.accept()[0].close()
            ending.close()

        thread = Thread(target=end)
        thread.start()
        assert call(user.open())["tools"]
        thread.join(WAIT_SECONDS)
    assert len(user.shared()) == 1
