"""Messages and exchanges as lines for people.

    2026-11-21 12:44:59.123    #17      c1 →            resources/read docs+file:///a.md  66 B
    2026-11-21 12:44:59.124    #17         → docs       resources/read file:///a.md  61 B
    2026-11-21 12:44:59.135    #17         ← docs       resources/read file:///a.md  ok  11.0 ms  1.2 KiB
    2026-11-21 12:44:59.136    #17      c1 ←            resources/read docs+file:///a.md  ok  12.9 ms  1.2 KiB

Clients are left, upstreams right, mcpmux is between them. Whatever strangers wrote is made printable: it can
neither steer a terminal nor make up a line.
"""

from __future__ import annotations

from typing import Any

import click

from mcpmux.printable import printable
from mcpmux.traffic.reading.summary import Summary, statuses_of
from mcpmux.traffic.record import Record

TARGET_LIMIT = 200  # characters of a URI that are worth a line
NAME_LIMIT = 40

_STYLES = {"ok": "green", "open": "yellow", "cancelled": "yellow"}


class Painter:
    """Colours on a terminal, none elsewhere."""

    def __init__(self, *, colour: bool) -> None:
        self.colour = colour

    def __call__(self, text: str, **style: Any) -> str:
        """The text in a style of click."""
        return click.style(text, **style) if self.colour else text


def message_line(record: Record, paint: Painter) -> str:
    """One message."""
    parts = [_what(record.method or record.kind, record.target, paint)]
    statuses = statuses_of(record)
    if statuses:
        parts.append(_status(statuses, record.code, paint))
    if record.ms is not None:
        parts.append(format_ms(record.ms))
    parts.append(paint(format_size(record.size), dim=True))
    head = f"{paint(format_time(record.time), dim=True)} {_number(record.exchange)} {_flow(record)}"
    return f"{head} {'  '.join(parts)}"


def summary_line(summary: Summary, paint: Painter) -> str:
    """One exchange."""
    who = printable((summary.client or "")[:NAME_LIMIT]) or ", ".join(map(printable, summary.peer[:1]))
    what = _what(summary.method or "?", summary.target[0] if summary.target else None, paint)
    parts = [f"{who}  {what}"]
    if summary.upstream:
        parts.append(paint(f"→ {printable(', '.join(summary.upstream))}", dim=True))
    parts.append(_status(summary.statuses, summary.code, paint))
    if summary.ms is not None:
        parts.append(format_ms(summary.ms))
    sizes = format_size(summary.size)
    if summary.answer_size is not None:
        sizes += f" / {format_size(summary.answer_size)}"
    parts.append(paint(sizes, dim=True))
    head = f"{paint(format_time(summary.time), dim=True)} {_number(summary.exchange)}"
    return f"{head}  {'  '.join(parts)}"


def _number(exchange: int | None) -> str:
    return f"{f'#{exchange}' if exchange is not None else '-':>6}"


def _flow(record: Record) -> str:
    """Who to whom: the client, mcpmux in the middle, the upstream."""
    peer = printable((record.peer or "?")[:NAME_LIMIT])
    if record.leg == "client":
        return f"{peer:>6} {'→' if record.direction == 'in' else '←'} {'':<10}"
    return f"{'':>6} {'←' if record.direction == 'in' else '→'} {peer:<10}"


def _what(method: str, target: str | None, paint: Painter) -> str:
    said = paint(printable(method[:TARGET_LIMIT]), bold=True)
    if target is None:
        return said
    return f"{said} {printable(target[:TARGET_LIMIT])}{'…' if len(target) > TARGET_LIMIT else ''}"


def _status(statuses: tuple[str, ...], code: int | None, paint: Painter) -> str:
    words = [word for word in statuses if not word.endswith("xx")]
    text = " ".join(words)
    if code is not None and words[:1] == ["error"]:
        text = text.replace("error", f"error {code}", 1)
    return paint(text, fg=_STYLES.get(statuses[0], "red"))


def format_time(time: str) -> str:
    """A record's time up to milliseconds, in UTC."""
    return printable(time[:23].replace("T", " "))


def format_ms(ms: float) -> str:
    """A duration in the unit that fits."""
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def format_size(size: float) -> str:
    """Bytes in the unit that fits."""
    if size < 1024:
        return f"{size:.0f} B"
    units = ["KiB", "MiB", "GiB"]
    size /= 1024
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}"
