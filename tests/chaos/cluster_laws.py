"""The laws that hold for clients of several replicas during faults of the replicas and of their store.

Clients note here their requests, answers and notifications, by the machine's monotonic clock. Violations are
in `broken`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from tests.chaos.cluster_world import LEASE_SECONDS, Cluster, Fault

GO_ON_SECONDS = 6.0  # without a fault, until any client goes on
AFTERMATH_SECONDS = LEASE_SECONDS + 2.0  # after a fault, in which an answer that it broke off may be lost
STALE_SECONDS = 5.0  # until no replica remembers what was there before a change that was announced

DONE, NOT_DONE, UNCLEAR = "done", "not done", "unclear"


class Laws:
    """`counts`: what has happened how often, for people. `slowest`: of what clients had to have."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self.slowest: dict[str, float] = defaultdict(float)
        self._calls: dict[str, str] = {}
        # The versions that clients were told of by their writes, and when.
        self._written: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._owed: dict[tuple[str, str], float] = {}  # (client, URI): since when
        self._heard: dict[tuple[str, str], list[float]] = defaultdict(list)

    def break_law(self, what: str) -> None:
        recent = [fault for fault in self._cluster.faults if _is_near(fault, time.monotonic() - 8)]
        self.broken.append(f"{time.monotonic():.2f} {what}\n    of late: {recent}")

    # Answers

    def note_call(self, call: str, outcome: str, began: float) -> None:
        """Note the outcome of a call by its id. An outcome may be unclear only after a fault."""
        self._calls[call] = outcome
        self.counts[f"call {outcome}"] += 1
        if outcome == UNCLEAR and not any(
            _is_near(fault, began - AFTERMATH_SECONDS) for fault in self._cluster.faults
        ):
            self.break_law(f"nobody was harmed, and the answer of call {call} was lost")

    def note_gone_stream(self, client: str, event_id: str, began: float) -> None:
        """Note that the stream of a call that began then cannot be resumed any more."""
        self.counts["stream gone"] += 1
        since = began - AFTERMATH_SECONDS
        if not any(_is_near(fault, since) for fault in self._cluster.faults if fault.is_of_store):
            self.break_law(f"{client} cannot resume {event_id}, and the store was there all the time")

    def note_lost_session(self, client: str, began: float) -> None:
        """Note that a client got 404 in a session that it began to open then."""
        self.counts["session lost"] += 1
        if not any(since <= began <= until for since, until in self._cluster.losses):
            self.break_law(f"{client} has lost its session, and the store had its data all the time")

    def note_operation(self, what: str, began: float) -> None:
        """Note that a client has its answer, after any number of attempts."""
        now = time.monotonic()
        self.counts[what] += 1
        waited = _longest_peace(self._cluster.faults, began, now)
        self.slowest[what] = max(self.slowest[what], waited)
        if waited > GO_ON_SECONDS:
            self.break_law(f"{what} took {now - began:.2f} s, {waited:.2f} s of them without a fault")

    # Writes and reads

    def note_write(self, uri: str, version: int) -> None:
        """Note that a client's write was acknowledged as this version."""
        self._written[uri].append((time.monotonic(), version))

    def note_change(self, uri: str, at: float, version: int) -> None:
        """Note that a server changed a resource at this time."""
        self._changes[uri].append((at, version))

    def version_due(self, uri: str) -> int:
        """Return the oldest version that a read which begins now may see."""
        now = time.monotonic()
        old = now - STALE_SECONDS
        announced = max((version for at, version in self._changes[uri] if at < old), default=0)
        # A store that fails over may not know a replica that has just come. Until each has renewed its lease
        # there, one where something is written cannot tell that replica, which may still remember.
        near = now - 2 * LEASE_SECONDS
        is_lost = any(fault.kind == "fail over" and _is_near(fault, near) for fault in self._cluster.faults)
        since = old if is_lost else now
        written = max((version for at, version in self._written[uri] if at <= since), default=0)
        return max(written, announced)

    # Announcements of changes

    def note_subscribed(self, client: str, uri: str) -> None:
        self._owed[client, uri] = time.monotonic()

    def note_heard(self, client: str, uri: str) -> None:
        self._heard[client, uri].append(time.monotonic())
        self.counts["updated"] += 1

    def unheard(self) -> list[str]:
        """List changes after which a client that was subscribed has got no update."""
        missing = []
        for (client, uri), since in self._owed.items():
            last = max((at for at, _ in self._changes[uri]), default=0.0)
            arrival = max(self._heard[client, uri], default=0.0)
            if last > since and arrival < last:
                missing.append(f"{client} has not heard of {uri} since {last:.2f} (last at {arrival:.2f})")
        return missing

    def judge_effects(self, truths: Mapping[str, int]) -> None:
        """Compare what clients know of their calls with how often the server was called."""
        for call, outcome in self._calls.items():
            times = truths.get(call, 0)
            fits = {DONE: times == 1, NOT_DONE: times == 0, UNCLEAR: times <= 1}[outcome]
            if not fits:
                self.break_law(f"call {call} was done {times} times, and its client knows: {outcome}")
        for call in truths.keys() - self._calls.keys():
            self.break_law(f"nobody has made call {call}, or nobody knows what became of it")

    def __str__(self) -> str:
        kinds = Counter(fault.kind for fault in self._cluster.faults)
        slowest = {what: round(seconds, 2) for what, seconds in self.slowest.items()}
        return (
            f"{len(self._cluster.faults)} faults: {dict(kinds)}\n{dict(self.counts)}\n"
            f"longest without a fault: {slowest}"
        )


def _is_near(fault: Fault, since: float) -> bool:
    return fault.end is None or fault.end > since


def _longest_peace(faults: list[Fault], begin: float, end: float) -> float:
    """Return the longest time without a fault between `begin` and `end`, in seconds."""
    longest, free = 0.0, begin
    for fault in sorted(faults, key=lambda fault: fault.begin):
        longest = max(longest, min(fault.begin, end) - free)
        free = max(free, fault.end if fault.end is not None else end)
    return max(longest, end - free)
