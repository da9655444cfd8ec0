"""Answer `subscriptions/listen`: exchanges that stay open and notify clients of changes.

Source: `basic/patterns/subscriptions`, 2026-07-28.
"""

from __future__ import annotations

import math
from collections.abc import Set
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from mcpmux.channels.tap import current_leg
from mcpmux.clients.http_answer import HttpNotify
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    META,
    SUBSCRIPTION_ID,
    Call,
    Event,
    Notify,
)
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import (
    decode_any,
    raw,
)
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.notification_hub import SUBSCRIPTION_LIMIT, NotificationHub
from mcpmux.runtime.router import Router
from mcpmux.transports.inline import in_task
from mcpmux.transports.sse import KEEP_ALIVE, KEEP_ALIVE_SECONDS

SUBSCRIBED_AT_ONCE: Final = 32  # URIs of one listen at a time, so that other exchanges have their turn
_KINDS: Final = {f"{capability}ListChanged": method for capability, method in m.LIST_CHANGES.items()}


class Filter(NamedTuple):
    """The filter of a listen: `lists`, the names of list changes as in the request, and `uris`."""

    lists: Set[str]
    uris: tuple[str, ...]


def read_filter(call: Call) -> Filter:
    """Return the filter of a `subscriptions/listen`. Raises RpcError when it is malformed."""
    try:
        wish: Any = decode_any(call.params["notifications"])
        uris = wish.get("resourceSubscriptions") or []
        flags = {name: wish.get(name, False) for name in _KINDS}
        sound = isinstance(uris, list) and all(isinstance(uri, str) for uri in uris)
        sound = sound and all(isinstance(flag, bool) for flag in flags.values())
    except (KeyError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise RpcError(INVALID_PARAMS, 'Invalid params: "notifications" must be a subscription filter')
    if len(uris) > SUBSCRIPTION_LIMIT:
        raise RpcError(
            INVALID_PARAMS, f"Invalid params: more than {SUBSCRIPTION_LIMIT} resourceSubscriptions"
        )
    return Filter(frozenset(name for name, flag in flags.items() if flag), tuple(dict.fromkeys(uris)))


async def serve_listen(
    request_id: Id, call: Call, notify: Notify, router: Router, hub: NotificationHub
) -> Fields:
    """Acknowledge what can be honoured, then send every change until the client goes or we stop.

    Cancelling it leaves no subscription behind. Raises RpcError for a malformed filter.
    """
    await in_task()
    await router.count(call)
    wish = read_filter(call)
    # Without lists in which the client may use no item; `_subscribe_all` judges URIs one by one.
    wish = wish._replace(lists={name for name in wish.lists if router.may_hear(call.principal, _KINDS[name])})
    tag = raw({SUBSCRIPTION_ID: request_id})
    kinds = frozenset(_KINDS[name] for name in wish.lists)
    # Joined before the acknowledgement: a change between the two waits in the outbox.
    outbox = hub.join(kinds, call.principal, is_granted=True, leg=current_leg())
    try:
        honoured = await _subscribe_all(router, outbox, wish.uris, call)
        agreed: dict[str, Any] = {name: True for name in _KINDS if name in wish.lists}
        if honoured:
            agreed["resourceSubscriptions"] = honoured
        await notify(Event(m.ACKNOWLEDGED, {"notifications": raw(agreed), META: tag}))
        outlet = notify.outlet(tag) if isinstance(notify, HttpNotify) else None
        hub.greet(outbox)
        del wish, honoured, agreed  # this frame would keep them for as long as the client listens
        seconds = KEEP_ALIVE_SECONDS if outlet is not None else math.inf
        while True:
            event: Event | None = None
            with trio.move_on_after(seconds) as patience:
                event = await outbox.take(outlet)
            if event is not None:
                await notify(Event(event.method, {**event.params, META: tag}))
            elif outlet is not None and patience.cancelled_caught:
                await outlet.reply.write(KEEP_ALIVE)
            else:
                break
    finally:
        hub.leave(outbox)
    return {"resultType": raw("complete"), META: tag}


async def _subscribe_all(
    router: Router, outbox: ClientOutbox, uris: tuple[str, ...], call: Call
) -> list[str]:
    honoured: set[str] = set()
    waiting = iter(uris)

    async def subscribe() -> None:
        for uri in waiting:
            with suppress(RpcError):  # the acknowledgement leaves out a URI that cannot be honoured
                await router.interests.subscribe(outbox, uri, call)
                honoured.add(uri)

    async with trio.open_nursery() as nursery:
        for _ in uris[:SUBSCRIBED_AT_ONCE]:
            nursery.start_soon(subscribe)
    return [uri for uri in uris if uri in honoured]
