"""A short visit to servers: connect, ask, leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import attrs

from mcpmux.app import Mux, open_mux
from mcpmux.config import Config
from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.mux.merge import PAGE_LIMIT
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import decode_any, decode_list, raw, text_of
from mcpmux.protocol.meta import META
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.merger import LEFT_OUT

INPUT_REQUIRED = "input_required"


class Listing(NamedTuple):
    """Every item of a list, and why which upstreams are missing in it."""

    items: list[Fields]
    left_out: dict[str, str]


@asynccontextmanager
async def open_visit(config: Config) -> AsyncIterator[Mux]:
    """The mux once every upstream is ready or has failed. Raises TransportError when none is ready."""
    # Access rules are about clients; whoever has the configuration may see everything.
    async with open_mux(attrs.evolve(config, access=())) as mux:
        for upstream in mux.upstreams.values():
            await upstream.settled()
        troubles = absent(mux)
        if len(troubles) == len(mux.upstreams):
            raise TransportError("; ".join(f"{name}: {reason}" for name, reason in troubles.items()))
        yield mux


def absent(mux: Mux) -> dict[str, str]:
    """The upstreams that are not ready, and why."""
    return {name: up.trouble for name, up in mux.upstreams.items() if up.state != "ready"}


async def ignore(_event: Event) -> None:
    """Nobody listens to what is said before the answer."""


async def ask(mux: Mux, call: Call, notify: Notify, hint: str) -> Fields:
    """One call. `hint` says where to look when what it names is not there.

    Raises RpcError, and RemoteProtocolError when the server wants something of the user first.
    """
    try:
        result = await mux.router.exchange(call, notify)
    except RpcError as error:
        if error.code != INVALID_PARAMS:
            raise
        raise RpcError(error.code, f"{error.message}; {hint}", error.data) from None
    if text_of(result.get("resultType")) == INPUT_REQUIRED:
        raise RemoteProtocolError("it asks for the user's input, which only a host app can give")
    return result


async def walk(mux: Mux, method: str) -> Listing:
    """A whole list, page by page; an empty one where no such list is. Raises RpcError and McpmuxError."""
    listing = Listing([], {})
    params: Fields = {}
    cursors: set[str] = set()
    while True:
        try:
            result = await mux.router.exchange(Call(method, params, {}), ignore)
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:
                return listing
            raise
        listing.items.extend(_items(method, result))
        listing.left_out.update(read_left_out(result))
        cursor = text_of(result.get("nextCursor"))
        if cursor is None:
            return listing
        if cursor in cursors or len(cursors) >= PAGE_LIMIT:
            raise RemoteProtocolError(
                f"{method} never ends: after {len(cursors)} pages there is still a next"
            )
        cursors.add(cursor)
        params = {"cursor": raw(cursor)}


def _items(method: str, result: Fields) -> list[Fields]:
    try:
        return decode_list(result[m.LISTS[method].items])
    except (KeyError, ValueError):
        raise RemoteProtocolError(f"the answer to {method} has no list in it") from None


def read_left_out(result: Fields) -> dict[str, str]:
    """What a mux, this one or the one asked, says is missing in its answer."""
    meta = decode_any(result.get(META, b"null"))
    told = meta.get(LEFT_OUT) if isinstance(meta, dict) else None
    if not isinstance(told, dict):
        return {}
    return {name: str(entry.get("reason", "")) for name, entry in told.items() if isinstance(entry, dict)}
