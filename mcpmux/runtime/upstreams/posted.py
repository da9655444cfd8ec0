"""A call that was sent to a server at once, and for whose answer no task waits.

    posted --result--> over                      (`take`)
    posted --anything else--> somebody waits     (`go_on`: a notification, an error, a question of the server,
                                                  the end of its time or of the stream, a client that gave up)

Promises: whichever it is, the result and the error are those that an exchange would have brought. Refuses to
know who is told when there is something to take, and what becomes of the result.
"""

from __future__ import annotations

from collections.abc import Awaitable

from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.inflight import Ticket
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.term import Term
from mcpmux.runtime.upstreams.connection import Connection


class Posted:
    """Either `take` or `go_on` must follow. `ticket.wake` is called when there is something for them."""

    __slots__ = ("call", "connection", "term", "ticket")

    def __init__(self, call: Call, term: Term, ticket: Ticket, connection: Connection) -> None:
        self.call = call
        self.term = term
        self.ticket = ticket
        self.connection = connection

    def __repr__(self) -> str:
        return f"<Posted {self.call.method} {self.ticket!r}>"

    def go_on(self, notify: Notify) -> Awaitable[Fields]:
        """Wait for the result. Raises RpcError (the server's answer), TransportError or Overdue."""
        return self.connection.go_on(self.call, self.ticket, notify, self.term)
