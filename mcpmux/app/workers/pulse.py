"""Whether a worker still does anything: it is asked again and again, and hears nothing else of it.

| it has been silent for | what follows |
| --- | --- |
| SILENT_SECONDS | it is given no connections, until it answers again |
| HUNG_SECONDS | it hangs: `keep_pulse` returns, and its owner ends it |
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from mcpmux.app.workers.member import Worker
from mcpmux.errors import TransportClosed

log = structlog.get_logger()

BEAT_SECONDS = 2.0  # between two questions
SILENT_SECONDS = 5.0
HUNG_SECONDS = 30.0


async def keep_pulse(worker: Worker, awake: Callable[[], None]) -> None:
    """Ask until the worker hangs. `awake` is called when one that was silent serves again."""
    await worker.ready.wait()
    while True:
        await trio.sleep(BEAT_SECONDS)
        if await _answers(worker, SILENT_SECONDS):
            continue
        worker.silent = True
        log.warning("worker does not answer: the others get its connections", worker=worker.number)
        if not await _answers(worker, HUNG_SECONDS - SILENT_SECONDS):
            return
        worker.silent = False
        log.warning("worker answers again", worker=worker.number)
        awake()


async def _answers(worker: Worker, seconds: float) -> bool:
    try:
        await worker.ask("pulse", seconds)
    except TransportClosed:
        return False
    return True
