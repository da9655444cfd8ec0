"""A client of mcpmux in the same process, which speaks 2026-07-28 without a stream or socket.

Promises: an exchange goes the same way as one over a transport, so access rules, views, rates, caches,
captures and the audit log apply to it. Only the number of exchanges at a time is left to the caller.
Cancelling an exchange cancels it at the server, too.

Source: "Base Protocol", `basic/patterns/mrtr` of 2026-07-28.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcpmux import __version__
from mcpmux.channels.channel import ignore_event
from mcpmux.channels.tap import EXCHANGE, ORIGIN, Watch
from mcpmux.clients.service import MuxService
from mcpmux.config.scalars import find_no_number
from mcpmux.errors import LocalProtocolError, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    META,
    PROGRESS_TOKEN,
    VERSION,
    Call,
    Event,
    Notify,
    check_call,
    encode_call,
)
from mcpmux.protocol.envelope import encode_error, encode_notification, encode_reply, raw
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import NEWEST

TRANSPORT: Final = "memory"


def raw_given(value: Any, path: str = "") -> Raw:
    """Return a value of a program as raw JSON. `path`: the name of the value in an error.

    Raises ValueError for NaN and infinity, and TypeError for anything else that is no JSON.
    """
    encoded = raw(value)
    # NaN and infinity are encoded as null. Most values contain no null, so the walk is rarely needed.
    if b"null" in memoryview(encoded).tobytes() and (place := find_no_number(value, path)) is not None:
        raise ValueError(f"JSON has no NaN and no infinity, but {place}")
    return encoded


OnBegin = Callable[[int], Awaitable[None]]
"""Called with the number of an exchange before it is worked on."""


async def unnoticed(_number: int) -> None:
    """Ignore the number of an exchange."""


class MemoryClient:
    """One client in this process. Any number of exchanges may run at a time. `leave` must follow."""

    def __init__(
        self, service: MuxService, principal: Principal, capabilities: Mapping[str, Any], name: str
    ) -> None:
        """`service` must have a tap. `capabilities`: the client's, as MCP has them. `name`: the client's."""
        assert service.tap is not None
        self._service = service
        self._watch = Watch(service.tap, service.tap.client(TRANSPORT))
        self._watch.leg.view = principal.view or None
        self._principal = principal
        info = {"name": name, "version": __version__}
        self._meta = {VERSION: NEWEST, CLIENT_INFO: info, CLIENT_CAPABILITIES: dict(capabilities)}
        self._ids = itertools.count(1)
        self._has_left = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._watch.leg.peer} {self._principal.key!r}>"

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Call:
        """Return a request, for `exchange`. `meta`: more of its `_meta`.

        Raises TypeError for what is no JSON, and ValueError for NaN and infinity.
        """
        members = dict(params or {})
        meta = {**self._meta, **(meta or {}), **members.pop(META, {})}
        fields = {key: raw_given(value, key) for key, value in members.items()}
        return Call.of(method, {**fields, META: raw_given(meta, META)}, self, principal=self._principal)

    async def exchange(
        self, call: Call, notify: Notify = ignore_event, on_begin: OnBegin = unnoticed
    ) -> Fields:
        """Return the result of a request. `notify` gets the events before it. Raises RpcError.

        Raises LocalProtocolError after `leave`, when no session with a server would be closed any more.
        """
        if self._has_left:
            raise LocalProtocolError("the context of this client was left")
        check_call(call)
        watch, request_id = self._watch, next(self._ids)
        if call.wants_progress:
            call = call.with_meta({**call.meta, PROGRESS_TOKEN: raw(request_id)})

        async def heard(event: Event) -> None:
            watch.sent(encode_notification(event.method, event.params))
            await notify(event)

        outer = EXCHANGE.get(), ORIGIN.get()
        # As if it had come over a transport: captures and the audit log have no other source.
        watch.tap.message_passed(watch.leg, "in", encode_call(request_id, call))
        watch.begin(request_id)
        try:
            await on_begin(EXCHANGE.get())
            result = await self._service.answer(request_id, call, heard)
            watch.sent(encode_reply(request_id, result))
            return result
        except RpcError as error:
            watch.sent(encode_error(request_id, error))
            raise
        except BaseException:  # cancelled: recorded as a transport's client would say it
            cancelled = encode_notification(m.CANCELLED, {"requestId": request_id})
            watch.tap.message_passed(watch.leg, "in", cancelled)
            raise
        finally:  # the task is the caller's, and its next work belongs to another exchange
            EXCHANGE.set(outer[0])
            ORIGIN.set(outer[1])

    def leave(self) -> None:
        """Drop everything that was held for the client."""
        self._has_left = True
        self._service.leave(self)
        self._watch.tap.gone(self._watch.leg)
