"""A look at a cluster from outside: whether its store answers, who is there, and whether all fit together.

It only reads, and no replica notices it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import msgspec

from mcpmux import __version__
from mcpmux.cluster.letter import Card
from mcpmux.cluster.port import FRESH_SECONDS
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import ForeignSeal, Roll, Store, StoreAway

HERE: Final = "this machine"


class SeenReplica(msgspec.Struct, frozen=True):
    """A replica that is there. `clock`: seconds that its clock is ahead of that of the store."""

    name: str
    id: str
    url: str
    version: str
    clock: float | None


class Survey(msgspec.Struct, frozen=True):
    """The findings. `store`: its name and version, None when it does not answer.

    `problems` keep replicas from working together; `warnings` are all right for a while.
    """

    store: str | None = None
    replicas: list[SeenReplica] = []
    problems: list[str] = []
    warnings: list[str] = []

    def __str__(self) -> str:
        """Return the facts in one line."""
        if self.store is None:
            return "the store does not answer"
        if not self.replicas:
            return f"{self.store}; no replica is there now"
        number = len(self.replicas)
        names = ", ".join(f"{replica.name} ({replica.url})" for replica in self.replicas)
        return f"{self.store}; {number} {'replica' if number == 1 else 'replicas'}: {names}"


async def survey(store: Store, seal: ClusterSeal) -> Survey:
    """Look at the cluster that has this store and this key."""
    try:
        version = await store.version()
        # Half of the time that the answer takes: the store reads its clock somewhere in between.
        began = time.time()
        roll = await store.members()
        here = (began + time.time()) / 2 - roll.at
    except StoreAway as away:
        return Survey(problems=[f"{away}; without it replicas cannot share sessions"])
    replicas, problems = read_roll(roll, seal)
    clocks = [(replica.name, replica.clock) for replica in replicas if replica.clock is not None]
    problems += find_clocks_apart([(HERE, here), *clocks])
    return Survey(version, replicas, problems, find_other_versions(replicas))


# Pure.


def read_roll(roll: Roll, seal: ClusterSeal) -> tuple[list[SeenReplica], list[str]]:
    """Return the replicas that have our key, by name, and what is wrong with the others."""
    seen: list[SeenReplica] = []
    strangers = unread = 0
    for lease in roll.leases:
        try:
            card = Card.open(seal, lease.replica, lease.card)
        except ForeignSeal:
            strangers += 1
            continue
        except msgspec.DecodeError:
            unread += 1
            continue
        # Clocks are compared by that of the store: each replica reports its own when it asks for its lease,
        # and the end of the lease shows when that was.
        granted_at = roll.at + lease.seconds - card.lease
        clock = card.at - granted_at if card.at else None
        seen.append(SeenReplica(card.name, lease.replica, card.url, card.version, clock))
    problems = []
    if strangers:
        problems.append(
            f"{strangers} of {len(roll.leases)} replicas have another `cursor_key` than this configuration, "
            "and do not know the others; set the same one in [merging] for all, or another `prefix` in "
            "[cluster] for those that are a cluster of their own"
        )
    if unread:
        problems.append(
            f"{unread} of {len(roll.leases)} replicas are of a version of mcpmux that does not work together "
            f"with this one, {__version__}; install the same version everywhere"
        )
    return sorted(seen, key=lambda each: (each.name, each.id)), problems


def find_clocks_apart(clocks: Sequence[tuple[str, float]]) -> list[str]:
    """Return what is wrong with `clocks`: pairs of a name and the seconds it is ahead of another clock."""
    (slow, low), (fast, high) = min(clocks, key=itemgetter(1)), max(clocks, key=itemgetter(1))
    apart = high - low
    if apart <= FRESH_SECONDS:
        return []
    return [
        f"the clock of {fast} is {apart:.0f} s ahead of that of {slow}; replicas refuse what they say to "
        f"each other when clocks differ by more than {FRESH_SECONDS:g} s: set both by NTP"
    ]


def find_other_versions(replicas: Sequence[SeenReplica]) -> list[str]:
    """Return a warning for replicas that run another version than this one."""
    others = [
        f"{replica.name} runs {replica.version}" for replica in replicas if replica.version != __version__
    ]
    if not others:
        return []
    return [f"this is mcpmux {__version__}, but {', '.join(others)}; finish the upgrade on all of them"]
