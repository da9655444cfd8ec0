"""Real servers that listen on HTTP, as child processes."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from tests.real.mux import START_SECONDS


def _pass_on(output: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in output:
        lines.put(line)


@contextmanager
def run_web_server(command: Sequence[str], saying: str, env: Mapping[str, str]) -> Iterator[str]:
    """Run a server, and yield the line with `saying` that it prints once it listens."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **env},
    )
    assert process.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_pass_on, args=[process.stdout, lines])
    reader.start()  # for as long as it runs, so that it is never stuck with a full pipe
    try:
        while saying not in (line := lines.get(timeout=START_SECONDS)):
            pass
        yield line
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
