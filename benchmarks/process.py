"""Processes of a measurement: started on some cores, asked what they used, ended by their id."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = Path(__file__).resolve().parents[1]
READY_SECONDS = 30  # for a child to print its URLs
PIPE_BYTES = 64 * 1024  # read at a time
PORTS = range(20_000, 32_768)
PORTS_PER_PROCESS = 257
STOP_SECONDS = 10  # for a child to end when it is asked to
MEASURED = "MCPMUX_MEASURED"
"""Names the environment variable with the folder whose mcpmux is measured; without it, it is this one's."""
FROM_THERE = frozenset({"mcpmux", "benchmarks.upstream"})
"""What is started there. The upstreams are mcpmux's transport: where that is compiled, so are they, or they
would be what is measured."""

_CPU_CLOCK_OF_PROCESS = 2
_ports = count(os.getpid() * PORTS_PER_PROCESS)


class MeasurementFailed(RuntimeError):
    """What should be measured did not answer as it should, or a tool is missing or has failed."""


class Process:
    """A process on some cores. Leaving ends it, and with `leads` all that it has started.

    What it prints is read by `lines`, `receive` and `output`, unless it goes to the file `log`.
    """

    def __init__(
        self,
        command: Sequence[str],
        cores: Iterable[int],
        *,
        folder: Path = PROJECT,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = "",
        log: Path | None = None,
        leads: bool = False,
    ) -> None:
        """`stdin`: all that it is given there; None to leave that open, see `receive` and `send`.

        `environment`: is put on top of ours. `leads`: it is in a new session. Raises OSError.
        """
        cores = set(cores)
        with log.open("wb") if log is not None else nullcontext(subprocess.PIPE) as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE if stdin != "" else subprocess.DEVNULL,
                stdout=output,
                stderr=None if log is None else subprocess.STDOUT,
                start_new_session=leads,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),  # before it has threads
            )
        self._name = Path(command[0]).name
        self._leads = leads
        self._printed = b""  # behind the last line that was read
        if stdin:
            assert self._process.stdin is not None
            with self._process.stdin as pipe:
                pipe.write(stdin.encode())
            self._process.stdin = None  # `communicate` must not find a closed pipe

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}, id {self.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # which closes its pipes
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            self._signal(signal.SIGKILL)  # with `leads` also what it started and did not end

    def _signal(self, number: signal.Signals) -> None:
        if not self._leads:
            self._process.send_signal(number)  # none if it has ended
            return
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self.pid, number)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop it, with `leads` also what it has started, while another one is measured on its core."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def lines(self, count: int, seconds: float = READY_SECONDS) -> list[str]:
        """Return the next `count` lines that it prints. Raises MeasurementFailed if they are late."""
        deadline = time.monotonic() + seconds
        while self._printed.count(b"\n") < count:
            chunk = self.receive(deadline - time.monotonic())
            if not chunk:
                raise MeasurementFailed(f"{self!r} did not get ready; it printed {self._printed!r}")
            self._printed += chunk
        *lines, self._printed = self._printed.split(b"\n", count)
        return [line.decode() for line in lines]

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
        """Return all else that it prints until it ends. Raises MeasurementFailed if it fails or is late."""
        try:
            data, _ = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise MeasurementFailed(f"{self!r} did not end within {seconds} s") from None
        if self._process.returncode:
            raise MeasurementFailed(f"{self!r} failed with {self._process.returncode}")
        return self._printed + data

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that it has used so far, in user and kernel mode."""
        return cpu_seconds_of(self.pid)

    def resident_bytes(self) -> int:
        """Return the memory that it occupies now."""
        return self._memory("VmRSS")

    def peak_bytes(self) -> int:
        """Return the peak of its memory so far."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (size,) = [line.split()[1] for line in status if line.startswith(f"{name}:")]
        return int(size) * 1024


class Child(Process):
    """`python -m MODULE …`, which prints a line (its URL) for each thing that is ready."""

    def __init__(
        self,
        arguments: Sequence[str],
        cores: int | Iterable[int],
        stdin: str | None = "",
        under: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`under`: a tool's command line that becomes the child."""
        # An installed mcpmux has its bytecode; what was edited since would be compiled at every start.
        more = {"PYTHONDONTWRITEBYTECODE": "", **(environment or {})}
        folder = measured_folder() if arguments[0] in FROM_THERE else PROJECT
        self.started = time.perf_counter()
        command = [*under, sys.executable, "-m", *arguments]
        places = (cores,) if isinstance(cores, int) else cores
        super().__init__(command, places, folder=folder, environment=more, stdin=stdin)
        self._name = arguments[0]


@contextmanager
def open_store(folder: str) -> Iterator[int]:
    """Run a Redis that keeps nothing on disk, and yield its port. Raises FileNotFoundError without Redis."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    with Process(command, os.sched_getaffinity(0), log=Path(folder, "redis.log")):
        yield port


def free_port() -> int:
    """Return a free port, for a server that cannot choose one itself.

    The system gives connections and servers without a port one of its own range, as a rule from 32,768 on.
    A port from there could be taken again before its server starts. Processes begin at different places.
    Raises OSError when no port is free.
    """
    for number in islice(_ports, len(PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", PORTS[number % len(PORTS)])) as server:
            return int(server.getsockname()[1])
    raise OSError(f"no port of 127.0.0.1 from {PORTS[0]} to {PORTS[-1]} is free")


def cores() -> tuple[int, int]:
    """Return the core of mcpmux and that of everything else, which may be the same."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


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
