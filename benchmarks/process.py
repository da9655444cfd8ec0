"""Child processes of a measurement: started on one core, asked what they used, ended by their id."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = Path(__file__).resolve().parents[1]
READY_SECONDS = 30  # for a child to print its URLs
PIPE_BYTES = 64 * 1024  # read at a time
STOP_SECONDS = 10  # for a child to end when it is asked to
MEASURED = "MCPMUX_MEASURED"
"""Names the environment variable with the folder whose mcpmux is measured; without it, it is this one's."""
FROM_THERE = frozenset({"mcpmux", "benchmarks.upstream"})
"""What is started there. The upstreams are mcpmux's transport: where that is compiled, so are they, or they
would be what is measured."""

_CPU_CLOCK_OF_PROCESS = 2


class MeasurementFailed(RuntimeError):
    """What should be measured did not answer as it should, or a tool is missing or has failed."""


class Child:
    """`python -m MODULE …` on one core, which prints a line (its URL) for each thing that is ready."""

    def __init__(
        self,
        arguments: Sequence[str],
        core: int,
        stdin: str | None = "",
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`stdin`: all that it is given there; None to leave that open, see `receive` and `send`.

        `under`: a tool's command line that becomes the child; `environment`: is put on top of ours.
        """
        self._module = arguments[0]
        # An installed mcpmux has its bytecode; what was edited since would be compiled at every start.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [*under, sys.executable, "-m", *arguments],
            cwd=measured_folder() if self._module in FROM_THERE else PROJECT,
            env={**inherited, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.sched_setaffinity(self._process.pid, {core})
        assert self._process.stdin is not None
        if stdin is not None:
            with self._process.stdin as pipe:
                pipe.write(stdin.encode())
            self._process.stdin = None  # `communicate` must not find a closed pipe

    def __repr__(self) -> str:
        return f"<Child {self._module}, id {self._process.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # which closes its pipe
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def lines(self, count: int, seconds: float = READY_SECONDS) -> list[str]:
        """Return the next `count` lines that it prints. Raises MeasurementFailed if they are late."""
        data = b""
        deadline = time.monotonic() + seconds
        while data.count(b"\n") < count:
            chunk = self.receive(deadline - time.monotonic())
            if not chunk:
                raise MeasurementFailed(f"{self!r} did not get ready; it printed {data!r}")
            data += chunk
        return data.decode().split()

    def receive(self, seconds: float) -> bytes:
        """Return its next output; empty at its end, or when there is none for `seconds`."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], max(seconds, 0))
        return os.read(fd, PIPE_BYTES) if ready else b""

    def send(self, data: bytes) -> None:
        """Write to its standard input, which was left open."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def output(self, seconds: float) -> bytes:
        """Return all that it prints until it ends. Raises MeasurementFailed if it fails or takes too long."""
        try:
            data, _ = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise MeasurementFailed(f"{self!r} did not end within {seconds} s") from None
        if self._process.returncode:
            raise MeasurementFailed(f"{self!r} failed with {self._process.returncode}")
        return data

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that it has used so far, in user and kernel mode."""
        return cpu_seconds_of(self.pid)

    def resident_bytes(self) -> int:
        """Return the memory that it occupies now."""
        return int(_stat(self.pid)[21]) * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int:
        """Return the peak of its memory so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(peak) * 1024


def measured_folder() -> Path:
    """Return the folder in which `python -m mcpmux` starts the measured version."""
    return Path(os.environ.get(MEASURED, PROJECT))


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this process to a core, with the processes that it starts; undo that at the end."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def cpu_seconds_of(process_id: int) -> float:
    """Return the CPU seconds that a process has used so far. Raises OSError if it has ended.

    The clock is that of clock_getcpuclockid(3): `/proc/ID/stat` counts in steps of 10 ms.
    """
    return time.clock_gettime(~process_id << 3 | _CPU_CLOCK_OF_PROCESS)


def children_of(process_id: int, program: bytes) -> list[int]:
    """Return the ids of the children of a process that have `program` in their command line."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [int(child) for child in children if program in Path(f"/proc/{child}/cmdline").read_bytes()]


def _stat(process_id: int) -> list[str]:
    """Return the fields of `/proc/ID/stat` from the third on."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
