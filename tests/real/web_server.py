"""Real servers that listen on HTTP, as child processes."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.real.mux import START_SECONDS


@contextmanager
def run_web_server(command: Sequence[str], saying: str, env: Mapping[str, str]) -> Iterator[str]:
    """A running server: the line with `saying` by which it tells that it listens."""
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
    reader = threading.Thread(
        target=lambda output: [lines.put(line) for line in output], args=[process.stdout]
    )
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


def find_free_port() -> int:
    """A port that nobody listens on, for a server that cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port
