"""Which messages are kept in files, how much of each, and what becomes of the files."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Choice, Duration, Flag, Size, Text, Whole, about

LEVELS = ("off", "metadata", "truncated", "full")
"""From nothing to everything."""

Level: TypeAlias = Annotated[str, Choice(LEVELS)]
Glob: TypeAlias = Annotated[str, Text("a name, in which * stands for any text", r"[^\x00\s]+")]


@frozen(kw_only=True)
class CaptureRule:
    """The level for some messages. What a rule does not name, it does not ask for."""

    level: Level = field(metadata=about("How much of these messages is kept."))
    upstream: Glob | None = field(
        default=None, metadata=about("Name of the upstream they go to or come from; * stands for any text.")
    )
    method: Glob | None = field(
        default=None, metadata=about("Method; an answer has that of its request. * stands for any text.")
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for a rule that is the default level by another name."""
        if self.upstream is None and self.method is None:
            raise Unfit("expected `upstream` or `method`; for all messages set `level` of `capture`")


@frozen(kw_only=True)
class Capture:
    """Messages of both legs in files of JSON lines, redacted."""

    level: Level = field(
        default="off",
        metadata=about(
            "How much of each message is kept: nothing, all but the body, the body's beginning, everything."
        ),
    )
    rules: tuple[CaptureRule, ...] = field(
        default=(), metadata=about("Other levels for some upstreams and methods; the first that fits counts.")
    )
    directory: Annotated[str, Text("the path of a folder", r"[^\x00]+")] = field(
        default="mcpmux-capture",
        metadata=about("Where the files are, made when it is missing; relative to where mcpmux was started."),
    )
    body_bytes: Annotated[int, Size(1)] = field(
        default=4096, metadata=about("How much of a body is kept at level `truncated`.")
    )
    queue_bytes: Annotated[int, Size(65536)] = field(
        default=32 * 2**20,
        metadata=about(
            "Messages that may wait to be written, as a rule for 0.25 s at most; `kill -9` loses them."
        ),
    )
    on_full: Annotated[str, Choice(("drop", "wait"))] = field(
        default="drop",
        metadata=about(
            "When the disk is too slow: `drop` and count messages, or let clients' new requests `wait`."
        ),
    )
    rotate_size: Annotated[int, Size(4096)] = field(
        default=64 * 2**20, metadata=about("Size from which on a new file is begun.")
    )
    rotate_age: Annotated[float, Duration()] = field(
        default=3600.0, metadata=about("Age from which on a new file is begun, with the next message.")
    )
    compress: Annotated[bool, Flag()] = field(
        default=True, metadata=about("Compress files that are complete, with gzip.")
    )
    keep_bytes: Annotated[int, Size(4096, 2**50)] = field(
        default=2**30, metadata=about("All files together; the oldest go first.")
    )
    keep_files: Annotated[int, Whole(1, 1_000_000)] | None = field(
        default=None, metadata=about("Number of files; the oldest go first.")
    )
    keep_age: Annotated[float, Duration()] | None = field(
        default=None, metadata=about("Files that were last written longer ago than this are removed.")
    )

    @property
    def on(self) -> bool:
        """Whether any message may be kept."""
        return self.level != "off" or any(rule.level != "off" for rule in self.rules)
