"""`mcpmux` as a real child process. Every wait is bounded."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import trio

WAIT_SECONDS = 120.0  # on a busy machine; far above the time of any step that works
POLL_SECONDS = 0.05

COMMAND = [sys.executable, "-m", "mcpmux"]


def demo_command(name: str, pid_file: Path | None = None) -> str:
    """Return the command line of a bundled server, which writes its process id into `pid_file` first."""
    command = shlex.join([sys.executable, "-m", f"mcpmux.demo.{name}"])
    if pid_file is None:
        return command
    return shlex.join(["sh", "-c", f"echo $$ > {shlex.quote(str(pid_file))}; exec {command}"])


def demo_entry(name: str) -> dict[str, Any]:
    """Return a bundled server in the form of a host app's JSON."""
    return {"command": sys.executable, "args": ["-m", f"mcpmux.demo.{name}"]}


def demo_table(name: str) -> str:
    """Return a bundled server as a table of a configuration file, to which lines can be added."""
    values = (f"{key} = {json.dumps(value)}\n" for key, value in demo_entry(name).items())
    return f"[upstreams.{name}]\n" + "".join(values)


def wait_until(true: Callable[[], object], what: str = "it is not so in time") -> None:
    """Wait until a condition holds that another process fulfils, and fail with `what` when it never does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_SECONDS)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_gone(pid: int) -> bool:
    """Return whether no process with this id runs any more; a zombie counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def ended(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
    while not is_gone(pid):  # noqa: ASYNC110  # no event tells of it
        await trio.sleep(0.01)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that any thread of that process has started. On Linux."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


class Running:
    """A running `mcpmux`; killed when the block is left with it still running."""

    def __init__(
        self,
        *args: str,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._process = subprocess.Popen(
            [*command, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **(env or {})},
        )
        self._rest = {"stdout": b"", "stderr": b""}
        if stdin is not None:
            self.send(stdin)
            self.close_stdin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(WAIT_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def send_json(self, message: dict[str, Any]) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def receive_json(self) -> dict[str, Any]:
        message = json.loads(self.line())
        assert isinstance(message, dict)
        return message

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None

    def line(self, stream: str = "stdout", containing: str = "") -> str:
        """Read up to the next line of a stream that contains a text, and return that line."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            line, newline, rest = self._rest[stream].partition(b"\n")
            if newline:
                self._rest[stream] = rest
                if containing in line.decode():
                    return line.decode()
            else:
                self._read(stream, deadline)

    def says_something(self, seconds: float) -> bool:
        """Return whether anything is on stdout within some seconds that was not read yet."""
        assert self._process.stdout is not None
        return bool(self._rest["stdout"] or select.select([self._process.stdout], [], [], seconds)[0])

    def _read(self, stream: str, deadline: float) -> None:
        pipe: IO[bytes] = getattr(self._process, stream)
        ready, _, _ = select.select([pipe], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing on {stream} in time"
        chunk = os.read(pipe.fileno(), 65536)
        assert chunk, f"{stream} has ended: {self._rest}, exit code {self._process.poll()}"
        self._rest[stream] += chunk

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGINT) -> int:
        """Signal it and wait for its end: the exit code. `stdout` and `stderr` have what was not read yet."""
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        out, err = self._process.communicate(timeout=WAIT_SECONDS)
        self._rest["stdout"] += out
        self._rest["stderr"] += err
        return self._process.returncode

    @property
    def stdout(self) -> str:
        return self._rest["stdout"].decode()

    @property
    def stderr(self) -> str:
        return self._rest["stderr"].decode()
