"""The front door that every client comes through, whatever its era and transport."""

from __future__ import annotations

import secrets
from functools import partial

from msgspec import Raw

from mcpmux.errors import RpcError
from mcpmux.mux.request_state import ForeignState, StateSeal
from mcpmux.protocol import method as m
from mcpmux.protocol.asking import STATE
from mcpmux.protocol.call import LOG_LEVEL, VERSION, Call, Event, Notify
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Fields, Id, Request, raw, text_of
from mcpmux.protocol.modern import MalformedRequest, severity
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.runtime.calls import unknown_state
from mcpmux.runtime.downstreams.listen import serve_listen
from mcpmux.runtime.downstreams.session import LegacySession, open_session
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.router import Router
from mcpmux.runtime.tap import Tap, identify, watched

STATE_KEY_BYTES = 32


class Front:
    """What mcpmux offers to clients: modern calls, and legacy sessions."""

    def __init__(
        self,
        router: Router,
        relay: Relay,
        server_info: Raw,
        tap: Tap | None = None,
        state_seal: StateSeal | None = None,
    ) -> None:
        """`tap` watches what clients do; `state_seal` binds a server's states to principals."""
        self._state_seal = state_seal or StateSeal(secrets.token_bytes(STATE_KEY_BYTES))
        self.tap = tap
        self._router = router
        self._relay = relay
        self.server_info = server_info

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

        if not call.principal.name:
            return await self._router.exchange(call, pass_on)
        return self._sealed(await self._router.exchange(self._opened(call), pass_on), call.principal.name)

    def _opened(self, call: Call) -> Call:
        """The call with the state that its server gave. Raises RpcError for that of another principal."""
        state = call.text(STATE)
        if state is None:
            return call
        try:
            state = self._state_seal.open(call.principal.name, state)
        except ForeignState:
            raise unknown_state() from None
        return call.with_params({**call.params, STATE: raw(state)})

    def _sealed(self, result: Fields, principal: str) -> Fields:
        state = text_of(result.get(STATE))
        return result if state is None else {**result, STATE: raw(self._state_seal.seal(principal, state))}

    def leave(self, client: object) -> None:
        """A client has gone that called itself `client` in its calls."""
        self._router.leave(client)

    def roots_changed(self) -> None:
        """A client says that its roots have changed."""
        self._router.roots_changed()

    async def initialize(
        self, request: Request, principal: Principal = ANYONE
    ) -> tuple[LegacySession, Fields]:
        """Open a legacy session of `principal`: it, and the answer. The caller closes it. Raises RpcError."""
        opened: list[LegacySession] = []

        async def work() -> Fields:
            session, result = await open_session(
                request, self._router, self._relay, self.server_info, self.tap, principal
            )
            opened.append(session)
            return result

        try:
            result = (
                await work()
                if self.tap is None
                else await watched(self.tap, read_call(request, None, principal), work)
            )
        except BaseException:
            for session in opened:
                session.close()
            raise
        return opened[0], result


def read_call(request: Request, client: object = None, principal: Principal = ANYONE) -> Call:
    """A request of `client`, who is `principal`, as a call of whatever era.

    Raises RpcError when `_meta` is no object.
    """
    try:
        return Call.of(request.method, request.params, client, principal=principal)
    except ValueError:
        raise MalformedRequest('"_meta" must be an object') from None


def _wants(call: Call, event: Event) -> bool:
    """Whether a log message is what the call asked for; without a level it asked for none."""
    level = text_of(call.meta.get(LOG_LEVEL))
    return level is not None and severity(text_of(event.params.get("level"))) >= severity(level)


def says_modern(call: Call) -> bool:
    """Whether a call carries the per-request metadata of the modern era."""
    return VERSION in call.meta
