"""Which of a capture's requests are sent again, and when. Pure.

A request waits for the answers that the client had when it sent it: what was sent while another was still
being worked on is sent so again, at any speed, and what was made of an answer comes after it.
"""

from __future__ import annotations

from mcpmux.protocol import method as m
from mcpmux.traffic.reading.turn import Dialogue, Turn

READING = frozenset(
    {
        m.INITIALIZE,
        m.DISCOVER,
        m.PING,
        *m.LISTS,
        m.RESOURCES_READ,
        m.PROMPTS_GET,
        m.COMPLETE,
        m.RESOURCES_SUBSCRIBE,
        m.RESOURCES_UNSUBSCRIBE,
        m.LISTEN,
        m.SET_LEVEL,
    }
)
"""What changes nothing at a server but a session of its own."""

CANCELLED = "the client took it back"
UNANSWERED = "no answer to it is in the capture"


def why_not(turn: Turn, *, with_tools: bool) -> str | None:
    """Why a request is not sent again; None when it is."""
    if turn.problem is not None:
        return f"the request is {turn.problem}"
    if turn.method not in READING and not with_tools:
        kind = "calls a tool" if turn.method == m.TOOLS_CALL else "may change something"
        return f"it {kind}; --with-tools sends it"
    if turn.method == m.LISTEN:
        return None
    if turn.cancelled:  # what came nevertheless depends on how far the server was
        return CANCELLED
    return UNANSWERED if turn.answered_place is None else None


def waits_for(turn_place: int, earlier: Turn) -> bool:
    """Whether what came at `turn_place` of the capture came after the answer to `earlier`."""
    return earlier.answered_place is not None and earlier.answered_place < turn_place


def replayable(dialogue: Dialogue, *, with_tools: bool) -> bool:
    """Whether any request of it is sent again."""
    return any(why_not(turn, with_tools=with_tools) is None for turn in dialogue.turns())


def is_legacy(dialogue: Dialogue) -> bool:
    """Whether it needs a session that is opened with `initialize`."""
    return any(not turn.modern and turn.method != m.PING for turn in dialogue.turns())
