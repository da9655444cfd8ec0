"""What has to be known of a legacy session for another process to go on with it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Interest(NamedTuple):
    """A subscription. `key`: of the session with the upstream; `uri`: its own; `said_raw`: by that one."""

    key: str
    uri: str
    said_raw: bool


class MadeTask(NamedTuple):
    """A task of the client. `key`: of the session with the upstream; `task_id`: its own; `tool` has made it.

    `token`: the progress token of the call that made it, as JSON.
    """

    key: str
    task_id: str
    tool: str | None
    token: bytes | None


class SessionFacts(msgspec.Struct, array_like=True, frozen=True):
    """What a session agreed. `info`, `capabilities`: what the client said of itself, as JSON.

    `epoch`: rises with each process that goes on with it.
    """

    revision: str
    info: bytes
    capabilities: bytes
    log_level: str | None = None
    interests: tuple[Interest, ...] = ()
    epoch: int = 0
    tasks: tuple[MadeTask, ...] = ()
