"""What to record of the traffic: capture files, the audit log, redaction and OpenTelemetry. Settings only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, TypeAlias

from attrs import field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import (
    HTTP_URL,
    KEY_TEXT,
    Choice,
    Filled,
    Flag,
    Fraction,
    HeaderTable,
    Seconds,
    Size,
    Text,
    Whole,
    read_only,
)

# Paths into a message: `params.arguments.ssn`, `result.content[*].text`, `..name` for a member anywhere
# below. Names with special characters are written `["a.b"]`. A path may begin with `$`, the message itself.


class Wild(Enum):
    """Steps that stand for more than one member."""

    ONE = "*"
    DEEP = ".."


ONE: Final = Wild.ONE
DEEP: Final = Wild.DEEP

Step: TypeAlias = str | int | Wild

PATH_LIMIT = 32  # steps

_STEP = re.compile(
    r"""(?:(\.\.)|\.(?!\[))?(?:([^\s.\[\]"'*$][^\s.\[\]"'*]*)|\*|\[(?:(\d{1,9})|\*|("(?:[^"\\]|\\.)+"))\])"""
)
_EXPECTED_PATH = "expected a path such as `params.arguments.ssn`, `result.content[*].text` or `..name`"


def parse_path(text: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises InvalidValue."""
    steps: list[Step] = []
    at = 1 if text.startswith("$") else 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (at > 0 and text[at] not in ".[" and text[at - 1] != "$"):
            raise InvalidValue(_EXPECTED_PATH)
        at = match.end()
        deep, name, index, quoted = match.groups()
        if deep is not None:
            steps.append(DEEP)
        try:
            steps.append(name or (int(index) if index else json.loads(quoted) if quoted else ONE))
        except ValueError:
            raise InvalidValue(_EXPECTED_PATH) from None
    if not steps or len(steps) > PATH_LIMIT:
        raise InvalidValue(_EXPECTED_PATH)
    return tuple(steps)


# Capture files, and the audit log.

LEVELS = ("off", "metadata", "truncated", "full")
"""From nothing to everything."""

Level: TypeAlias = Annotated[str, Choice(LEVELS)]
GlobText: TypeAlias = Annotated[str, Text("a name, in which * stands for any text", r"[^\x00\s]+")]
Folder: TypeAlias = Annotated[str, Text("the path of a folder", r"[^\x00]+")]


@frozen(kw_only=True)
class CaptureRule:
    """The level for some messages. A rule applies when everything that it names fits."""

    level: Level
    """How much of these messages to keep."""
    upstream: GlobText | None = None
    """Name of the upstream that they go to or come from. * stands for any text."""
    method: GlobText | None = None
    """Method. A response has the method of its request. * stands for any text."""

    def __attrs_post_init__(self) -> None:
        if self.upstream is None and self.method is None:
            raise InvalidValue("expected `upstream` or `method`; for all messages set `level` of `capture`")


@frozen(kw_only=True)
class Capture:
    """Writes the messages that clients and upstreams send and receive to files of JSON lines, redacted."""

    level: Level = "off"
    """How much of each message to keep: nothing, all but the body, the beginning of the body, everything."""
    rules: tuple[CaptureRule, ...] = ()
    """Other levels for some upstreams and methods. The first rule that fits counts."""
    directory: Folder = "mcpmux-capture"
    """Folder for the files. It is created if it is missing. Relative to where mcpmux was started."""
    body_bytes: Annotated[int, Size(1)] = 4096
    """How much of a body to keep at level `truncated`."""
    queue_bytes: Annotated[int, Size(65536)] = 32 * 2**20
    """Memory for messages that wait to be written, usually for 0.25 s at most. `kill -9` loses them. A longer
    message is kept if no other waits.
    """
    on_full: Annotated[str, Choice(("drop", "wait"))] = "drop"
    """If the disk is too slow: `drop` messages and count them, or let new requests of clients `wait`."""
    rotate_size: Annotated[int, Size(4096)] = 64 * 2**20
    """Size at which a new file is started, before it is compressed."""
    rotate_age: Seconds = 3600.0
    """Age at which a new file is started, with the next message."""
    compress: Annotated[bool, Flag()] = True
    """Compress files with gzip while they are written."""
    keep_bytes: Annotated[int, Size(4096, 2**50)] = 2**30
    """Size of all files together. The oldest files are deleted first."""
    keep_files: Annotated[int, Whole(1, 1_000_000)] | None = None
    """Number of files. The oldest files are deleted first."""
    keep_age: Seconds | None = None
    """Files that were last written longer ago than this are deleted."""

    @property
    def on(self) -> bool:
        """Whether any message may be kept."""
        return self.level != "off" or any(rule.level != "off" for rule in self.rules)


@frozen(kw_only=True)
class Audit:
    """One record for every exchange, chained by hashes, in files that are never deleted."""

    directory: Folder | None = None
    """Folder for the files. It is created if it is missing. Relative to where mcpmux was started. Without it
    there is no audit log.
    """
    key: Annotated[Secret, KEY_TEXT] | None = None
    """Key of the hashes. Without it no chain that verifies can be written."""
    rotate_size: Annotated[int, Size(4096)] = 64 * 2**20
    """Size at which a new file is started. The chain goes on in it."""
    sync: Annotated[str, Choice(("batch", "always"))] = "batch"
    """When a record is on the disk. `batch`: before the response goes out, together with other records that
    wait. `always`: before the response goes out, each record by itself.
    """
    on_full: Annotated[str, Choice(("refuse", "continue"))] = "refuse"
    """If the log cannot be written: `refuse` exchanges, or `continue` and note the gap afterwards."""


# What to redact besides what mcpmux always redacts.

BUILT_IN = (
    *("authorization", "cookie", "password", "secret", "token", "api-key", "private-key", "jwt"),
    *("vendor-key", "url-userinfo", "url-token"),
)
"""The built-in rules, as replacements name them."""


def compile_pattern(text: str) -> Any:
    """Compile a regular expression of the user, for text in UTF-8. Raises InvalidValue if it is none.

    It is one of RE2, which takes time that grows with the text alone. So there is no look-around.
    """
    import re2  # not at the top: it is large, and few configurations have a pattern

    options = re2.Options()
    options.log_errors = False  # with the pattern in them
    try:
        return re2.compile(text.encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason = error.args[0].decode().partition(":")[0]  # then follows a part of the pattern
        raise InvalidValue(f"expected a regular expression of RE2: {reason}") from None


def check_pattern(text: str) -> str:
    """Return the text. Raises InvalidValue if it is no regular expression, or matches empty text."""
    if compile_pattern(text).search(b"") is not None:
        raise InvalidValue("expected a regular expression that does not match empty text")
    if r"\C" in text:
        raise InvalidValue(r"expected a regular expression without \C, which cuts characters into bytes")
    return text


JsonPath: TypeAlias = Annotated[str, Text("a path", r"[^\x00]+", lambda text: parse_path(text) and text)]
PatternText: TypeAlias = Annotated[str, Text("a regular expression", r"[^\x00]+", check_pattern)]
KeyName: TypeAlias = Annotated[str, Text("the name of a member", r"[^\x00]*[^\x00\s._-][^\x00]*")]
RULE_NAME = Text("a name of letters, digits, spaces and -", r"[A-Za-z0-9][A-Za-z0-9 -]{0,31}")


@frozen(kw_only=True)
class Redaction:
    """What to replace in all messages that are written down or shown."""

    keys: tuple[KeyName, ...] = ()
    """Names of members whose values are replaced anywhere. Case, `-` and `_` do not matter."""
    paths: tuple[JsonPath, ...] = ()
    """Places in a message whose values are replaced, such as `params.arguments.ssn`."""
    patterns: Mapping[Annotated[str, RULE_NAME], PatternText] = field(factory=dict, converter=read_only)
    """Regular expressions (RE2) by name. What they match in any text is replaced by the name."""
    skip: tuple[Annotated[str, Choice(BUILT_IN)], ...] = ()
    """Built-in rules not to use, because they find text that is no secret."""


@frozen(kw_only=True)
class Tracing:
    """OpenTelemetry spans and metrics by its conventions for MCP, sent by OTLP over HTTP.

    Needs the extra `otel`.
    """

    enabled: Annotated[bool, Flag()] = False
    """Make spans of exchanges and of their calls to upstreams, and send them."""
    endpoint: Annotated[str, HTTP_URL] | None = None
    """Base URL of the collector. /v1/traces and /v1/metrics are appended. Default: what the environment
    variables OTEL_EXPORTER_OTLP_* say, else http://localhost:4318.
    """
    headers: HeaderTable = field(factory=dict, converter=read_only)
    """Headers for the collector, such as its API key."""
    service: Filled = "mcpmux"
    """The `service.name` of everything that is sent."""
    sample: Annotated[float, Fraction()] = 1.0
    """Share of the traces that start here to send, from 0 to 1. A caller's own trace keeps its own flag."""
    propagate: Annotated[bool, Flag()] = True
    """Pass the trace on to upstreams in `_meta` and HTTP headers. `false` passes on what clients say."""
    metrics: Annotated[bool, Flag()] = True
    """Also send the durations of operations as OpenTelemetry metrics."""
    interval: Seconds = 60.0
    """How often metrics are sent."""
    queue_spans: Annotated[int, Whole(16, 1_000_000)] = 4096
    """Number of spans that may wait to be sent. More are dropped, and the log says so."""
