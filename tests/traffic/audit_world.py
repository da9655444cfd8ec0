"""Exchanges to audit, and a disk that can be slow, full or well."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from mcpmux.channels.tap import NO_HEADERS, Leg
from mcpmux.config import Audit as AuditSettings
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.audit.journal import Audit
from mcpmux.traffic.audit.record_maker import RecordMaker
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.redaction.redactor import Redactor

WALL = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def fields(value: Mapping[str, Any]) -> Fields:
    return {key: raw(member) for key, member in value.items()}


def call_of(method: str, meta: Mapping[str, Any] = NO_HEADERS, **params: Any) -> Call:
    return Call(method, fields(params), fields(meta))


def leg_of(name: str | None = None, transport: str = "http") -> Leg:
    leg = Leg("client", "c1", transport)
    leg.revision, leg.name = "2026-07-28", name
    return leg


class Disk:
    """Where records go. `seconds` is how long a write takes; `error` is what it comes to."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.error: OSError | None = None
        self.groups: list[list[dict[str, Any]]] = []

    async def append(self, bodies: Sequence[bytes]) -> None:
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.groups.append([json.loads(body) for body in bodies])

    @property
    def records(self) -> list[dict[str, Any]]:
        return [record for group in self.groups for record in group]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


class World:
    """An audit log over a disk, asked as runtime does it."""

    def __init__(self, disk: Disk, audit: Audit) -> None:
        self.disk = disk
        self.audit = audit
        self.recorder = Recorder([], [audit], trio.current_time)
        self.answered: list[int] = []

    async def exchange(self, number: int, method: str = "resources/read", seconds: float = 0.0) -> None:
        """Make one exchange that takes `seconds` of work; `answered` has its number once it is answered."""
        await self.recorder.admit(leg_of(), number, call_of(method, uri=f"memo:{number}"))
        self.recorder.routed(number, "docs")
        try:
            await trio.sleep(seconds)
        except trio.Cancelled as cancelled:
            await self.recorder.ended(number, cancelled)
            raise
        await self.recorder.ended(number, fields({"contents": []}))
        self.answered.append(number)


@asynccontextmanager
async def open_world(**settings: Any) -> AsyncIterator[World]:
    """Open an audit log on a slow disk. Leaving writes the waiting records."""
    disk = Disk()
    records = RecordMaker("run", Redactor(), lambda: WALL + trio.current_time())
    audit = Audit(disk.append, AuditSettings(**settings), records)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        yield World(disk, audit)
        assert audit._open == 0  # no write waits for a client that has gone
        audit.close()


def read_log(directory: Path) -> list[dict[str, Any]]:
    """Read every whole record of a folder."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("audit-*.jsonl"))
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
