"""What a server that is played from a capture says about itself. Pure.

As it said it then; in an era that was not captured, the same facts in the words of that era. Where no
handshake was captured, it offers what was asked for.
"""

from __future__ import annotations

from typing import Any

from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import Reply, decode_fields, raw, text_of, value_of
from mcpmux.protocol.meta import META, SERVER_INFO
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import SUPPORTED, negotiate_legacy
from mcpmux.traffic.mock.matching import Book
from mcpmux.traffic.reading.turn import Turn

NAME = "mcpmux mock"
_REQUESTED = "protocolVersion"
_OFFERED_BY = {
    m.TOOLS_CALL: "tools",
    m.PROMPTS_GET: "prompts",
    m.RESOURCES_READ: "resources",
    m.COMPLETE: "completions",
    m.SET_LEVEL: "logging",
    **{method: listed.capability for method, listed in m.LISTS.items()},
}


def find_discover(book: Book, call: Call, revision: str) -> Turn | None:
    """The captured `server/discover`."""
    return book.find(m.DISCOVER, call.params, revision)


def find_initialize(book: Book, params: Fields) -> Turn | None:
    """A captured `initialize`: the same, or one in which the same revision was asked for."""
    wanted = text_of(params.get(_REQUESTED)) or ""
    exact = book.find_exact(m.INITIALIZE, params, wanted)
    if exact is not None:
        return exact
    asked = [t for t in book.all_of(m.INITIALIZE) if text_of(t.params.get(_REQUESTED)) == wanted]
    return book.find_exact(m.INITIALIZE, asked[0].params, wanted) if asked else None


def make_discover(book: Book) -> Fields:
    """A DiscoverResult out of what else is known."""
    facts = _known(book)
    result: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": SUPPORTED,
        "capabilities": facts["capabilities"],
        "ttlMs": 0,
        "cacheScope": "private",
        META: {SERVER_INFO: facts["serverInfo"]},
    }
    if facts["instructions"] is not None:
        result["instructions"] = facts["instructions"]
    return {key: raw(value) for key, value in result.items()}


def make_initialize(book: Book, requested: str) -> Fields:
    """An InitializeResult out of what else is known."""
    facts = _known(book)
    result = {**facts, "protocolVersion": negotiate_legacy(requested)}
    return {key: raw(value) for key, value in result.items() if value is not None}


def _known(book: Book) -> dict[str, Any]:
    """`capabilities`, `serverInfo`, `instructions` as one of the captured handshakes says them."""
    for turn in (*book.all_of(m.INITIALIZE), *book.all_of(m.DISCOVER)):
        if not isinstance(turn.answer, Reply):
            continue
        result = value_of(turn.answer.result)
        if isinstance(result, dict) and isinstance(result.get("capabilities"), dict):
            info = result.get("serverInfo") or _info_in(turn.answer)
            return {
                "capabilities": result["capabilities"],
                "serverInfo": info or _INFO,
                "instructions": result.get("instructions"),
            }
    offered = {_OFFERED_BY[method] for method in book.methods if method in _OFFERED_BY}
    capabilities: dict[str, Any] = {name: {} for name in sorted(offered)}
    return {"capabilities": capabilities, "serverInfo": _INFO, "instructions": None}


_INFO = {"name": NAME, "version": "1"}


def _info_in(answer: Reply) -> Any:
    try:
        return value_of(decode_fields(decode_fields(answer.result).get(META)).get(SERVER_INFO))
    except ValueError:
        return None
