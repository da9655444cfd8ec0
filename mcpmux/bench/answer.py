"""The outcome of one request, as a word to count it under; a check that reads stay equal. Pure.

A `Chain` is the requests of one client, one after another. An answer that is as it should be can be counted,
and the next request sent, where it was received, without waking the client's task in between: that is most of
what a request costs the load generator.

asked -- `advance`: a good answer, and an ask follows --> asked, or `pending` if not to be sent at once
      -- `advance`: anything else                     --> None: the answer goes to the task that waits
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from attrs import define, field

from mcpmux.bench.operation import SEVERAL, Ask
from mcpmux.channels.http_peer import HttpStatusError, SessionExpired
from mcpmux.errors import ConnectFailed, McpmuxError, RemoteProtocolError, RpcError
from mcpmux.protocol.envelope import decode_list, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.outcome import OK, outcome_of

WRONG = "wrong answer"
TIMEOUT = "timeout"
UNFINISHED = "unfinished"
MOST_KNOWN = 100_000  # first answers that are remembered; a template may make any number of subjects
DIGEST_BYTES = 16  # enough that two different answers never look alike


class Answer(NamedTuple):
    """End of one request. Bytes are of its params and result, as JSON. `lost`: why there is no answer."""

    outcome: str
    sent_bytes: int
    received_bytes: int
    lost: str | None = None


def size_of(fields: Fields) -> int:
    """Return the bytes of the members of a JSON object."""
    size = 2
    for key, value in fields.items():  # a loop takes a third of the time that a sum takes
        size += len(key) + memoryview(value).nbytes + 4
    return size


def describe(error: McpmuxError) -> str:
    """Return the kind of an error, short enough to be counted under."""
    if isinstance(error, RpcError):
        return f"rpc {error.code}"
    if isinstance(error, HttpStatusError):
        return f"http {error.status}"
    if isinstance(error, SessionExpired):
        return "session expired"
    if isinstance(error, RemoteProtocolError):
        return "makes no sense"
    return "not reachable" if isinstance(error, ConnectFailed) else "connection lost"


def words_of(result: Fields) -> str:
    """Return a tool's description of its failure: the first text in its content, "" without one."""
    with suppress(KeyError, ValueError):
        texts = (text_of(block.get("text")) for block in decode_list(result["content"]))
        return next((text for text in texts if text is not None), "")
    return ""


@define(eq=False, repr=False)
class Checker:
    """Compares answers with the first of their subject, of MOST_KNOWN at most; by length, by hash, or not."""

    _mode: str | None
    _known: dict[str, int | bytes] = field(factory=dict)

    def judge(self, ask: Ask, result: Fields) -> str:
        """Return the outcome of an answer; WRONG for contents that differ from the first ones."""
        outcome = outcome_of(ask.call.method, result)
        contents = result.get("contents")
        if outcome != OK or ask.subject is None or self._mode is None:
            return outcome
        if contents is None:
            return WRONG
        data = memoryview(contents)
        hashed = self._mode == "hash"
        seen = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest() if hashed else data.nbytes
        if len(self._known) >= MOST_KNOWN:
            return OK if self._known.get(ask.subject, seen) == seen else WRONG
        return OK if self._known.setdefault(ask.subject, seen) == seen else WRONG


Judge = Callable[[Ask, Fields], str]

Follow = Callable[[int, int], Ask | None]
"""Counts a good answer by its bytes sent and received, and gives the next ask; or does neither."""


@define(eq=False, repr=False)
class Chain:
    """`pending`: `follow` gave the `ask`, which is not sent yet. `number`: the id of what was sent last."""

    ask: Ask
    judge: Judge
    _follow: Follow | None = None
    pending: bool = False
    number: int = 0
    sent_bytes: int = 0

    def advance(self, result: Fields, sent_bytes: int) -> Ask | None:
        """Take the answer to `ask`; returns the ask that is to be sent at once."""
        if self._follow is None or self.judge(self.ask, result) != OK:
            return None
        ask = self._follow(sent_bytes, size_of(result))
        if ask is None:
            return None
        self.ask = ask
        self.pending = ask.call.method in SEVERAL
        return None if self.pending else ask
