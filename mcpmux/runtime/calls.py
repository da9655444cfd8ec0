"""Whether a call may begin, how long it waits for its client's answers, and who is asked outside of calls."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple, Protocol

from mcpmux.errors import RpcError
from mcpmux.mux.rate import Rates
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.codes import INVALID_PARAMS, Busy
from mcpmux.protocol.envelope import Notification
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Raw

PARK_SECONDS: Final = 600.0  # for a person to answer; then the server is told that nobody did
PARK_LIMIT: Final = 1000  # parked calls of one server; each holds a request of it open
STATE_BYTES: Final = 24  # of randomness: a state is proof that one was given it

Hear = Callable[[Notification], None]
"""Takes a notification of the peer that belongs to no exchange. Never waits."""


class Client(Protocol):
    """A client that can be asked something outside of any call of its own.

    `capabilities`: what it said that it offers; `principal`: who it has been shown to be; `knows_tasks`:
    whether its revision has tasks, so that it can make them itself.
    """

    capabilities: Raw
    principal: Principal
    knows_tasks: bool

    async def ask(self, method: str, params: Fields) -> Fields:
        """The client's answer. Raises RpcError when it refuses or cannot be reached."""


class Question(NamedTuple):
    """What a server asks outside of the calls of clients.

    `task_id`: the task that it is about; `client`: who has caused it, as that calls itself in its calls.
    """

    method: str
    params: Fields
    task_id: str | None = None
    client: Hashable | None = None


FindClient = Callable[[Question], Awaitable[Client | None]]
"""Who is to be asked; None when that is unclear."""


async def unheard(_event: Event) -> None:
    """For an exchange whose notifications nobody waits for."""


def check_rate(rates: Rates, call: Call, now: float, upstream: str = "") -> None:
    """Count a request of a client, or an exchange with an upstream. Raises Busy when it may not begin."""
    exceeded = rates.begin(call.principal, call.method, now, upstream)
    if exceeded is None:
        return
    limit = exceeded.limit
    what = f"exchanges with {upstream}" if upstream else "requests"
    sentence = f"no more than {limit.requests} {what} may begin in {limit.per:g} s"
    seconds = math.ceil(exceeded.seconds)
    raise Busy(sentence, exceeded.setting, own=True, upstream=upstream or None, seconds=seconds)


def unknown_state() -> RpcError:
    """-32602: a state was not given to this very request, or not to this somebody, or not any more."""
    return RpcError(INVALID_PARAMS, "Invalid requestState: unknown or expired; send the request without it")
