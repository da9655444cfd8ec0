"""What came of one request, in words that are counted; whether a read brought what it always did. Pure."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from mcpmux.bench.operation import Ask
from mcpmux.bench.results import OK
from mcpmux.errors import ConnectFailed, McpmuxError, RemoteProtocolError, RpcError
from mcpmux.protocol.envelope import Fields, text_of
from mcpmux.runtime.upstreams.http_peer import HttpStatusError, SessionExpired

WRONG = "wrong answer"
TIMEOUT = "timeout"
UNFINISHED = "unfinished"
TOOL_ERROR = "tool error"
WANTS_INPUT = "asks for input"
DIGEST_BYTES = 16  # enough that two different answers never look alike


class Answer(NamedTuple):
    """One request's end. `lost`: why the server could not be spoken to, None when it answered.

    Bytes are those of `params` and of the result, as JSON; neither envelopes nor headers.
    """

    outcome: str
    sent_bytes: int
    received_bytes: int
    lost: str | None = None


def size_of(fields: Fields) -> int:
    """Bytes of the members of a JSON object."""
    return sum(len(key) + memoryview(value).nbytes + 4 for key, value in fields.items()) + 2


def describe(error: McpmuxError) -> str:
    """The kind of an error, short enough to be counted under."""
    if isinstance(error, RpcError):
        return f"rpc {error.code}"
    if isinstance(error, HttpStatusError):
        return f"http {error.status}"
    if isinstance(error, SessionExpired):
        return "session expired"
    if isinstance(error, RemoteProtocolError):
        return "makes no sense"
    return "not reachable" if isinstance(error, ConnectFailed) else "connection lost"


def judge(result: Fields) -> str:
    """The outcome of a result by what it says of itself."""
    failed = result.get("isError")
    if failed is not None and bytes(failed) == b"true":
        return TOOL_ERROR
    kind = result.get("resultType")
    return WANTS_INPUT if kind is not None and text_of(kind) == "input_required" else OK


class Checker:
    """Remembers the first answer for each subject and compares the later ones. `mode`: length or hash."""

    def __init__(self, mode: str) -> None:
        self._hashes = mode == "hash"
        self._known: dict[str, int | bytes] = {}

    def __repr__(self) -> str:
        return f"<Checker of {len(self._known)}>"

    def judge(self, ask: Ask, result: Fields) -> str:
        """`judge`, and WRONG for contents that differ from those that came first."""
        outcome = judge(result)
        contents = result.get("contents")
        if outcome != OK or ask.subject is None or contents is None:
            return outcome if ask.subject is None or contents is not None else WRONG
        data = memoryview(contents)
        seen = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest() if self._hashes else data.nbytes
        return OK if self._known.setdefault(ask.subject, seen) == seen else WRONG
