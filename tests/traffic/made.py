"""Capture records and files for tests, as mcpmux would have written them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.reading.dialogue import Reading, SideName
from mcpmux.traffic.record import ANSWERS, Record, encode_record

RUN = "5f3a9c01"
BEGAN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FILE = "mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl"


def record(seq: int = 1, at: float = 0.0, body: Any = None, **facts: Any) -> Record:
    """Return one message. Members that are not given are those of a client's request."""
    time = (BEGAN + timedelta(seconds=at)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    facts = {"run": RUN, "kind": "request", "leg": "client", "direction": "in", **facts}
    if facts["leg"] == "client":
        facts = {"peer": "c1", "client": "claude-ai", "transport": "http", **facts}
    else:
        facts = {"peer": "docs", "upstream": "docs", "transport": "stdio", **facts}
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps({"jsonrpc": "2.0", **body}).encode()
        facts = {"message": Raw(data), "size": len(data), **facts}
    return Record(v=1, seq=seq, time=time, at=at, **facts)


def request_of(answer: Record, records: Sequence[Record]) -> int | None:
    """Return the number of the last request with the id of an answer that went the other way on its leg."""
    for item in reversed(records):
        if item.kind == "request" and (item.leg, item.peer, item.id) == (answer.leg, answer.peer, answer.id):
            return item.seq if item.direction != answer.direction else None
    return None


class Play:
    """A run of mcpmux that is made up: `records` has what it has captured."""

    def __init__(self, run: str = RUN) -> None:
        self.run = run
        self.records: list[Record] = []
        self.exchanges = 0
        self.now = 0.0

    def put(self, body: dict[str, Any] | None = None, **facts: Any) -> Record:
        """Add a message. An answer is that to the last request with its id on its leg."""
        made = record(len(self.records) + 1, self.now, body, run=self.run, **facts)
        if made.kind in ANSWERS and made.answers is None:
            made = msgspec.structs.replace(made, answers=request_of(made, self.records))
        self.records.append(made)
        return made

    def read(
        self,
        uri: str = "file:///a.md",
        *,
        seconds: float = 0.01,
        error: int | None = None,
        upstream: str = "docs",
        client: str = "claude-ai",
        text: str = "hello",
        answered: bool = True,
    ) -> int:
        """Have a client read a resource, in four messages. Return the number of the exchange."""
        self.exchanges += 1
        number, inside = self.exchanges, self.exchanges + 100
        here = {"exchange": number, "method": "resources/read"}
        theirs = {"leg": "upstream", "peer": upstream, "upstream": upstream}
        exposed = f"{upstream}+{uri}"

        def ask(request_id: int, about: str) -> dict[str, Any]:
            return {"id": request_id, "method": "resources/read", "params": {"uri": about}}

        def answer(request_id: int, about: str) -> dict[str, Any]:
            if error is not None:
                return {"id": request_id, "error": {"code": error, "message": "no such resource"}}
            return {"id": request_id, "result": {"contents": [{"uri": about, "text": text}]}}

        kind = "result" if error is None else "error"
        self.put(ask(number, exposed), id=number, target=exposed, client=client, **here)
        self.put(ask(inside, uri), id=inside, target=uri, direction="out", **theirs, **here)
        if answered:
            self.now += seconds
            facts = {"kind": kind, "code": error, "ms": seconds * 1000}
            self.put(answer(inside, uri), id=inside, **theirs, **facts, **here)
            facts["status"] = 200
            self.put(answer(number, exposed), id=number, direction="out", client=client, **facts, **here)
        return number

    def call(self, *, failed: bool = False, seconds: float = 0.02) -> int:
        """Have a client call a tool that mcpmux answers, in two messages."""
        self.exchanges += 1
        number = self.exchanges
        here = {"exchange": number, "method": "tools/call", "id": number}
        self.put({"id": number, "method": "tools/call", "params": {"name": "find"}}, target="find", **here)
        self.now += seconds
        result = {"content": [], **({"isError": True} if failed else {})}
        facts = {"kind": "result", "failed": failed or None, "ms": seconds * 1000, "direction": "out"}
        self.put({"id": number, "result": result}, **facts, **here)
        return number

    def say(self, method: str = "notifications/progress", **facts: Any) -> Record:
        """Put a notification."""
        return self.put({"method": method, "params": {}}, kind="notification", method=method, **facts)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write a capture file, in a folder under a name that mcpmux would give it. Return its path."""
    path = path / FILE if path.is_dir() else path
    start = record(0, kind="start", leg=None, direction=None, peer=None, upstream=None, transport=None)
    path.write_bytes(b"".join(map(encode_record, [start, *records])))
    return path


def read_dialogues(records: Iterable[Record], side: SideName, upstream: str | None = None) -> Reading:
    """Read the dialogues of a leg."""
    reading = Reading(side, upstream)
    for record in records:
        reading.add(record)
    return reading
