"""Paths into a message: `params.arguments.ssn`, `result.content[*].text`, `..name` for a member below.

Names with special characters are written `["a.b"]`; a `$` in front stands for the message and may be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from attrs import field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import (
    HEADER_NAME,
    HEADER_VALUE,
    Choice,
    Duration,
    Flag,
    HttpUrl,
    SecretText,
    Share,
    Size,
    Text,
    Whole,
    about,
)

if TYPE_CHECKING:
    import regex


class Wild(Enum):
    """Steps that stand for more than one member."""

    ONE = "*"
    DEEP = ".."


ONE: Final = Wild.ONE
DEEP: Final = Wild.DEEP

Step: TypeAlias = str | int | Wild

PATH_LIMIT = 32  # steps

_STEP = re.compile(
    r"""(?:(\.\.)|\.)?(?:([^\s.\[\]"'*$][^\s.\[\]"'*]*)|(\*))|(\.\.)?\[(?:(\d{1,9})|(\*)|("(?:[^"\\]|\\.)+"))\]"""
)
_EXPECTED_PATH = "expected a path such as `params.arguments.ssn`, `result.content[*].text` or `..name`"


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises Unfit."""
    steps: list[Step] = []
    at = 1 if text.startswith("$") else 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (at > 0 and text[at] not in ".[" and text[at - 1] != "$"):
            raise Unfit(_EXPECTED_PATH)
        at = match.end()
        if match[1] or match[4]:
            steps.append(DEEP)
        steps.append(_step_of(match))
    if not steps or len(steps) > PATH_LIMIT:
        raise Unfit(_EXPECTED_PATH)
    return tuple(steps)


def _step_of(match: re.Match[str]) -> Step:
    if match[2]:
        return match[2]
    if match[5]:
        return int(match[5])
    if match[7]:
        try:
            return str(json.loads(match[7]))
        except ValueError:
            raise Unfit(_EXPECTED_PATH) from None
    return ONE


# Which messages are kept in files, how much of each, and what becomes of the files.

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


# What the audit log is, and what happens when it cannot be written.

# Long enough that it cannot be guessed when it is random text.
MIN_AUDIT_KEY = 16
AuditKey: TypeAlias = Annotated[
    Secret, SecretText(f"at least {MIN_AUDIT_KEY} characters", rf"[^\x00]{{{MIN_AUDIT_KEY},}}")
]


@frozen(kw_only=True)
class Audit:
    """One record of every exchange, hash-chained, in files that are never deleted."""

    directory: Annotated[str, Text("the path of a folder", r"[^\x00]+")] | None = field(
        default=None,
        metadata=about(
            "Where the files are, made when it is missing; relative to where mcpmux was started. "
            "Without it there is no audit log."
        ),
    )
    key: AuditKey | None = field(
        default=None,
        metadata=about("Makes the hashes, so that nobody without it can write a chain that holds."),
    )
    rotate_size: Annotated[int, Size(4096)] = field(
        default=64 * 2**20, metadata=about("Size from which on a new file is begun; the chain goes on.")
    )
    sync: Annotated[str, Choice(("batch", "always", "never"))] = field(
        default="batch",
        metadata=about(
            "Before its answer goes out a record is on the disk, together with whatever waits (`batch`) or "
            "by itself (`always`), or only with the system, which a power cut may lose (`never`)."
        ),
    )
    on_full: Annotated[str, Choice(("refuse", "continue"))] = field(
        default="refuse",
        metadata=about(
            "When the log cannot be written: `refuse` exchanges, or `continue` and note the gap afterwards."
        ),
    )
    begin: Annotated[str, Choice(("listens", "all"))] = field(
        default="listens",
        metadata=about(
            "Which exchanges have a record before anything is done for them, too: those that may last for "
            "days, or `all`, so that nothing is ever done without a trace."
        ),
    )


# What must never be written down, besides what mcpmux knows by itself: as the user says it, checked.
#
# A pattern is tried once, on text made to be hard for it, so that one that takes forever on hostile text is
# a mistake in the configuration and not a surprise.

BUILT_IN = (
    "authorization",
    "cookie",
    "password",
    "secret",
    "token",
    "api-key",
    "private-key",
    "jwt",
    "vendor-key",
    "url-userinfo",
    "url-token",
)
"""The rules that mcpmux has by itself, as its replacements name them."""

PROBE_SECONDS = 0.2  # for a text of PROBE_LENGTH; a pattern without trouble needs well under a millisecond
PROBE_LENGTH = 3000


class JsonPath(Text, frozen=True):
    """A path into a message; it stays text."""

    expected: str = "a path"
    pattern: str = r"[^\x00]+"

    def read(self, value: object) -> str:
        text: str = super().read(value)
        parse_path(text)
        return text


class Pattern(Text, frozen=True):
    """A regular expression; it stays text."""

    expected: str = "a regular expression"
    pattern: str = r"[^\x00]+"

    def read(self, value: object) -> str:
        text: str = super().read(value)
        check_pattern(text)
        return text


def compile_pattern(text: str) -> regex.Pattern[str]:
    """A regular expression of the user. Raises Unfit for what is none."""
    import regex  # not at the top: it is large, and few configurations have a pattern

    try:
        return regex.compile(text)
    except regex.error as error:
        raise Unfit(
            f"expected a regular expression: {error.msg} at character {(error.pos or 0) + 1}"
        ) from None


def check_pattern(text: str) -> None:
    """Raises Unfit for what is no regular expression, matches nothing at all, or takes forever."""
    compiled = compile_pattern(text)
    try:
        if compiled.search("", timeout=PROBE_SECONDS) is not None:
            raise Unfit("expected a regular expression that does not match empty text")
        for probe in _probes_of(text):
            compiled.search(probe, timeout=PROBE_SECONDS)
    except TimeoutError:
        raise Unfit(
            "this regular expression takes too long on long text; repeat nothing inside a repetition, "
            "and bound repetitions: {1,64} in place of +"
        ) from None


def _probes_of(pattern: str) -> list[str]:
    """Texts of few characters over and over, with an end that fits nothing."""
    letters = dict.fromkeys([*(char for char in pattern if char.isalnum()), *"aA0 -_./=@"])
    singles = [letter * PROBE_LENGTH + "\x01" for letter in list(letters)[:40]]
    return [*singles, "aA0-" * (PROBE_LENGTH // 4) + "\x01", "0 " * (PROBE_LENGTH // 2) + "\x01"]


class KeyName(Text, frozen=True):
    """The name of a member; it must be more than separators."""

    expected: str = "the name of a member"
    pattern: str = r"[^\x00]*[^\x00\s._-][^\x00]*"


class RuleName(Text, frozen=True):
    """What a replacement says."""

    expected: str = "a name of letters, digits, spaces and -"
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9 -]{0,31}"


def _read_only(patterns: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(patterns))


@frozen(kw_only=True)
class Redaction:
    """What is replaced in everything that is written down or shown of messages."""

    keys: tuple[Annotated[str, KeyName()], ...] = field(
        default=(),
        metadata=about(
            "Members whose values are replaced wherever they are; case, `-` and `_` do not matter."
        ),
    )
    paths: tuple[Annotated[str, JsonPath()], ...] = field(
        default=(), metadata=about("Places in a message that are replaced: `params.arguments.ssn`.")
    )
    patterns: Mapping[Annotated[str, RuleName()], Annotated[str, Pattern()]] = field(
        factory=dict,
        converter=_read_only,
        metadata=about("Regular expressions by name; what they match in any text is replaced by the name."),
    )
    skip: tuple[Annotated[str, Choice(BUILT_IN)], ...] = field(
        default=(), metadata=about("Built-in rules not to use, for what they find where no secret is.")
    )


# Whether and where OpenTelemetry spans and metrics are sent.


def _tracing_read_only(headers: Mapping[str, Secret]) -> Mapping[str, Secret]:
    return MappingProxyType(dict(headers))


@frozen(kw_only=True)
class Tracing:
    """OpenTelemetry after its conventions for MCP, sent by OTLP over HTTP. Needs the extra `otel`."""

    enabled: Annotated[bool, Flag()] = field(
        default=False, metadata=about("Make spans of exchanges and their calls of upstreams, and send them.")
    )
    endpoint: Annotated[str, HttpUrl()] | None = field(
        default=None,
        metadata=about(
            "Base URL of the collector; /v1/traces and /v1/metrics are put behind it. Default: as the "
            "OTEL_EXPORTER_OTLP_* variables say, else http://localhost:4318."
        ),
    )
    headers: Mapping[Annotated[str, HEADER_NAME], Annotated[Secret, HEADER_VALUE]] = field(
        factory=dict,
        converter=_tracing_read_only,
        metadata=about("Headers for the collector, such as its key."),
    )
    service: Annotated[str, Text("text that is not empty", r"[^\x00]+")] = field(
        default="mcpmux", metadata=about("`service.name` of everything that is sent.")
    )
    sample: Annotated[float, Share()] = field(
        default=1.0,
        metadata=about(
            "Share of the traces that begin here to be sent, 0 to 1; a caller's own trace goes by its flag."
        ),
    )
    propagate: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about(
            "Tell upstreams the trace, in `_meta` and HTTP headers; `false` leaves what clients say as it is."
        ),
    )
    metrics: Annotated[bool, Flag()] = field(
        default=True, metadata=about("Send the durations of operations as OpenTelemetry metrics, too.")
    )
    interval: Annotated[float, Duration()] = field(
        default=60.0, metadata=about("How often metrics are sent.")
    )
    queue_spans: Annotated[int, Whole(16, 1_000_000)] = field(
        default=4096, metadata=about("Spans that may wait to be sent; more are dropped, and told.")
    )
