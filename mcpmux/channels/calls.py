"""How long a call waits for its client's answers, and who is asked outside of calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple, Protocol

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Event
from mcpmux.protocol.codes import INVALID_PARAMS, INVALID_REQUEST, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import Notification
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Raw

PARK_SECONDS: Final = 600.0  # for a client to come back to a parked call; then it is given up
PERSON_SECONDS: Final = PARK_SECONDS - 30.0  # for a person's answer, so that the call can still go on with it
ROOTS_SECONDS: Final = 10.0  # for the answer of a program
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


def seconds_to_answer(method: str) -> float:
    """Return how long a client may take to answer this question of a server."""
    return ROOTS_SECONDS if method == m.ROOTS_LIST else PERSON_SECONDS


def unanswered(method: str) -> RpcError:
    """Return the error that a server gets in place of the answer to its question."""
    return RpcError(INVALID_REQUEST, f"the client did not answer {method} in time")


async def unheard(_event: Event) -> None:
    """For an exchange whose notifications nobody waits for."""


def lost_with_process(*, done: bool | None) -> RpcError:
    """-31001: the process of mcpmux has gone that worked on a request. `done`: None when that is unknown."""
    rest = "; it was not carried out" if done is False else "; it may have been carried out"
    data = {"state": "lost", "mayHaveBeenCarriedOut": done is not False}
    return RpcError(UPSTREAM_UNAVAILABLE, f"The replica that worked on this request has gone{rest}", data)


def lost_state() -> RpcError:
    """-31001: the process of mcpmux has gone in which a call waited for these answers."""
    lost = lost_with_process(done=None)
    message = f"{lost.message}; to start it again, send it without requestState"
    return RpcError(lost.code, message, lost.data)


def unknown_state() -> RpcError:
    """-32602: a state was not given to this very request, or not to this somebody, or not any more."""
    return RpcError(INVALID_PARAMS, "Invalid requestState: unknown or expired; send the request without it")
