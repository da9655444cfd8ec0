"""Captured requests sent again: one session for each captured client, its answers compared.

Promises: a request goes out in the revision it was made in, after the answers that its client had then; every
request of the capture has one outcome; every wait is bounded. Refuses to know how a server is reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from mcpmux.traffic.reading.turn import Dialogue
from mcpmux.traffic.replay.reach import Reach
from mcpmux.traffic.replay.report import Report
from mcpmux.traffic.replay.session import SessionReplay
from mcpmux.traffic.replay.settings import Clock, OpenChannel, Settings

IN_FLIGHT = 256  # requests of all sessions at a time, whatever the capture says


async def run_replay(
    dialogues: Sequence[Dialogue], open_channel: OpenChannel, settings: Settings, report: Report
) -> None:
    """Replay them all; how it went is in `report`. Cancelling it closes the sessions."""
    if not dialogues:
        return
    most = settings.sessions if math.isinf(settings.speed) else len(dialogues)
    sessions, room = trio.CapacityLimiter(most), trio.CapacityLimiter(IN_FLIGHT)
    clock = Clock(dialogues[0].moment, trio.current_time(), settings.speed)
    reach = Reach()
    async with trio.open_nursery() as nursery:
        for dialogue in dialogues:
            replay = SessionReplay(dialogue, open_channel, settings, report, room, clock, reach)
            nursery.start_soon(replay.run_within, sessions, name=f"replay {dialogue.name}")
