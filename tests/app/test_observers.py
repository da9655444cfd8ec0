"""Which observers there are."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from mcpmux.app.observers import open_observers
from mcpmux.config import Audit, Capture, Config, Stdio, Tracing, Upstream
from mcpmux.config.traffic import CaptureRule

DOCS = Upstream(name="docs", target=Stdio(command="unused"))


async def test_what_is_off_observes_nothing_and_writes_nothing(tmp_path: Path):
    rules = (CaptureRule(method="x", level="off"),)
    config = Config(
        upstreams=(DOCS,),
        capture=Capture(directory=str(tmp_path / "capture"), rules=rules),
        audit=Audit(),
        tracing=Tracing(),
    )
    async with open_observers(config) as observers:
        assert (observers.tap, observers.trace, observers.spans, observers.capture) == (None,) * 4
    assert not (tmp_path / "capture").exists()


async def test_times_follow_the_system_while_the_clock_runs_otherwise(tmp_path: Path, autojump_clock):
    """An hour passes on the virtual clock, and the system's time hardly moves, as if it was set back."""
    capture = Capture(directory=str(tmp_path), level="full")
    async with open_observers(Config(upstreams=(DOCS,), capture=capture)) as observers:
        await trio.sleep(3600)
        assert abs(observers.run.wall_at(trio.current_time()) - time.time()) < 600
