"""Looking at processes from outside, and waiting for what they do not announce."""

from __future__ import annotations

import re
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import trio

POLL_SECONDS = 0.05
ANSWER_SECONDS = 90.0  # of a busy machine


async def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until something is so; False when it is not in time."""
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - it is looked at from outside
            await trio.sleep(POLL_SECONDS)
        return True
    return bool(condition())


def count_descriptors(pid: int | str = "self") -> int:
    """Return the number of files, pipes and sockets that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def count_kilobytes(pid: int) -> int:
    """Return the private memory of a process in kilobytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert match is not None
    return int(match[1])


def read_metrics(port: int, token: str) -> str:
    """Return the metrics of an admin listener. For threads."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    text = connection.getresponse().read().decode()
    connection.close()
    return text
