"""Send requests of the inspector's user through the mux, like those of any client.

| path | answer |
| --- | --- |
| `/api/calls` | `problem`: why no request can be sent, or null |
| `POST /api/calls` | events, see below; 404 for an unknown view, 409 with that reason, 429 |

The body is `{"method": …, "params": {…}, "view": …}`; `params` and `view` may be left out. Events: `begun`
with its `row` in the list of exchanges, unless the request was refused as none; `notification` with `method`
and `params`, as they come; at the end `answer` with `result` or `error` as a client gets them, not redacted,
and `ms`. Closing the connection cancels the request.

Promises: access rules, views, rates, captures and the audit log apply as for any client. The principal
is PRINCIPAL for everyone with the token; a request cannot claim another one. Servers may ask it everything
that a client can be asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import trio

from mcpmux.clients.memory_client import MemoryClient
from mcpmux.clients.service import MuxService
from mcpmux.errors import RpcError
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, META, VERSION, Event
from mcpmux.protocol.codes import INTERNAL_ERROR
from mcpmux.protocol.envelope import decode_fields, encode, error_body
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.admin.route import SECURITY, BadRequest, Handle, HttpExchange, Route
from mcpmux.transports.sse import STREAM_HEADERS, encode_event

PRINCIPAL: Final = Principal("mcpmux:inspector")
NAME: Final = "mcpmux-inspector"
CAPABILITIES: Final[dict[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
CALLS_AT_ONCE: Final = 16  # of one person, in several windows
CALL_SECONDS: Final = 3600.0  # a forgotten window must not listen for ever
OFF: Final = "`calls` in [admin] does not let the inspector send requests"


class WantedCall(msgspec.Struct, forbid_unknown_fields=True):
    """A request to send, in a view."""

    method: Annotated[str, msgspec.Meta(min_length=1)]
    params: dict[str, Raw] = {}
    view: str = ""


RowOf = Callable[[int], Awaitable[int | None]]
"""Returns the row of an exchange in the list, None if it has none."""


class Calls:
    """Sends requests to one mux, as one client in each view that was used."""

    def __init__(self, service: MuxService, row_of: RowOf) -> None:
        self._service, self._row_of = service, row_of
        self._clients: dict[Principal, MemoryClient] = {}
        self._running = 0

    def client_in(self, view: str) -> MemoryClient:
        """Return the client in a view. Raises BadRequest when there is no such view for PRINCIPAL."""
        who = self._service.enter(PRINCIPAL, view)
        if who is None:
            raise BadRequest(f"there is no view {view!r} for {PRINCIPAL.name}", 404)
        if who not in self._clients:
            self._clients[who] = MemoryClient(self._service, who, CAPABILITIES, NAME)
        return self._clients[who]

    async def answer(self, http: HttpExchange) -> None:
        """Send a request and stream its answer. Leaving cancels it. Raises BadRequest."""
        call = http.body(WantedCall)
        try:
            meta = decode_fields(call.params.get(META))
        except ValueError:
            raise BadRequest("`_meta` has to be an object") from None
        # These would let the request pose as another client.
        for name in (VERSION, CLIENT_INFO, CLIENT_CAPABILITIES):
            meta.pop(name, None)
        client = self.client_in(call.view)
        if self._running == CALLS_AT_ONCE:
            raise BadRequest(f"{CALLS_AT_ONCE} requests are running already; end one of them", 429)

        async def tell(event: str, data: dict[str, Any]) -> None:
            await http.reply.write(encode_event(encode(data), event=event))

        async def begin(exchange: int) -> None:
            await tell("begun", {"row": await self._row_of(exchange)})

        async def hear(event: Event) -> None:
            await tell("notification", {"method": event.method, "params": event.params})

        self._running += 1
        try:
            await http.reply.open(200, (*STREAM_HEADERS, *SECURITY))
            began = trio.current_time()
            outcome: dict[str, Any]
            try:
                with trio.fail_after(CALL_SECONDS):
                    sent = client.call(call.method, {**call.params, META: meta})
                    outcome = {"result": await client.exchange(sent, hear, begin)}
            except RpcError as error:
                outcome = {"error": error_body(error)}
            except trio.TooSlowError:
                late = RpcError(INTERNAL_ERROR, f"Cancelled: it took more than {CALL_SECONDS:g} seconds")
                outcome = {"error": error_body(late)}
            await tell("answer", {**outcome, "ms": round((trio.current_time() - began) * 1000, 3)})
        finally:
            self._running -= 1


def call_routes(answer: Handle | str) -> tuple[Route, ...]:
    """Return routes for `serve_admin`. `answer`: see Calls; or the reason why no request can be sent."""
    problem = answer if isinstance(answer, str) else None

    async def tell(http: HttpExchange) -> None:
        await http.send({"problem": problem})

    async def refuse(problem: str, _http: HttpExchange) -> None:
        raise BadRequest(problem, 409)

    handle = partial(refuse, answer) if isinstance(answer, str) else answer
    return Route("/api/calls", tell), Route("/api/calls", handle, method="POST")
