"""Eight servers harmed at random under load; afterwards everything is as it was before.

The seed is printed, and `MCPMUX_CHAOS_SEED` sets another one: what is done to whom, and what is asked,
follows from it, though not at which moment of each other.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from tests.chaos.clients import LoadClient
from tests.chaos.load import SHARED, Load
from tests.chaos.victims import ANSWER_SECONDS, LONGEST, SHORTEST, Victim, Web, Wrapped, is_alive
from tests.chaos.waiting import until
from tests.chaos.world import Held, World, open_world
from tests.real.mux import descendants
from tests.whole import WHOLE

SEED = os.environ.get("MCPMUX_CHAOS_SEED", "7")
CALM = ("calm-stdio", "calm-http")
GRACE_SECONDS = 1.0  # beyond the deadline, for who carries the answer
LANES = 4  # exchanges of one client at a time
WARM_SECONDS = 3.0  # of load on healthy servers, before anything is measured
QUIET_SECONDS = 1.5  # after which no update comes late
END_SECONDS = 15.0  # for processes and tables to go
SETTLED_SECONDS = 0.05  # in which no task runs
RECOVERY_SECONDS = 150.0  # for servers whose connections were lost again and again

CONNECTIONS = 32  # idle or streams, to one server: no more than were ever in use at a time
STREAMS = 2  # to one server without requests: its own stream, and the connection of the handshake
OBJECTS_PER_EXCHANGE = 0.5  # that may stay; any leak leaves more
DEADLINES_KEPT = 2 * 1000  # objects of deadlines that are over, which trio tidies away when there are more


def make_victims(pids: Path, chance: random.Random) -> list[Victim]:
    return [
        Victim("stdio-legacy", "legacy", pids),
        Victim("stdio-modern", "modern", pids),
        Wrapped("wrapped-legacy", "legacy", pids),
        Wrapped("wrapped-modern", "modern", pids),
        Web("http-legacy", "legacy", pids, chance),
        Web("http-modern", "modern", pids, chance),
        Web("http-both", "both", pids, chance),
        Web("http-late", "legacy", pids, chance),
    ]


class Chaos:
    """Harms the victims, each for itself."""

    def __init__(self, victims: list[Victim]) -> None:
        self._victims = victims
        self.done: list[str] = []

    async def run(self, world: World) -> None:
        """Harm until cancelled; then everybody is left in peace."""
        async with trio.open_nursery() as nursery:
            for victim in self._victims:
                chance = random.Random(f"{SEED} {victim.name}")
                nursery.start_soon(self._harm, victim, chance, world)

    async def _harm(self, victim: Victim, chance: random.Random, world: World) -> None:
        faults = {**victim.faults, "restart": lambda: world.mux.restart(victim.name)}
        try:
            while True:
                await trio.sleep(chance.uniform(SHORTEST, LONGEST))
                fault = chance.choice(list(faults))
                faults[fault]()
                self.done.append(f"{victim.name}: {fault}")
                await trio.sleep(chance.uniform(SHORTEST, LONGEST))
                victim.heal()
        finally:
            victim.heal()


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[World, list[Victim]]]:
    """Run mcpmux in front of the victims and of two servers without faults. No process outlives it."""
    victims = make_victims(tmp_path, random.Random(SEED))
    calm = [Victim(CALM[0], "legacy", tmp_path), Web(CALM[1], "both", tmp_path, random.Random(SEED))]
    processes = descendants(os.getpid())
    async with trio.open_nursery() as nursery:
        for victim in (*victims, *calm):
            if isinstance(victim, Web):
                await nursery.start(victim.run)
        async with open_world([victim.upstream() for victim in (*victims, *calm)]) as world:
            yield world, victims
        nursery.cancel_scope.cancel()
    pids = [pid for victim in (*victims, *calm) for pid in victim.pids()]
    assert await until(lambda: not any(map(is_alive, pids)), END_SECONDS)
    assert await until(lambda: descendants(os.getpid()) <= processes, END_SECONDS)


async def touch_everything(clients: list[LoadClient], names: list[str]) -> None:
    """Change a resource of each server, and check that every client is notified of all of them."""
    await trio.sleep(QUIET_SECONDS)
    for client in clients:
        client.heard.clear()
    for number, name in enumerate(names):
        call = {"name": f"{name}__touch", "arguments": {"uri": SHARED}}
        answer = await clients[number % len(clients)].ask("tools/call", call)
        assert "result" in answer, answer
    await trio.sleep(QUIET_SECONDS)
    for client in clients:
        assert set(client.heard) == {f"{name}+{SHARED}" for name in names}, client


async def held_by_nobody(world: World, webs: list[Web]) -> Held:
    """Return what mcpmux holds without clients. All sessions are new, so idle connections do not count."""
    await world.is_empty(END_SECONDS)
    assert max(web.connections for web in webs) < CONNECTIONS
    for name in world.mux.upstreams:
        world.mux.restart(name)
    await world.is_well(RECOVERY_SECONDS)
    await until(lambda: sum(web.connections for web in webs) <= STREAMS * len(webs), END_SECONDS)
    # A session is ready before each task of it has run once, and some end at their first step.
    await trio.testing.wait_all_tasks_blocked(SETTLED_SECONDS)
    return Held.now()


async def run_chaos(tmp_path: Path, seconds: float) -> None:
    async with serving(tmp_path) as (world, victims):
        names = list(world.mux.upstreams)
        webs = [victim for victim in victims if isinstance(victim, Web)]
        load = Load(names, set(CALM), ANSWER_SECONDS + GRACE_SECONDS, SEED)
        chaos = Chaos(victims)
        async with world.clients() as clients:
            await load.run_for(clients, WARM_SECONDS, LANES)
        assert not load.verdicts.errors, f"of healthy servers: {load.verdicts}"
        baseline = await held_by_nobody(world, webs)
        async with world.clients() as clients:
            for client in clients:
                await client.subscribe([f"{name}+{SHARED}" for name in names])
            await touch_everything(clients, names)
            async with trio.open_nursery() as harming:
                harming.start_soon(chaos.run, world)
                await load.run_for(clients, seconds, LANES)
                harming.cancel_scope.cancel()
            print(f"seed {SEED}: {len(chaos.done)} faults\n{load.verdicts}\n{load.clock.late:.2f} s late")
            assert not load.verdicts.wrong, "\n".join(load.verdicts.wrong[:20])
            assert load.verdicts.errors, "nobody was harmed"
            await world.is_well(RECOVERY_SECONDS)
            await touch_everything(clients, names)
        after, exchanges = await held_by_nobody(world, webs), sum(load.verdicts.outcomes.values())
        print(
            f"{after.descriptors - baseline.descriptors:+} descriptors, "
            f"{after.objects - baseline.objects:+} objects after {exchanges} exchanges"
        )
        assert after.tasks == baseline.tasks
        assert after.descriptors == baseline.descriptors
        assert after.objects - baseline.objects < OBJECTS_PER_EXCHANGE * exchanges + DEADLINES_KEPT


async def test_servers_harmed_at_random_leave_no_wrong_answer_and_no_trace(tmp_path: Path) -> None:
    await run_chaos(tmp_path, 120 if WHOLE else 45)
