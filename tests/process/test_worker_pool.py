"""Workers that end before they are ready: real processes, of which some are killed at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mcpmux.app.workers import pool
from mcpmux.app.workers.pool import FIRST_ATTEMPTS
from mcpmux.app.workers.supervisor import serve_workers
from mcpmux.config import Config, HttpListener, Listeners, Unix, Upstream
from mcpmux.errors import TransportError
from mcpmux.transports.wall import leaves_of

START_SECONDS = 60.0

KILLED = """
import os, pathlib, signal
lives = pathlib.Path({folder!r}) / "lives"
with lives.open("a") as file:
    file.write("x")
if len(lives.read_text()) <= {deaths}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def serve(folder: Path, monkeypatch: pytest.MonkeyPatch, deaths: int) -> list[str]:
    """Serve without any reachable upstream while `deaths` workers die first. Return the announced URLs."""
    boot = KILLED.format(folder=str(folder), deaths=deaths) + pool.BOOT
    monkeypatch.setattr(pool, "BOOT", boot)
    nobody = Upstream(name="nobody", target=Unix(str(folder / "nobody")))
    config = Config(upstreams=(nobody,), listeners=Listeners(http=(HttpListener(port=0),)))
    announced: list[str] = []
    with trio.fail_after(START_SECONDS), trio.CancelScope() as scope:

        def announce(url: str) -> None:
            announced.append(url)
            scope.cancel()

        await serve_workers(config, announce, None, workers=1)
    return announced


async def test_a_worker_that_is_killed_before_it_is_ready_is_started_again(tmp_path, monkeypatch):
    assert await serve(tmp_path, monkeypatch, FIRST_ATTEMPTS - 1)
    assert (tmp_path / "lives").read_text() == "x" * FIRST_ATTEMPTS


async def test_workers_that_always_end_before_they_are_ready_end_the_start(tmp_path, monkeypatch):
    with pytest.raises(BaseExceptionGroup) as raised:
        await serve(tmp_path, monkeypatch, 100)
    (error,) = leaves_of(raised.value)
    assert isinstance(error, TransportError)
    assert str(error) == "worker 1 has ended before it was ready"
    assert (tmp_path / "lives").read_text() == "x" * FIRST_ATTEMPTS
