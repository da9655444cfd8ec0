"""One benchmark of one target: open sessions, read its lists, drive the load, count everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

import trio
from attrs import define, field

from mcpmux.bench.answer import Checker
from mcpmux.bench.drive import Drive
from mcpmux.bench.plan import Plan, choose_uris, default_flows
from mcpmux.bench.push import Push
from mcpmux.bench.results import About, LoadDescription, Results, generator_of
from mcpmux.bench.schedule import SleepUntil
from mcpmux.bench.search import Search
from mcpmux.bench.session import OpenChannel, Session, open_sessions
from mcpmux.bench.tally import MOST_STEPS, Tally
from mcpmux.bench.workload import bind_mix, in_turn
from mcpmux.config import Upstream
from mcpmux.config.model import transport_of
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError
from mcpmux.protocol.envelope import Notification
from mcpmux.protocol.revisions import is_modern

NO_PING = "`ping`: revision 2026-07-28 has none; ask for an older one with --revision"


def waited_seconds() -> float:
    """Return the seconds for which this process's first thread waited for a processor. 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


@define(eq=False, repr=False)
class Run:
    """Of one target; it can be watched and stopped. `cpu`: seconds used; `waited`: those without a core."""

    upstream: Upstream
    _plan: Plan
    _open_channel: OpenChannel
    _sleep_until: SleepUntil = trio.sleep_until
    _cpu: Callable[[], float] = time.process_time
    _waited: Callable[[], float] = waited_seconds
    _opening: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    work: Drive | Push | Search | None = field(default=None, init=False)
    tally: Tally | None = field(default=None, init=False)
    results: Results | None = field(default=None, init=False)
    _about: About | None = field(default=None, init=False)  # once the load has begun

    def so_far(self) -> Results | None:
        """Return the results until now; None before anything is measured."""
        now = trio.current_time()
        if self.tally is None or self._about is None or now <= self.tally.begun:
            return None
        return self.tally.results(self._about, now, generator_of(0.0, 0.0))

    def stop(self, reason: str) -> None:
        """End the run now and keep what was measured."""
        if self.work is not None:
            self.work.stop(reason)
        else:
            self._opening.cancel(reason=reason)

    async def measure(self) -> Results | None:
        """Return the results; None when it was stopped before anything was measured.

        Raises McpmuxError when it cannot be reached, ConfigError when it lacks what was asked for.
        """
        plan = self._plan
        warm_up = 0.0 if plan.find_max or plan.push is not None else plan.warm_up
        tally = Tally(trio.current_time(), warm_up, plan.longest)
        with self._opening:
            judge = Checker(plan.check).judge
            make = partial(Session, self._open_channel, self.upstream, plan, judge, tally, self._hear)
            async with open_sessions(make, self.upstream, plan) as sessions:
                try:
                    work = await self._prepare(sessions, tally)
                except InvalidValue as mistake:
                    raise ConfigError([f"{self.upstream.name}: {mistake}"]) from None
                self.work, self.tally = work, tally
                self.results = await self._measure(work, sessions[0].facts.revision, tally)
        return self.results

    def _hear(self, session: int, notification: Notification) -> None:
        if isinstance(self.work, Push):
            self.work.hear(session, notification)

    async def _prepare(self, sessions: list[Session], tally: Tally) -> Drive | Push | Search:
        """Prepare the work, by the server's lists where they are needed. Raises InvalidValue."""
        plan, first = self._plan, sessions[0]
        if plan.captured is not None:
            mix = in_turn(plan.captured)
        else:
            asked_for = any(step.needs_uris for flow in plan.flows for step in flow.steps)
            needs_uris = not plan.flows or plan.push is not None or asked_for
            uris = await first.list_uris() if needs_uris and first.facts.offers("resources") else ()
            flows = plan.flows or default_flows(plan.push, first.facts, uris)
            if first.modern and any(step.verb == "ping" for flow in flows for step in flow.steps):
                raise InvalidValue(NO_PING)
            mix = bind_mix(flows, uris, Random(plan.seed))
            if plan.push is not None:
                return Push(plan, sessions, choose_uris(flows, uris, plan.resources), tally.record)
        if plan.find_max:
            return Search(plan, sessions, mix, tally, self._sleep_until, self._cpu)
        return Drive(plan, sessions, mix, tally.record, Random(plan.seed), self._sleep_until)

    async def _measure(self, work: Drive | Push | Search, revision: str, tally: Tally) -> Results:
        plan, transport = self._plan, transport_of(self.upstream.target)
        when, started = datetime.now(UTC), trio.current_time()
        place = {"transport": transport, "era": "modern" if is_modern(revision) else "legacy"}
        about = self._about = About(
            name=self.upstream.name,
            target=self.upstream.target.display,
            transport=transport,
            revision=revision,
            when=when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            load=LoadDescription(text=plan.describe(), settings={**plan.settings(), **place}),
        )
        tally.start(started)
        began, waited = self._cpu(), self._waited()
        profile = plan.profile or ()
        constant = len(profile) == 1 and profile[0].first == profile[0].last
        if isinstance(work, Drive) and not constant and len(profile) <= MOST_STEPS:
            begun = tally.begun
            for ramp in profile:
                even = ramp.first == ramp.last
                name = f"{ramp.first:g}/s" if even else f"{ramp.first:g}/s to {ramp.last:g}/s"
                step = tally.begin_step(begun, name, offered=(ramp.first + ramp.last) / 2)
                begun += ramp.seconds
                step.end(begun)
        await work.run(started)
        cpu, waited = self._cpu() - began, self._waited() - waited
        return tally.results(
            about,
            work.ended,
            generator_of(cpu, trio.current_time() - started, waited, work.late, requests=tally.seen),
            fan_out=work.deliveries.results() if isinstance(work, Push) else None,
            unfinished=work.unfinished,
            stopped=work.stopped,
        )
