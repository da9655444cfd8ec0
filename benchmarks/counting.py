"""Counts, not times, of the work of a process: its instructions (Callgrind) and its system calls (strace).

Promises: only what happens while the given work is done counts. The numbers do not depend on how fast the
machine is or what else runs on it; they do depend on the Python that runs and on its libraries. Both tools
must be installed and allowed to trace a process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.process import Child, MeasurementFailed

VALGRIND, STRACE = "valgrind", "strace"
READY_SECONDS = 120.0  # for a child to start under a tool that slows it down
CONTROL_SECONDS = 60  # for a process under Valgrind to take a command
STABLE = {"PYTHONHASHSEED": "0"}  # sets and dicts are laid out the same in every run

RECEIVES = frozenset({"recvfrom", "recvmsg", "read", "readv"})
SENDS = frozenset({"sendto", "sendmsg", "write", "writev"})
WAITS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})

_COLLECTED = re.compile(r"Collected : (\d+)")
_CALL = re.compile(r"^(\d+) +(\w+)\(", re.MULTILINE)  # of which thread, and its name

Prepare = Callable[[Child], AbstractContextManager[Callable[[], object]]]
"""Gets a child ready and warm, and gives the work of which it is counted what it does."""


def count_instructions(arguments: Sequence[str], core: int, stdin: str | None, prepare: Prepare) -> int:
    """Count the instructions of `python -m` with these arguments for the work. Raises MeasurementFailed."""
    _expect(VALGRIND)
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        tool.append(f"--log-file={log}")
        with Child(arguments, core, stdin, tool, STABLE) as child, prepare(child) as work:
            _instrument(child, "on")
            work()
            _instrument(child, "off")
        match = _COLLECTED.search(log.read_text())
        if match is None:
            raise MeasurementFailed(f"Callgrind has counted nothing: {log.read_text()[-500:]!r}")
        return int(match[1])


def _instrument(child: Child, state: str) -> None:
    command = ["vgdb", f"--pid={child.pid}", "instrumentation", state]
    ran = subprocess.run(command, capture_output=True, timeout=CONTROL_SECONDS, text=True, check=False)
    if ran.returncode:
        raise MeasurementFailed(f"cannot turn counting {state}: {ran.stderr.strip()}")


def count_calls(arguments: Sequence[str], core: int, stdin: str | None, prepare: Prepare) -> Counter[str]:
    """Count the system calls for the work, by name. Raises MeasurementFailed."""
    _expect(STRACE)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        # -D: strace is a process on the side, so that the child is the one that gets our signals.
        tool = ["strace", "-D", "-f", "-qq", "--signal=none", f"--output={log}"]
        with Child(arguments, core, stdin, tool, STABLE) as child, prepare(child) as work:
            start = _calls(child, log)
            work()
            return _calls(child, log) - start


def _calls(child: Child, log: Path) -> Counter[str]:
    """Count the calls of its threads so far. The log has those of its children, too."""
    threads = {task.name for task in Path(f"/proc/{child.pid}/task").iterdir()}
    return Counter(name for thread, name in _CALL.findall(log.read_text()) if thread in threads)


def _expect(program: str) -> None:
    if shutil.which(program) is None:
        raise MeasurementFailed(f"{program} is not installed; `apt-get install {program}` brings it")
