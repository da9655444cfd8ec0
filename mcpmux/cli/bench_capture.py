"""A capture as the load of `mcpmux bench`: what of it is sent, and what is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mcpmux.bench.workload import CapturedLoad, load_of
from mcpmux.cli.console import tell
from mcpmux.cli.traffic_dialogue import read_capture
from mcpmux.cli.wall import Mistake
from mcpmux.traffic.reading.dialogue import SideName


def read_captured(files: tuple[Path, ...], upstream: str | None, with_tools: bool) -> CapturedLoad | None:
    """The requests of the capture, None without any file; what is left out is told. Raises Mistake."""
    if not files:
        if upstream is not None or with_tools:
            option = "--with-tools" if upstream is None else "--capture-upstream"
            raise Mistake(f"{option} is about a capture: name it with --capture")
        return None
    side: SideName = "client" if upstream is None else "upstream"
    reading = read_capture(files, side, upstream)
    load = load_of(reading.dialogues(), with_tools=with_tools)
    left_out = load.left_out + reading.left_out
    if not load.order:
        raise Mistake(f"{' '.join(map(str, files))}: nothing in this capture makes load ({_list(left_out)})")
    tell(
        f"capture: {len(load.order):,} requests, {len(load.asks):,} of them different"
        + (f"; left out: {_list(left_out)}" if left_out else "")
    )
    return load


def _list(reasons: Counter[str]) -> str:
    return "; ".join(f"{count:,}: {reason}" for reason, count in reasons.most_common())
