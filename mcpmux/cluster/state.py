"""How a replica is, as it tells people and the other replicas."""

from __future__ import annotations

from typing import Final

import msgspec

INSIDE: Final = "inside"  # its lease holds
OUTSIDE: Final = "outside"  # it has none: requests that need the store are refused
LEFT: Final = "left"  # it stops; others go on with its sessions
SILENT: Final = "silent"  # it has a lease, and does not answer the replica that asked it


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. `id`: the one that is in force; `state`: one of the above; `trouble`: why it is not well.

    `since`: when it was started, in seconds since 1970. `store_away`: it got no answer when it asked last.
    `owned`: upstreams at which it subscribes for all. `sessions`: legacy sessions that are there now;
    `taken_over`: those that came from replicas that had gone. `handed_over` and `handed_in`: requests that
    others have answered for it, and it for others. `commands`: to the store. `lag_ms`: how long the store
    took for its last answer. `events_waiting`: of streams, for the store. `lease_seconds`: that its lease
    still holds. `others`: replicas that it knows to be there. All counts are since the start.

    Of a silent one only `name`, `id`, `url` and `version` are known, and the numbers mean nothing.
    """

    name: str
    id: str
    url: str
    version: str
    state: str
    trouble: str | None = None
    since: float | None = None
    store_away: bool = False
    others: int = 0
    owned: int = 0
    sessions: int = 0
    taken_over: int = 0
    handed_over: int = 0
    handed_in: int = 0
    commands: int = 0
    lag_ms: float | None = None
    events_waiting: int = 0
    lease_seconds: float = 0.0
