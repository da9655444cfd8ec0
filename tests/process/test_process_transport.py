from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import ConnectFailed, PeerFinished, TransportClosed
from mcpmux.transports.process import (
    FIRST_LINES,
    LAST_LINES,
    OWN_SECRETS,
    SHOWN_CHARACTERS,
    ChildProcess,
    LastWords,
    StopLadder,
    open_process,
)
from tests.process.running import ended, is_gone

PATIENT = StopLadder(close_seconds=5, terminate_seconds=5)
HASTY = StopLadder(close_seconds=0.05, terminate_seconds=0.05)
LIMIT = 100_000

ECHO = """
    import sys
    for line in sys.stdin:
        print(line, end="", flush=True)
"""
STUBBORN = """
    import signal, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        signal.pause()
"""
PARENT = """
    import subprocess, sys
    child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[ChildProcess]]:
    """Run a Python script as a child, within five seconds."""

    @asynccontextmanager
    async def run(
        script: str, *args: str, stop: StopLadder = PATIENT, **options: Any
    ) -> AsyncIterator[ChildProcess]:
        path = tmp_path / "child.py"
        path.write_text(dedent(script))
        options = {"env": {}, "cwd": None, "on_stderr_line": print, "max_message_bytes": LIMIT} | options
        with trio.fail_after(60):
            async with open_process(sys.executable, [str(path), *args], stop=stop, **options) as child:
                yield child

    return run


async def test_messages_go_back_and_forth_and_the_child_is_gone_afterwards(run):
    async with run(ECHO) as child:
        await child.send(b"hello")
        assert await child.receive() == b"hello"
        assert child.returncode is None
    assert child.returncode == 0
    assert is_gone(child.pid)


async def test_ten_thousand_messages_return_in_order(run):
    messages = [b"%d" % number for number in range(10_000)]

    async def send_all(child: ChildProcess) -> None:
        for message in messages:
            await child.send(message)

    async with run(ECHO) as child, trio.open_nursery() as nursery:
        nursery.start_soon(send_all, child)
        assert [await child.receive() for _ in messages] == messages


async def test_garbage_on_standard_output_is_handed_over_line_by_line(run):
    async with run(r"import sys; sys.stdout.buffer.write(b'\xff\x00\n\n  garbage\r\n{}\n')") as child:
        assert [await child.receive() for _ in range(3)] == [b"\xff\x00", b"  garbage", b"{}"]


@pytest.mark.parametrize(
    ("script", "words", "in_order"),
    [
        ("pass", "^the process exited with status 0$", True),
        ("raise SystemExit(3)", "^the process exited with status 3$", False),
        ("import os; os.kill(os.getpid(), 9)", r"ended by signal 9 \(Killed\)", False),
    ],
)
async def test_the_end_of_a_child_tells_how_it_ended(run, script: str, words: str, in_order: bool):
    async with run(script) as child:
        with pytest.raises(TransportClosed, match=words) as end:
            await child.receive()
    assert isinstance(end.value, PeerFinished) is in_order


@given(st.lists(st.text(max_size=400) | st.just("")))
def test_last_words_have_the_first_and_the_last_lines_within_bounds(lines: list[str]):
    words = LastWords()
    for line in lines:
        words.add(line)
    spoken = [line.strip() for line in lines if line.strip()]
    for line in [*spoken[:FIRST_LINES], *spoken[-LAST_LINES:]]:
        assert line[:SHOWN_CHARACTERS] in str(words)
    assert len(str(words)) <= (FIRST_LINES + LAST_LINES + 1) * (SHOWN_CHARACTERS + 4)
    between = len(spoken) - FIRST_LINES - LAST_LINES
    assert (f" | … {between} more … | " in str(words)) == (between > 0)


async def test_sending_to_a_child_that_has_gone_is_refused(run):
    async with run("") as child:
        assert await child.wait() == 0
        with pytest.raises(TransportClosed):
            while True:
                await child.send(b"anybody?")
                await trio.lowlevel.checkpoint()


async def test_a_child_that_ignores_eof_and_sigterm_is_killed(run):
    async with run(STUBBORN, stop=HASTY) as child:
        assert await child.receive() == b"ready"
    assert child.returncode == -signal.SIGKILL
    assert is_gone(child.pid)


async def test_a_child_that_ignores_eof_is_terminated(run):
    stop = StopLadder(close_seconds=0.05, terminate_seconds=5)
    script = "import signal; print('ready', flush=True); signal.pause()"
    async with run(script, stop=stop) as child:
        assert await child.receive() == b"ready"
    assert child.returncode == -signal.SIGTERM


async def test_a_child_that_never_reads_is_stopped_too(run):
    async with run(STUBBORN, stop=HASTY) as child:
        for _ in range(3):
            await child.send(b"x" * 100_000)
    assert is_gone(child.pid)


async def test_a_child_may_say_a_lot_while_it_stops(run):
    lines: list[str] = []
    script = """
        import sys
        sys.stdin.read()
        sys.stdout.write("x" * 1_000_000)
        sys.stderr.write("y\\n" * 100_000)
        raise SystemExit(4)
    """
    async with run(script, on_stderr_line=lines.append) as child:
        pass
    assert child.returncode == 4
    assert lines == ["y"] * 100_000


async def test_a_cancelled_block_stops_its_child_just_as_well(run):
    lines: list[str] = []
    script = """
        import sys
        print("ready", flush=True)
        sys.stdin.read()
        sys.stderr.write("y\\n" * 100_000)
    """
    with trio.CancelScope() as scope:
        async with run(script, on_stderr_line=lines.append) as child:
            assert await child.receive() == b"ready"
            scope.cancel()
            await child.receive()
    assert scope.cancelled_caught
    assert child.returncode == 0
    assert len(lines) == 100_000


async def test_an_error_in_the_block_stops_the_child(run):
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with run(ECHO) as child:
            _ = 1 / 0
    assert is_gone(child.pid)


@pytest.mark.parametrize("stop", [PATIENT, HASTY])
async def test_a_grandchild_does_not_stay_behind(run, stop: StopLadder):
    async with run(PARENT, stop=stop) as child:
        grandchild = int(await child.receive())
        assert not is_gone(grandchild)
    assert is_gone(child.pid)
    with trio.fail_after(30):  # SIGKILL has been sent; the kernel may need a moment
        await ended(grandchild)


async def test_a_grandchild_gets_the_time_to_stop_by_itself(run, tmp_path):
    farewell = tmp_path / "farewell"
    grandchild = f"trap 'echo bye > {farewell}; exit' TERM; echo ready; while :; do sleep 0.01; done"
    script = f"""
        import subprocess, sys
        subprocess.Popen(["sh", "-c", {grandchild!r}])
        sys.stdin.read()
    """
    async with run(script) as child:
        assert await child.receive() == b"ready"
    assert farewell.read_text() == "bye\n"


async def test_a_megabyte_on_standard_error_is_drained_and_bounded_by_line(run):
    lines: list[str] = []
    script = r"""
        import sys
        sys.stderr.buffer.write(b"first\n" + b"x" * 1_000_000 + b"\nbad \xff byte\nlast")
        sys.stderr.flush()
        print("done", flush=True)
    """
    async with run(script, on_stderr_line=lines.append) as child:
        assert await child.receive() == b"done"
    assert lines == ["first", "[a line of 1000000 bytes was left out]", "bad \ufffd byte", "last"]


async def test_the_child_gets_only_what_it_is_to_inherit(run, monkeypatch):
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("SECRET", "no")
    script = """
        import os
        print(os.environ.get("INHERITED"), os.environ.get("SECRET"), os.environ["MORE"])
    """
    async with run(script, env={"MORE": "more"}, inherited=("INHERITED", "NOT_SET_9")) as child:
        assert await child.receive() == b"yes None more"


async def test_a_program_without_a_path_to_look_in_is_explained(monkeypatch):
    with pytest.raises(ConnectFailed, match="name PATH in `inherit_env`"):
        async with open_process(
            "no-such-program",
            (),
            {},
            None,
            stop=StopLadder(1, 1),
            on_stderr_line=print,
            max_message_bytes=LIMIT,
            inherited=("HOME",),
        ):
            pytest.fail("it cannot be started")


async def test_the_child_has_our_environment_with_overrides_and_its_own_session(run, tmp_path, monkeypatch):
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("CHANGED", "before")
    for secret in OWN_SECRETS:
        monkeypatch.setenv(secret, "ours")
    script = """
        import os
        print(os.environ["INHERITED"], os.environ["CHANGED"], os.getcwd(), os.getsid(0) == os.getpid())
        assert not {"MCPMUX_TOKEN", "MCPMUX_ADMIN_TOKEN", "MCPMUX_AUDIT_KEY"} & os.environ.keys()
    """
    async with run(script, env={"CHANGED": "after"}, cwd=tmp_path) as child:
        assert await child.receive() == f"yes after {tmp_path} True".encode()


async def test_a_hundred_children_start_and_stop_at_once():
    async def converse(number: int) -> None:
        async with open_process(
            "cat", [], {}, None, stop=PATIENT, on_stderr_line=print, max_message_bytes=LIMIT
        ) as child:
            await child.send(b"%d" % number)
            assert await child.receive() == b"%d" % number
        assert child.returncode == 0

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(converse, number)


def _executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda tmp: ("no-such-program-anywhere", None),
            "not found in PATH; install it, or give its full path",
        ),
        (lambda tmp: (str(tmp / "missing"), None), "no such file, or the interpreter"),
        (lambda _: ("npx -y no-such", None), "not found in PATH.*arguments in it. These go into `args`"),
        (
            lambda tmp: (_executable(tmp / "script", "#!/no/such/interpreter\n"), None),
            "the interpreter in its first",
        ),
        (lambda tmp: (str(tmp), None), "it is not executable; check its permissions"),
        (lambda tmp: (_executable(tmp / "binary", "\0"), None), "Exec format error"),
        (
            lambda tmp: ("cat", tmp / "missing"),
            "working directory '.*missing' cannot be entered: No such file",
        ),
        (lambda tmp: ("cat", Path(__file__)), "cannot be entered: Not a directory"),
        (lambda tmp: ("c\0at", None), "embedded null byte in the command"),
    ],
)
async def test_a_child_that_cannot_start_is_explained(tmp_path, make, words: str):
    command, cwd = make(tmp_path)
    with pytest.raises(ConnectFailed, match=f"cannot start .*{words}"):
        async with open_process(
            command, [], {}, cwd, stop=PATIENT, on_stderr_line=print, max_message_bytes=LIMIT
        ):
            pass


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_no_file_descriptor_is_left_open(run):
    count = count_descriptors()
    async with run(ECHO) as child:
        await child.send(b"hello")
        await child.receive()
    assert count_descriptors() == count
