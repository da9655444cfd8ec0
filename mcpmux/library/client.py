"""A client of mcpmux in the same process for a program.

Promises: what goes in and comes out are plain Python values, as the module `json` has them. Everything else
is what MemoryClient promises.

Source: "Base Protocol", `basic/patterns/subscriptions`, `basic/patterns/mrtr` of 2026-07-28.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.clients.memory_client import MemoryClient
from mcpmux.errors import LocalProtocolError, RemoteProtocolError, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, PROGRESS_TOKEN, Call, Event, Exchange, Notify
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import data_of, decode_any, objects_in
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.merger import walk_pages

T = TypeVar("T")

Json: TypeAlias = dict[str, Any]
"""A JSON object: values are None, bool, int, float, str, lists and dicts."""


class Notification(NamedTuple):
    """One notification."""

    method: str
    params: Json


OnNotification: TypeAlias = Callable[[Notification], Awaitable[None]]
"""Called with each notification of a request, in order. The server waits until it returns."""


class Client(MemoryClient):
    """One client. Any number of requests may run at the same time. See `LocalMux.client`."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        on_notification: OnNotification | None = None,
        log_level: str | None = None,
    ) -> Json:
        """Send any request of 2026-07-28 and return its result.

        `on_notification`: gets the progress of the request, and log messages with at least
        `log_level`, one of MCP's levels. Without it no progress is asked for.

        A result with `resultType` "input_required" has questions: repeat the request with their
        `inputResponses` and with `requestState`. Servers ask only what the client's capabilities offer.

        Raises RpcError with the `code`, `message` and `data` of an error, whether of the server or of mcpmux,
        RemoteProtocolError for a result that Python cannot hold, and TypeError or ValueError for parameters
        that JSON cannot hold, such as NaN.
        """
        meta: Json = {}
        if on_notification is not None:
            meta[PROGRESS_TOKEN] = 0  # any value: `exchange` sends each upstream its own token
        if log_level is not None:
            meta[LOG_LEVEL] = log_level
        notify = ignore_event if on_notification is None else plainly(on_notification)
        with plain_errors():
            return plain(await self.exchange(self.call(method, params, meta), notify))

    async def list_all(self, method: str) -> list[Json]:
        """Return every item of a list, page by page; [] when no server has such a list.

        `method`: `tools/list`, `resources/list`, `resources/templates/list` or `prompts/list`. Raises
        RpcError, RemoteProtocolError.
        """
        with plain_errors():
            return [plain(item) for item in await list_items(self.call(method), self.exchange)]

    @asynccontextmanager
    async def listen(
        self, uris: Collection[str] = (), lists: Collection[str] = ()
    ) -> AsyncIterator[Notifications]:
        """Listen to changes as long as the context lasts.

        `uris`: resources for `notifications/resources/updated`. `lists`: of "tools", "prompts" and
        "resources", those for `list_changed`. While the reader is busy, equal changes are
        merged into one, so none is lost. Raises RpcError.
        """
        wish = {f"{name}ListChanged": True for name in lists} | {"resourceSubscriptions": list(uris)}
        sender, receiver = trio.open_memory_channel[Notification](0)

        async def receive(*, task_status: trio.TaskStatus[Json]) -> None:
            async def take(notification: Notification) -> None:
                if notification.method == m.ACKNOWLEDGED:
                    task_status.started(notification.params["notifications"])
                else:
                    await sender.send(notification)

            with sender:
                await self.request(m.LISTEN, {"notifications": wish}, take)

        with receiver:
            async with as_raised(trio.open_nursery()) as nursery:
                try:
                    yield Notifications(await nursery.start(receive), receiver)
                finally:
                    nursery.cancel_scope.cancel(reason="the listener has left")


class Notifications:
    """The changes of a listen, to iterate over in one task. The iteration ends when mcpmux ends the listen.

    `honoured`: the subscriptions agreed to, with the members of MCP's subscription filter:
    `resourceSubscriptions` (URIs), `toolsListChanged` and the like.
    """

    def __init__(self, honoured: Json, receiver: trio.MemoryReceiveChannel[Notification]) -> None:
        self.honoured = honoured
        self._receiver = receiver

    def __repr__(self) -> str:
        return f"<Notifications of {self.honoured!r}>"

    def __aiter__(self) -> Notifications:
        return self

    async def __anext__(self) -> Notification:
        """Return the next change."""
        return await self._receiver.__anext__()


# Between plain Python values and raw JSON.


def plain(fields: Fields) -> Json:
    """Return the members as Python values. Raises RemoteProtocolError for one without a value (1e400)."""
    try:
        return {key: decode_any(value) for key, value in fields.items()}
    except ValueError as error:
        raise RemoteProtocolError(f"an answer that Python cannot hold: {error}") from None


def plainly(on_notification: OnNotification) -> Notify:
    """Return a `Notify` that passes notifications on as Python values."""

    async def notify(event: Event) -> None:
        await on_notification(Notification(event.method, plain(event.params)))

    return notify


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let errors leave with Python values as their data."""
    try:
        yield
    except RpcError as error:
        raise RpcError(error.code, error.message, data_of(error)) from None


async def list_items(call: Call, exchange: Exchange) -> list[Fields]:
    """Return every item of a list; [] when no server has such a list. Raises McpmuxError."""
    if call.method not in m.LISTS:
        raise LocalProtocolError(f"{call.method} is no list; there are {', '.join(m.LISTS)}")
    items: list[Fields] = []

    def take(_call: Call, result: Fields) -> None:
        try:
            items.extend(objects_in(result[m.LISTS[call.method].items]))
        except (KeyError, ValueError):
            raise RemoteProtocolError(f"the answer to {call.method} has no list in it") from None

    try:
        await walk_pages(call, exchange, take)
    except RpcError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
    return items


@asynccontextmanager
async def as_raised(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter `context`, so that an exception of its body leaves unchanged and in no group.

    For the context the body ends normally, so it has to cancel tasks that should not go on.
    """
    raised: BaseException | None = None
    async with context as value:
        try:
            yield value
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # a program catches these by their type
            raised = error
    if raised is not None:
        raise raised
