"""Replicas that are killed, stopped and cut off from their store, and a store that is, under load.

Whatever happens, clients see one mcpmux: see `cluster_laws`. The seed is printed, and `MCPMUX_CHAOS_SEED`
sets another one: what is done to whom, and what is asked, follows from it, though not when exactly.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import trio

from tests.chaos.cluster_clients import SHARED, LegacyClient, ModernClient
from tests.chaos.cluster_laws import GO_ON_SECONDS, Laws
from tests.chaos.cluster_world import (
    ERAS,
    KEPT_SECONDS,
    PRINCIPALS,
    SESSION_IDLE,
    Chaos,
    Cluster,
    is_empty,
    open_cluster,
)
from tests.chaos.waiting import count_descriptors, until
from tests.whole import WHOLE

SEED = os.environ.get("MCPMUX_CHAOS_SEED", "7")
LEGACY_CLIENTS, MODERN_CLIENTS = 8, 4
LANES = 2  # requests of one client at a time
WARM_SECONDS = 2.0
ONCE = 40  # resources of each server that change once, so that no later change makes up for a lost one
WATCHED = 12  # of those, by each client
ANNOUNCE_SECONDS = 10.0  # after the last fault, until every client has got every change
END_SECONDS = 15.0
DESCRIPTORS = 60  # that a replica may have more of than when it had just started, for pools and clients
KILOBYTES = 60_000
KINDS = {
    "kill": 4,
    "stop": 2,
    "pause": 4,
    "refuse": 2,
    "hang": 2,
    "cut": 2,
    "slow": 1,
    "kill store": 2,
    "pause store": 2,
    "wipe store": 1,
}

FAIL_OVERS = {"kill": 2, "stop": 1, "pause": 2, "fail over": 4}


def make_clients(port: int, laws: Laws) -> list[LegacyClient | ModernClient]:
    clients: list[LegacyClient | ModernClient] = []
    for number in range(LEGACY_CLIENTS + MODERN_CLIENTS):
        kind = LegacyClient if number < LEGACY_CLIENTS else ModernClient
        name = f"{kind.__name__}-{number}"
        chance = random.Random(f"{SEED} {name}")
        shared = [f"modern+{uri}" for uri in SHARED]
        once = [f"{era}+once:{number}" for era in ERAS for number in range(ONCE)]
        # Some get few updates, so that no later change makes up for a lost one, and streams are quiet.
        uris = [*(shared if number % 2 else ()), *chance.sample(once, WATCHED)]
        principal = PRINCIPALS[number % len(PRINCIPALS)]
        clients.append(kind(name, principal, port, laws, SEED, uris))
    return clients


async def change_things(cluster: Cluster, laws: Laws, seconds: float, chance: random.Random) -> None:
    """Change each resource that changes once, and between them those that everybody listens to."""
    once = [(era, f"once:{number}") for era in ERAS for number in range(ONCE)]
    chance.shuffle(once)
    for era, uri in once:
        await trio.sleep(seconds / len(once))
        for name, path in ((era, uri), ("modern", chance.choice(SHARED))):
            changed = await cluster.truths[name].change(path)
            laws.note_change(f"{name}+{path}", changed["at"], changed["version"])


async def trespass_on(clients: list[LegacyClient], chance: random.Random) -> None:
    while True:
        await trio.sleep(chance.uniform(0.2, 0.8))
        await chance.choice(clients).trespass(chance.choice(clients))


async def run_chaos(
    folder: Path, rounds: int, seconds: float, kinds: dict[str, int], wipes: int, *, paired: bool = False
) -> None:
    """Do some rounds of faults; after each, do none until clients have to go on."""
    chance = random.Random(f"{SEED} faults")
    print(f"seed {SEED}, {rounds} rounds of {seconds:g} s")
    async with open_cluster(folder, chance, paired=paired) as cluster:
        laws = Laws(cluster)
        clients = make_clients(cluster.port, laws)
        legacy = [client for client in clients if isinstance(client, LegacyClient)]
        chaos = Chaos(cluster, chance, kinds, wipes)
        async with trio.open_nursery() as streams:
            async with trio.open_nursery() as opening:
                for client in clients:
                    opening.start_soon(client.open)
            for client in clients:
                streams.start_soon(client.listen)
            streams.start_soon(trespass_on, legacy, chance)
            async with trio.open_nursery() as lanes:
                for client in clients:
                    lanes.start_soon(client.run, LANES)
                await trio.sleep(WARM_SECONDS)
                total = rounds * (seconds + GO_ON_SECONDS)
                lanes.start_soon(change_things, cluster, laws, total, chance)
                for _ in range(rounds):
                    await chaos.run(seconds)
                    await trio.sleep(GO_ON_SECONDS + 1)
                for client in clients:
                    client.stopping.set()
            await until(lambda: not laws.unheard(), ANNOUNCE_SECONDS)
            for missing in laws.unheard():
                laws.break_law(missing)
            streams.cancel_scope.cancel()
        async with trio.open_nursery() as closing:
            for client in legacy:
                closing.start_soon(client.close)
        truths = Counter[str]()
        for truth in cluster.truths.values():
            truths.update((await truth.tell())["calls"])
        laws.judge_effects(truths)
        print(laws)
        for fault in cluster.faults:
            print(fault)
        await judge_what_stays(cluster, laws)
        assert not laws.broken, "\n".join([f"{len(laws.broken)} times", *laws.broken[:40]])


async def judge_what_stays(cluster: Cluster, laws: Laws) -> None:
    keys = await trio.to_thread.run_sync(cluster.keys)
    for key, left in keys.items():
        if left < 0 or (left > KEPT_SECONDS * 1000 and not key.startswith("{mcpmux}:")):
            laws.break_law(f"{key} stays in the store for {left} ms")
    began = time.monotonic()
    held, kept = await is_empty(cluster, SESSION_IDLE + KEPT_SECONDS + END_SECONDS)
    print(f"empty after {time.monotonic() - began:.1f} s")
    if held or kept:
        laws.break_law(f"left behind are {held} at replicas and {kept} in the store")
    for name, replica in cluster.replicas.items():
        if not replica.is_running:
            laws.break_law(f"{replica} has ended by itself")
            continue
        more = count_descriptors(replica.pid) - replica.descriptors
        larger = replica.held() - replica.kilobytes
        print(f"{name}: {more:+} descriptors, {larger:+} kB")
        if more > DESCRIPTORS or larger > KILOBYTES:
            laws.break_law(f"{name} has grown by {more} descriptors and {larger} kB")
        log = replica.log.read_text()
        if "Traceback" in log:
            laws.break_law(f"{replica} had trouble: {log[log.index('Traceback') - 500 :][:3000]}")


async def test_replicas_harmed_at_random_are_one_mcpmux(tmp_path: Path) -> None:
    await run_chaos(tmp_path, rounds=4 if WHOLE else 3, seconds=12, kinds=KINDS, wipes=2)


async def test_replicas_whose_store_fails_over_are_one_mcpmux(tmp_path: Path) -> None:
    await run_chaos(tmp_path, rounds=3 if WHOLE else 2, seconds=12, kinds=FAIL_OVERS, wipes=0, paired=True)
