"""The front door that every client comes through, whatever its era and transport."""

from __future__ import annotations

from functools import partial

from msgspec import Raw

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, VERSION, Call, Event, Notify
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Fields, Id, Request, text_of
from mcpmux.protocol.modern import MalformedRequest, severity
from mcpmux.runtime.downstreams.listen import serve_listen
from mcpmux.runtime.downstreams.session import LegacySession, open_session
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import Tap, identify, watched


class Front:
    """What mcpmux offers to clients: modern calls, and legacy sessions."""

    def __init__(self, router: Router, relay: Relay, server_info: Raw, tap: Tap | None = None) -> None:
        """`tap` watches what clients do."""
        self.tap = tap
        self._router = router
        self._relay = relay
        self._server_info = server_info

    async def answer(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        """Answer one modern call. Raises RpcError."""
        if self.tap is None:
            return await self._answer(request_id, call, notify)
        identify(call)
        return await watched(self.tap, call, partial(self._answer, request_id, call, notify))

    async def _answer(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        if call.method == m.LISTEN:
            return await serve_listen(request_id, call, notify, self._router, self._relay)
        if call.method in m.REMOVED_IN_MODERN:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method} is not in this revision")

        async def pass_on(event: Event) -> None:
            if event.method != m.LOG_MESSAGE or _wants(call, event):
                await notify(event)

        return await self._router.exchange(call, pass_on)

    def leave(self, client: object) -> None:
        """A client has gone that called itself `client` in its calls."""
        self._router.leave(client)

    def roots_changed(self) -> None:
        """A client says that its roots have changed."""
        self._router.roots_changed()

    async def initialize(self, request: Request) -> tuple[LegacySession, Fields]:
        """Open a legacy session: it, and the answer. The caller closes it. Raises RpcError."""
        opened: list[LegacySession] = []

        async def work() -> Fields:
            session, result = await open_session(
                request, self._router, self._relay, self._server_info, self.tap
            )
            opened.append(session)
            return result

        try:
            result = await work() if self.tap is None else await watched(self.tap, read_call(request), work)
        except BaseException:
            for session in opened:
                session.close()
            raise
        return opened[0], result


def read_call(request: Request, client: object = None) -> Call:
    """A request of `client` as a call, of whatever era. Raises RpcError when `_meta` is no object."""
    try:
        return Call.of(request.method, request.params, client)
    except ValueError:
        raise MalformedRequest('"_meta" must be an object') from None


def _wants(call: Call, event: Event) -> bool:
    """Whether a log message is what the call asked for; without a level it asked for none."""
    level = text_of(call.meta.get(LOG_LEVEL))
    return level is not None and severity(text_of(event.params.get("level"))) >= severity(level)


def says_modern(call: Call) -> bool:
    """Whether a call carries the per-request metadata of the modern era."""
    return VERSION in call.meta
