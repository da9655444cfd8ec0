"""JSON-RPC batches, which revision 2025-03-26 alone has: what is in one, and the one answer to it.

Promises: a member that cannot be read spoils only itself; the answer is one array, with an answer for each
request that was not cancelled, in the order in which they were ready; nothing when there is none to give.

    reading --settle()--> ended   (then the array, as soon as no answer is awaited any more)
    expect()              one more answer is awaited
    settle(answer)        one of them is there; None: there will be none

Source: JSON-RPC 2.0 section 6; "Batching" in the Base Protocol overview and "Transports", 2025-03-26.
"""

from __future__ import annotations

from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import BadMessage, Message, decode_message, split_batch

BATCH_LIMIT = 256  # members; as many as a session may have requests in flight


def read_batch(data: bytes) -> list[Message | BadMessage]:
    """The members of a batch; those that are no messages as what is wrong with them.

    Raises BadMessage when the whole is malformed, empty or too long.
    """
    members = split_batch(data)
    if len(members) > BATCH_LIMIT:
        raise BadMessage(INVALID_REQUEST, f"Invalid request: a batch of more than {BATCH_LIMIT} messages")
    return [_read(member) for member in members]


def _read(member: bytes) -> Message | BadMessage:
    try:
        return decode_message(member)
    except BadMessage as bad:
        return bad


class BatchAnswer:
    """The answer to one batch, while it is made."""

    def __init__(self) -> None:
        self._awaited = 1  # the reading itself, so that no answer is the last one before its end
        self._answers: list[bytes] = []

    def __repr__(self) -> str:
        return f"<BatchAnswer {len(self._answers)} answers, {self._awaited} awaited>"

    def expect(self) -> None:
        """One more answer is to be waited for."""
        self._awaited += 1

    def settle(self, answer: bytes | None = None) -> bytes | None:
        """An answer has come, or will not come; the whole array when that was the last thing to wait for."""
        if answer is not None:
            self._answers.append(answer)
        self._awaited -= 1
        return b"[" + b",".join(self._answers) + b"]" if self._awaited == 0 and self._answers else None
