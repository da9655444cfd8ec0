"""How a replay opens a legacy session: as its client did, or as well as can be."""

from __future__ import annotations

from typing import Any

import trio

from mcpmux import __version__
from mcpmux.errors import RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import Reply, raw
from mcpmux.protocol.handshake import ServerFacts, initialize_call
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import LEGACY, NEWEST_LEGACY
from mcpmux.runtime.upstreams.connection import Channel, unheard
from mcpmux.runtime.upstreams.http_refusal import HttpStatusError
from mcpmux.traffic.reading.turn import Dialogue, Turn

_CAPABILITY = {m.CREATE_MESSAGE: "sampling", m.ELICIT: "elicitation", m.ROOTS_LIST: "roots"}


def opening(dialogue: Dialogue) -> Turn | None:
    """The request that opened its legacy session, as far as it is in the capture."""
    return next((turn for turn in dialogue.turns() if _opens(turn)), None)


def _opens(turn: Turn) -> bool:
    return turn.method == m.INITIALIZE and turn.problem is None and isinstance(turn.answer, Reply)


def opening_call(dialogue: Dialogue) -> Call:
    """The same as a call; one that is made up of what its client did when it is not in the capture."""
    first = opening(dialogue)
    if first is not None:
        return Call(m.INITIALIZE, first.params, first.meta)
    info = raw({"name": dialogue.client or "mcpmux replay", "version": __version__})
    asked = {question.method for question in dialogue.questions}
    offered: dict[str, Any] = {_CAPABILITY[method]: {} for method in asked if method in _CAPABILITY}
    call = initialize_call(info, raw(offered))
    revision = next((t.revision for t in dialogue.turns() if t.revision in LEGACY), NEWEST_LEGACY)
    call.params["protocolVersion"] = raw(revision)
    return call


async def initialize(channel: Channel, call: Call, timeout: float) -> tuple[Channel, Fields]:
    """The answer to `initialize`, and what carries the session: maybe the transport of 2024-11-05.

    Raises McpmuxError, also when there is no answer within `timeout` seconds.
    """
    with trio.move_on_after(timeout):
        try:
            return channel, await channel.exchange(call, unheard)
        except (RpcError, HttpStatusError):
            older = await channel.older()
            if older is None:
                raise
            return older, await older.exchange(call, unheard)
    raise TransportError(f"no answer to `initialize` within {timeout:g} s")


async def settle(channel: Channel, facts: ServerFacts) -> None:
    """The session is open. Raises TransportError."""
    channel.settle(facts)
    await channel.notify(m.INITIALIZED)
    await channel.listen()
