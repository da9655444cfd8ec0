"""Export captured messages to other programs: HAR and CSV. Pure; yields text as messages go in.

HAR ("HTTP Archive (HAR) format" of the W3C Web Performance group, version 1.2): an entry for each
request on each leg with its answer, and for each other message. Members that HAR lacks begin with `_`.
Hosts are names that cannot exist (RFC 6761). CSV (RFC 4180): a row for each
message, without bodies. Text that a spreadsheet would take for a formula has a `'` in front.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from http.client import responses
from typing import Any
from urllib.parse import quote

from mcpmux.printable import spreadsheet_cell
from mcpmux.traffic.outcome import statuses_of
from mcpmux.traffic.reading.summary import Pair, pair_up
from mcpmux.traffic.record import Record

COLUMNS: tuple[str, ...] = ("time", "run", "seq", "exchange", "kind", "leg", "direction", "peer", "upstream")
COLUMNS += ("client", "method", "target", "id", "outcome", "status", "code", "ms", "size", "redacted")
COLUMNS += ("transport", "revision", "session")
_OWN: tuple[str, ...] = ("leg", "direction", "kind", "method", "target", "exchange", "run", "seq", "id")
_OWN += ("upstream", "client", "transport", "revision")
_NO_HOST = re.compile(r"[^a-z0-9.-]+")


def to_har(records: Iterable[Record], version: str) -> Iterator[str]:
    """Yield one HAR document in pieces. `version`: that of mcpmux."""
    creator = json.dumps({"name": "mcpmux", "version": version})
    yield f'{{"log":{{"version":"1.2","creator":{creator},"pages":[],"entries":['
    for number, pair in enumerate(pair_up(records)):
        yield (",\n" if number else "\n") + json.dumps(har_entry(pair), ensure_ascii=False)
    yield "\n]}}\n"


def har_entry(pair: Pair) -> dict[str, Any]:
    """Return a request with its answer, or another message, as an entry.

    Status 0 means that there was no answer; on other transports than HTTP an answer has 200.
    """
    first, answer = pair
    took = answer.ms if answer is not None else 0  # 0: a message that has no answer
    if answer is not None and took is None:
        took = round(max(0.0, answer.at - first.at) * 1000, 3)
    status = (first.status or 0) if answer is None else answer.status or 200
    content = {"mimeType": "x-unknown", "text": ""} if answer is None else _body_of(answer)
    own = {name: getattr(first, name) for name in _OWN}
    own |= {} if answer is None else {"answerSeq": answer.seq, "code": answer.code}
    own["outcome"] = next(iter(statuses_of(answer or first)), None)
    own["redacted"] = sum(record.redacted or 0 for record in pair if record is not None) or None
    return {
        "startedDateTime": first.time,
        "time": took,
        "request": {
            "method": "POST",
            "url": _url_of(first),
            "queryString": [{"name": "target", "value": first.target}] if first.target is not None else [],
            "postData": {"params": [], **_body_of(first)},
            **_head_of(first, first.size),
        },
        "response": {
            "status": status,
            "statusText": responses.get(status, ""),
            "content": {"size": answer.size if answer is not None else 0, **content},
            "redirectURL": "",
            **_head_of(answer or first, answer.size if answer is not None else -1),
        },
        "cache": {},
        "timings": {"send": 0, "wait": took, "receive": 0},
        "connection": f"{first.run} {first.peer or ''}".strip(),
        **{f"_{name}": value for name, value in own.items() if value is not None},
    }


def _head_of(record: Record, size: int) -> dict[str, Any]:
    version = "HTTP/1.1" if record.transport in ("http", "sse") else record.transport or "unknown"
    return {"httpVersion": version, "cookies": [], "headers": [], "headersSize": -1, "bodySize": size}


def _body_of(record: Record) -> dict[str, Any]:
    text = record.text or ""
    if record.message is not None:
        text = bytes(record.message).decode("utf-8", "replace")
    return {"mimeType": "text/plain" if record.text is not None else "application/json", "text": text}


def _url_of(record: Record) -> str:
    """Return a URL: the two legs of an exchange differ in the host, two methods in the path."""
    host = _NO_HOST.sub("-", (record.peer or "unknown").lower()).strip("-.") or "unknown"
    path = quote(record.method or record.kind, safe="/")
    query = f"?target={quote(record.target, safe='')}" if record.target is not None else ""
    return f"http://{host}.{record.leg or 'unknown'}.invalid/{path}{query}"


def to_csv(records: Iterable[Record]) -> Iterator[str]:
    """Yield a table in pieces: a row of headings, then a row for each message."""
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    for record in records:
        if record.kind != "start":
            yield writer.writerow([_cell(record, column) for column in COLUMNS])


class _Echo:
    """A file whose `write` returns the text, so that `writerow` does."""

    def write(self, text: str) -> str:
        return text


def _cell(record: Record, column: str) -> Any:
    value = " ".join(statuses_of(record)) if column == "outcome" else getattr(record, column)
    return spreadsheet_cell(value) if isinstance(value, str) else value
