"""Which observers there are."""

from __future__ import annotations

from pathlib import Path

from mcpmux.app.observers import open_observers
from mcpmux.config import Audit, Capture, Config, Stdio, Tracing, Upstream
from mcpmux.config.traffic import CaptureRule


async def test_what_is_off_observes_nothing_and_writes_nothing(tmp_path: Path):
    rules = (CaptureRule(method="x", level="off"),)
    config = Config(
        upstreams=(Upstream(name="docs", target=Stdio(command="unused")),),
        capture=Capture(directory=str(tmp_path / "capture"), rules=rules),
        audit=Audit(),
        tracing=Tracing(),
    )
    async with open_observers(config) as observers:
        assert (observers.tap, observers.trace, observers.spans, observers.capture) == (None,) * 4
    assert not (tmp_path / "capture").exists()
