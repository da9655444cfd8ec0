"""What the edges to clients need of whoever serves them: the mux, or something that stands in for it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.envelope import Notification, Request
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.runtime.downstreams.session import Ask
from mcpmux.runtime.mailbox import Mailbox
from mcpmux.runtime.tap import Tap


class Session(Protocol):
    """One initialized legacy client; see `runtime.downstreams.session.LegacySession`."""

    revision: str
    mailbox: Mailbox
    ask_unasked: Ask | None
    principal: Principal

    async def answer(self, request: Request, notify: Notify, ask: Ask) -> Fields:
        """Answer one request in the session's revision; `ask` asks the client back. Raises RpcError."""
        ...

    def take_notification(self, notification: Notification) -> None:
        """Take what the client says outside of its calls."""
        ...

    def close(self) -> None:
        """The client has gone."""
        ...


class Service(Protocol):
    """Serves modern calls, and opens legacy sessions; see `runtime.downstreams.front.Front`."""

    tap: Tap | None

    def answer(self, request_id: Id, call: Call, notify: Notify) -> Awaitable[Fields]:
        """Answer one modern call. Raises RpcError, at once or when it is awaited."""
        ...

    async def initialize(self, request: Request, principal: Principal = ANYONE) -> tuple[Session, Fields]:
        """Open a legacy session of `principal`: it, and the answer. The caller closes it. Raises RpcError."""
        ...

    def leave(self, client: object) -> None:
        """A client has gone that called itself `client` in its calls."""
        ...

    def roots_changed(self) -> None:
        """A client says that its roots have changed."""
        ...
