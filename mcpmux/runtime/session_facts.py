"""The facts about a legacy session from which another process can continue it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Interest(NamedTuple):
    """A subscription. `key`: of the session with the upstream. `uri`: the upstream's own.

    `said_raw`: the client used the upstream's own URI, without a prefix.
    """

    key: str
    uri: str
    said_raw: bool


class MadeTask(NamedTuple):
    """A task of the client. `key`: of the session with the upstream. `task_id`: the upstream's own.

    `tool`: the upstream's own name of the tool that made it, None when that is unknown.
    `token`: the progress token of the call that made it, as JSON.
    """

    key: str
    task_id: str
    tool: str | None
    token: bytes | None


class SessionFacts(msgspec.Struct, array_like=True, frozen=True):
    """The agreements of a session. `info`, `capabilities`: the client's, as JSON.

    `epoch`: rises with each process that takes the session over.
    """

    revision: str
    info: bytes
    capabilities: bytes
    log_level: str | None = None
    interests: tuple[Interest, ...] = ()
    epoch: int = 0
    tasks: tuple[MadeTask, ...] = ()
