"""The file of a benchmark: JSON, versioned, read again by `--compare`. Bytes in and out.

One object:

    format    "mcpmux bench"
    version   1; goes up when a reader of the old one would misunderstand the new one
    tool      what wrote it, such as "mcpmux 0.1.0"
    when      start of the first run, RFC 3339 in UTC
    machine   facts about the machine that made the load, but none of its names
    results   one object per target and run, in the order measured: `Results`

The fields of `Results` and of all below it have the names, the units and the meaning of the classes in
`results`; a histogram is a `Distribution` as `histogram` says. `null` is what is not known. A reader
ignores fields that it does not know; fields with a default may be absent.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Literal

import msgspec

from mcpmux import __version__
from mcpmux.bench.results import Results
from mcpmux.errors import McpmuxError
from mcpmux.protocol.envelope import UNREADABLE

FORMAT = "mcpmux bench"
VERSION = 1


class BadResults(McpmuxError):
    """What should be the file of a benchmark is none that this version can read; the text says why."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one call of `mcpmux bench` has measured."""

    tool: str
    when: str
    machine: dict[str, str | int | float]
    results: tuple[Results, ...]
    format: Literal["mcpmux bench"] = "mcpmux bench"
    version: Literal[1] = 1


class _Head(msgspec.Struct):
    format: Any = None
    version: Any = None


_decoder = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """The report as JSON on one line."""
    return msgspec.json.encode(report) + b"\n"


def decode_report(data: bytes, source: str) -> Report:
    """The report in a file. `source`: how to name it in errors. Raises BadResults."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except UNREADABLE as error:
        raise BadResults(f"{source} is not JSON of a benchmark: {error}. {_ADVICE}") from error
    if head.format != FORMAT:
        raise BadResults(f"{source} is JSON, but not of a benchmark of mcpmux. {_ADVICE}")
    version = head.version
    if version != VERSION or isinstance(version, bool | float):
        about = f"{source} has version {version!r} of the format"
        if isinstance(version, int) and version > VERSION:
            advice = "it was written by a newer mcpmux; read it with that one"
            raise BadResults(f"{about}, and this mcpmux reads version {VERSION}: {advice}")
        raise BadResults(f"{about}, which never was one: it is damaged")
    try:
        return _decoder.decode(data)
    except UNREADABLE as error:
        raise BadResults(f"{source} is damaged or was changed by hand: {error}") from error


_ADVICE = "Write one with `mcpmux bench TARGET --json FILE`."
TOOL = f"mcpmux {__version__}"


def machine_facts() -> dict[str, str | int | float]:
    """What matters for speed: system, processor, how many of them this process may use, Python."""
    limited = hasattr(os, "sched_getaffinity")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "processors": len(os.sched_getaffinity(0)) if limited else os.cpu_count() or 1,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
