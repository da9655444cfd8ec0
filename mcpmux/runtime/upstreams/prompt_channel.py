"""A channel that can send without waiting, so that no task has to wait for each answer."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.inflight import Ticket
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.term import Term


@runtime_checkable
class PromptChannel(Protocol):
    """What such a channel has besides. A ticket stands for a call that was posted.

    Either `take` or `go_on` must follow; the ticket's `wake` is called when there is something for them.
    """

    def post(self, call: Call, term: Term | None = None) -> Ticket | None:
        """Send `call`; None, and nothing is done, when that must wait or would fail."""
        ...

    def take(self, ticket: Ticket) -> Fields | None:
        """The result of a posted call, which is over then; None when there is more to it."""
        ...

    def go_on(self, ticket: Ticket, notify: Notify, term: Term | None = None) -> Awaitable[Fields]:
        """Wait for the rest of a posted call. Raises as an exchange does."""
        ...
