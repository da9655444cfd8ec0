"""`mcpmux ctl` with a running mcpmux, and what it says when there is none."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.process import free_port
from mcpmux.app.sharing import SharedPlace
from tests.cli.invoking import Invoke
from tests.process.running import Running

TOKEN = "0123456789abcdef"
SERVER = '[upstreams.{}]\ncommand = "' + sys.executable + '"\nargs = ["-m", "mcpmux.demo.clock"]\n'
REST = '[listeners]\nhttp = ["127.0.0.1:0"]\n[admin]\nport = {}\ntoken = "{}"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcpmux.toml"
    path.write_text(SERVER.format("clock") + SERVER.format("other") + REST.format(free_port(), TOKEN))
    return path


@pytest.fixture
def running(config: Path) -> Iterator[Running]:
    with Running("serve", str(config), "--no-watch") as mux:
        mux.line(containing="/mcp")
        mux.line()
        for _ in range(2):
            mux.line("stderr", containing="upstream ready")
        yield mux
        assert mux.stop() == 0, mux.stderr


def states(invoke: Invoke, config: Path) -> dict[str, str]:
    done = invoke("ctl", "status", "--json", "-c", str(config))
    assert done.exit_code == 0, done.stderr
    return {upstream["name"]: upstream["state"] for upstream in map(json.loads, done.stdout.splitlines())}


@pytest.mark.process
def test_a_running_mcpmux_is_seen_and_steered(invoke: Invoke, config: Path, running: Running) -> None:
    here = ("-c", str(config))
    assert states(invoke, config) == {"clock": "ready", "other": "ready"}
    assert invoke("ctl", "drain", "other", *here).stdout == "other: drained\n"
    table = invoke("ctl", "status", *here).stdout.splitlines()
    assert table[0].split() == [
        "NAME",
        "STATE",
        "SINCE",
        "RESTARTS",
        "SESSIONS",
        "IN",
        "FLIGHT",
        "REVISION",
        "DETAILS",
    ]
    assert table[2].split()[:2] == ["other", "drained"]
    invoke("ctl", "restart", "other", *here)
    running.line("stderr", containing="upstream ready")
    assert invoke("ctl", "disable", "other", *here).exit_code == 0
    assert states(invoke, config) == {"clock": "ready", "other": "disabled"}

    config.write_text(
        config.read_text().replace("[upstreams.other]", "[upstreams.third]")
        + "[limits]\nmax_head_bytes = 5000\n"
    )
    done = invoke("ctl", "reload", *here)
    assert done.stdout == "added: third\n"
    assert "limits.max_head_bytes" in done.stderr
    assert invoke("ctl", "reload", *here).stdout == "nothing has changed since it was last read\n"
    assert "limits.max_head_bytes" in invoke("ctl", "status", *here).stderr

    url = f"http://127.0.0.1:{config.read_text().partition('port = ')[2].partition(chr(10))[0]}/"
    config.write_text("[upstreams.clock]\ncomand = 1\n")
    broken = invoke("ctl", "reload", "--url", f"{url}?token={TOKEN}")
    checked = invoke("check", str(config))
    assert (broken.exit_code, broken.stderr) == (checked.exit_code, checked.stderr)

    for arguments, words, code in [
        (("restart", "clokc", "--url", url, "--token", TOKEN), "did you mean clock?", 2),
        (("restart", "a/b?c", "--url", url, "--token", TOKEN), "no upstream a/b?c", 2),
        (("status", "--url", url, "--token", "wrong"), "refused the token", 1),
        (("status", "--url", url), "MCPMUX_ADMIN_TOKEN", 1),
    ]:
        refused = invoke("ctl", *arguments)
        assert refused.exit_code == code
        assert words in refused.stderr


@pytest.mark.process
def test_the_token_comes_from_the_environment(
    invoke: Invoke, config: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = config.read_text().partition("port = ")[2].partition("\n")[0]
    monkeypatch.setenv("MCPMUX_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("MCPMUX_ADMIN_URL", f"http://127.0.0.1:{port}")
    assert "clock" in invoke("ctl", "status").stdout


def test_it_is_told_when_no_mcpmux_runs_there(invoke: Invoke, config: Path) -> None:
    done = invoke("ctl", "status", "-c", str(config))
    assert done.exit_code == 1
    assert "no mcpmux answers at http://127.0.0.1:" in done.stderr
    assert "is it running?" in done.stderr


def test_something_else_that_answers_is_told(invoke: Invoke, demo_url: str) -> None:
    done = invoke("ctl", "status", "--url", demo_url, "--token", TOKEN)
    assert done.exit_code == 1
    assert "is it the admin listener of mcpmux?" in done.stderr


def test_one_that_hangs_is_given_up(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpmux.cli.admin.client.PATIENCE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        done = invoke("ctl", "status", "--url", url, "--token", TOKEN)
    assert done.exit_code == 1
    assert f"{url} does not answer within 0.3 s" in done.stderr


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_it_is_asked_without_a_proxy(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.2:{gone.getsockname()[1]}"
    done = invoke("ctl", "status", "--url", url, "--token", TOKEN)
    assert f"cannot connect to {url.removeprefix('http://')}: connection refused" in done.stderr


@pytest.mark.parametrize(
    ("admin", "words"),
    [
        ("", "there is no admin listener"),
        ("[admin]\nport = 0\n", "has port 0; use --url"),
        ("[admin]\nport = 8490\n", "has no `token`"),
    ],
)
def test_a_file_that_does_not_say_where_is_told(
    invoke: Invoke, tmp_path: Path, admin: str, words: str
) -> None:
    path = tmp_path / "mcpmux.toml"
    path.write_text(SERVER.format("clock") + admin)
    done = invoke("ctl", "reload", "-c", str(path))
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.process
def test_one_of_the_same_user_is_found_by_its_file(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "mcpmux.toml"
    path.write_text(SERVER.format("clock") + "[admin]\nport = 0\n")
    monkeypatch.chdir(tmp_path)  # without a capture
    with Running("serve", str(path), "--http", "127.0.0.1:0", "--no-watch") as mux:
        url = mux.line(containing="/mcp").strip()
        mux.line("stderr", containing="upstream ready")
        assert states(invoke, path) == {"clock": "ready"}
        with (
            Running("traffic", "tail") as tail,
            Running("ping", url, "--count=100", "--interval=0.1") as ping,
        ):
            assert "server/discover" in tail.line()
            assert (tail.stop(), ping.stop()) == (0, 130)
        assert mux.stop() == 0
    assert "has port 0" in invoke("ctl", "status", "-c", str(path)).stderr
    with Running("serve", str(path), "--http", "127.0.0.1:0", "--no-watch") as killed:
        killed.line(containing="token=")
        assert invoke("ctl", "status").exit_code == 0
    # A process that is killed leaves the file, and another program may get its port.
    assert SharedPlace.of(path).admin.exists()
    assert "has port 0" in invoke("ctl", "status", "-c", str(path)).stderr


def test_one_has_to_say_which_mcpmux_is_meant(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # without another mcpmux of this user
    done = invoke("ctl", "status")
    assert done.exit_code == 2
    assert "--config" in done.stderr
