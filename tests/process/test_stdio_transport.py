"""A real process with an echo on its standard input and output, however these are connected."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import termios
from textwrap import dedent

import pytest
import trio

ECHO = """
    import os, sys, trio
    from mcpmux.errors import TransportClosed
    from mcpmux.transports.stdio import open_stdio_stream

    async def main():
        async with open_stdio_stream(1000) as pipe:
            print("printed meanwhile")
            os.write(1, b"written meanwhile\\n")
            print("read meanwhile:", sys.stdin.readline())
            try:
                while True:
                    await pipe.send(await pipe.receive())
            except TransportClosed:
                pass
        print("printed afterwards", os.get_blocking(0), os.get_blocking(1))

    trio.run(main)
"""
MEANWHILE = b"printed meanwhile\nread meanwhile: \n"
AFTERWARDS = b"printed afterwards True True\n"


@pytest.fixture
def command(tmp_path) -> list[str]:
    path = tmp_path / "echo.py"
    path.write_text(dedent(ECHO))
    return [sys.executable, str(path)]


async def run(command: list[str], **options) -> subprocess.CompletedProcess:
    with trio.fail_after(60):
        return await trio.run_process(command, capture_stderr=True, **options)


def assert_printed_elsewhere(stderr: bytes) -> None:
    assert sorted(stderr.splitlines()) == sorted([*MEANWHILE.splitlines(), b"written meanwhile"])


async def test_only_messages_get_into_the_channel_over_pipes(command):
    done = await run(command, stdin=b"one\ntwo\n", capture_stdout=True)
    assert done.stdout == b"one\ntwo\n" + AFTERWARDS
    assert_printed_elsewhere(done.stderr)


async def test_regular_files_work_as_input_and_output(command, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    with source.open("rb") as stdin, target.open("wb") as stdout:
        await run(command, stdin=stdin, stdout=stdout)
    assert target.read_bytes() == source.read_bytes() + AFTERWARDS


async def test_no_input_at_all_is_the_end_of_the_stream(command):
    done = await run(command, stdin=subprocess.DEVNULL, capture_stdout=True)
    assert done.stdout == AFTERWARDS


async def test_one_socket_for_both_directions_works(command):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"one\ntwo\n")
        ours.shutdown(socket.SHUT_WR)
        await run(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        assert ours.recv(1000) == b"one\ntwo\n" + AFTERWARDS
        assert os.get_blocking(theirs.fileno())


async def test_a_terminal_works_and_stays_in_blocking_mode(command):
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    end_of_file = b"\x04"
    os.write(ours, b"one\ntwo\n" + end_of_file)
    await run(command, stdin=theirs, stdout=theirs)
    assert os.read(ours, 1000) == b"one\ntwo\n" + AFTERWARDS
    assert os.get_blocking(theirs)
    os.close(ours)
    os.close(theirs)


async def test_cancelling_does_not_wait_for_a_terminal_that_says_nothing(tmp_path):
    script = tmp_path / "cancelled.py"
    script.write_text(
        dedent("""
        import trio
        from mcpmux.transports.stdio import open_stdio_stream

        async def main():
            with trio.move_on_after(0.01):
                async with open_stdio_stream(1000) as pipe:
                    await pipe.receive()
            print("left")

        trio.run(main)
        """)
    )
    ours, theirs = pty.openpty()
    done = await run([sys.executable, str(script)], stdin=theirs, capture_stdout=True)
    assert done.stdout == b"left\n"
    os.close(ours)
    os.close(theirs)
