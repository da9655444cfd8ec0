"""One modern listen: an exchange that stays open and tells what changes.

Source: `basic/patterns/subscriptions`, 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple, Protocol, runtime_checkable

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, SUBSCRIPTION_ID, Call, Event, Notify, Tagged
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.runtime.client_outbox import ClientOutbox, Outlet
from mcpmux.runtime.notification_hub import SUBSCRIPTION_LIMIT, NotificationHub
from mcpmux.runtime.router import Router
from mcpmux.transports.inline import in_task

_KINDS = {f"{capability}ListChanged": method for capability, method in m.LIST_CHANGES.items()}


@runtime_checkable
class SaysAtOnce(Protocol):
    """A Notify of a stream that can be written without waiting."""

    def say_nowait(self, message: bytes) -> bool:
        """Take an encoded message, and send what goes; False when `flush` has to come next."""

    async def flush(self) -> None:
        """Send what `say_nowait` has left."""


def _outlet(saying: SaysAtOnce, tagged: Tagged) -> Outlet:
    return Outlet(lambda event: saying.say_nowait(tagged.encode(event)), saying.flush)


class Filter(NamedTuple):
    """What a listen asks for: names of list changes as in the request, and URIs."""

    lists: Set[str]
    uris: tuple[str, ...]


def read_filter(call: Call) -> Filter:
    """The filter of a `subscriptions/listen`. Raises RpcError when it is malformed."""
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
    """Acknowledge what can be honoured, then tell every change until the client goes or we stop.

    Cancelling it leaves no interest behind. Raises RpcError for a malformed filter.
    """
    await in_task()
    wish = read_filter(call)
    # Without lists of which the client may use nothing; URIs are judged one by one.
    wish = wish._replace(lists={name for name in wish.lists if router.may_hear(call.principal, _KINDS[name])})
    tag = raw({SUBSCRIPTION_ID: request_id})
    kinds = frozenset(_KINDS[name] for name in wish.lists)
    outbox = hub.join(kinds, call.principal, is_granted=True)
    try:
        honoured = await _subscribe_all(router, outbox, wish.uris, call)
        agreed: dict[str, Any] = {name: True for name in _KINDS if name in wish.lists}
        if honoured:
            agreed["resourceSubscriptions"] = honoured
        await notify(Event(m.ACKNOWLEDGED, {"notifications": raw(agreed), META: tag}))
        outlet = _outlet(notify, Tagged(tag)) if isinstance(notify, SaysAtOnce) else None
        del wish, honoured, agreed  # which this would keep for as long as the client listens
        while (event := await outbox.take(outlet)) is not None:
            await notify(Event(event.method, {**event.params, META: tag}))
    finally:
        hub.leave(outbox)
    return {"resultType": raw("complete"), META: tag}


async def _subscribe_all(
    router: Router, outbox: ClientOutbox, uris: tuple[str, ...], call: Call
) -> list[str]:
    """Those of `uris` that can be listened to, in their order."""
    honoured: set[str] = set()

    async def subscribe(uri: str) -> None:
        try:
            await router.subscribe(outbox, uri, call)
        except RpcError:
            return  # what cannot be honoured is left out of the acknowledgement
        honoured.add(uri)

    async with trio.open_nursery() as nursery:
        for uri in uris:
            nursery.start_soon(subscribe, uri)
    return [uri for uri in uris if uri in honoured]
