"""A visit to the servers of a configuration: connect, ask, leave. A person at the terminal can be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import attrs

from mcpmux.app import Mux, open_mux
from mcpmux.cli import console
from mcpmux.cli.client.arguments import decoded
from mcpmux.cli.client.questions import CAPABILITIES, answer_all, has_person
from mcpmux.config import Config, Http, WebSocket
from mcpmux.config.model import Target
from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.library.client import list_items
from mcpmux.library.mux import absent
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, META, PROGRESS_TOKEN, Call, Event, Notify, is_complete
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import raw, text_of, value_of
from mcpmux.protocol.input_requests import Wish
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.merger import ITEMS, LEFT_OUT
from mcpmux.runtime.round_trips import end_rounds


@asynccontextmanager
async def open_visit(config: Config, *, has_access: bool = False) -> AsyncIterator[Mux]:
    """Yield the mux once every upstream is ready or has failed. Raises TransportError when none is ready.

    `has_access`: access rules hold. They are for clients: who has the configuration may see everything.
    """
    async with open_mux(config if has_access else attrs.evolve(config, access=())) as mux:
        for upstream in mux.upstreams.values():
            await upstream.supervision.settled()
        troubles = absent(mux)
        if len(troubles) == len(mux.upstreams):
            hints = [hint for upstream in config.upstreams if (hint := _hint_at(upstream.target))]
            # The user has just named a single target.
            is_one = all(not upstream.prefix for upstream in config.upstreams)
            reasons = (reason if is_one else f"{name}: {reason}" for name, reason in troubles.items())
            raise TransportError("; ".join([*reasons, *hints]))
        yield mux


def _hint_at(target: Target) -> str:
    """Return another URL to try when there is no server at a target; "" if no other is likelier."""
    parts = urlsplit(target.url) if isinstance(target, Http | WebSocket) else None
    if parts is None or parts.path not in ("", "/"):
        return ""
    return f"most servers have a path in their URL, such as {parts.scheme}://{parts.netloc.rpartition('@')[2]}/mcp"


class Visit:
    """One client at the servers of a configuration, for requests one after the other."""

    def __init__(self, mux: Mux, activity: console.Activity) -> None:
        self._mux, self._activity = mux, activity

    async def exchange(self, method: str, params: Mapping[str, Any], hint: str = "") -> Fields:
        """Send a request and return its result. A person at the terminal answers what the server asks.

        `hint` follows the error if what the request names does not exist. Raises RpcError, and
        RemoteProtocolError for a question without a person.
        """
        meta = {PROGRESS_TOKEN: raw("progress")}
        if has_person():
            meta[CLIENT_CAPABILITIES] = CAPABILITIES
        call = Call(method, {key: raw(value) for key, value in params.items()}, meta, self)
        try:
            exchange, notify = self._mux.router.exchange, self._show_progress
            result = await exchange(call, notify)
            if not is_complete(result):
                result = await end_rounds(result, exchange, call, notify, self._answer)
            return result
        except RpcError as error:
            if error.code != INVALID_PARAMS or not hint:
                raise
            joint = " " if error.message.endswith("?") else "; "
            raise RpcError(error.code, f"{error.message}{joint}{hint}", error.data) from None

    async def _answer(self, _result: Fields, wishes: dict[str, Wish]) -> Fields:
        if wishes and not has_person():
            problem = "the server asks for input, which a person can give at a terminal, or in a host app"
            raise RemoteProtocolError(problem)
        with self._activity.paused():
            return await answer_all(wishes)

    async def find(self, method: str, name: str) -> Fields | None:
        """Return the item of this name in a list, None when it is not there or the list cannot be had."""
        with suppress(RpcError, RemoteProtocolError):
            items = await list_all(self._mux, method, {})
            return next((item for item in items if text_of(item.get("name")) == name), None)
        return None

    async def _show_progress(self, event: Event) -> None:
        if event.method == m.PROGRESS:
            progress, total = (_number(event.params, key) for key in ("progress", "total"))
            self._activity.report(progress or 0, total, text_of(event.params.get("message")) or "")


@asynccontextmanager
async def open_client(config: Config, activity: str) -> AsyncIterator[Visit]:
    """Visit the servers, with a progress bar about `activity`. Raises TransportError when none is ready."""
    async with console.show_activity(activity) as shown, open_visit(config) as mux:
        yield Visit(mux, shown)


def _number(params: Fields, key: str) -> float | None:
    value = value_of(params.get(key))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


async def list_all(mux: Mux, method: str, left_out: dict[str, str]) -> list[Fields]:
    """Return every item of a list, if any; missing upstreams go to `left_out`. Raises McpmuxError."""

    async def exchange(call: Call, notify: Notify) -> Fields:
        result = await mux.router.exchange(call, notify)
        for name, reason in (read_left_out(result) | read_items_left_out(result)).items():
            left_out.setdefault(name, reason)  # what is known of our own upstreams is shorter
        return result

    return await list_items(Call(method, {}, {}), exchange)


def read_left_out(result: Fields) -> dict[str, str]:
    """Return the upstreams that this mux, or a mux behind it, has left out of a result, with the reason."""
    note = decoded(result, META, dict).get(LEFT_OUT)
    entries = note.items() if isinstance(note, dict) else ()
    return {name: str(entry.get("reason", "")) for name, entry in entries if isinstance(entry, dict)}


def read_items_left_out(result: Fields) -> dict[str, str]:
    """Return the items that mcpmux has left out of a list, as `NAME of UPSTREAM`, with the problem."""
    note = decoded(result, META, dict).get(ITEMS)
    found: dict[str, str] = {}
    for upstream, problems in note.items() if isinstance(note, dict) else ():
        for each in problems if isinstance(problems, list) else ():
            if isinstance(each, dict) and each.get("leftOut") is True:
                what = f"`{each['item']}` of {upstream}" if "item" in each else f"a part of {upstream}"
                found[what] = str(each.get("problem", ""))
    return found
