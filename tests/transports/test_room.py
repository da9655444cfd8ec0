"""The connection that has to leave when every place is taken, against a plain model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mcpmux.transports.http.server import LOOK_SECONDS, Room


class Guest:
    def __init__(self, peer: str, since: float | None) -> None:
        self.peer = peer
        self.since = since
        self.looked_at = 0

    @property
    def resting_since(self) -> float | None:
        self.looked_at += 1
        return self.since


def make_room() -> Any:
    """Return a room; of a connection it uses no more than a guest has."""
    return Room()


def fill(chance: random.Random, number: int, peers: str) -> tuple[Any, list[Guest]]:
    room = make_room()
    guests = []
    for since in range(number):
        guest = Guest(chance.choice(peers), since if chance.random() < 0.7 else None)
        guests.append(guest)
        room.come(guest.peer, guest)
    return room, guests


def plainly(guests: list[Guest], newcomer: str) -> set[Guest]:
    """Return the connections of which any may leave."""

    def number(peer: str) -> int:
        return sum(guest.peer == peer for guest in guests)

    resting = [guest for guest in guests if guest.since is not None]
    most = max((number(guest.peer) for guest in resting), default=0)
    if most < number(newcomer):
        return set()
    peers = {guest.peer for guest in resting if number(guest.peer) == most}
    return {min((g for g in resting if g.peer == peer), key=lambda g: g.since or 0) for peer in peers}


def test_the_longest_idle_connection_of_the_largest_peer_leaves(subtests: pytest.Subtests):
    for seed in range(50):
        with subtests.test(seed=seed):
            chance = random.Random(seed)
            room, guests = fill(chance, chance.randrange(40), "abcd")
            now = 0.0
            while departed := room.make("newcomer", now := now + LOOK_SECONDS):
                assert departed in plainly(guests, "newcomer")
                guests.remove(departed)
                assert room.taken == len(guests)
            assert not any(guest.since is not None for guest in guests)


def test_the_leaving_connection_is_always_its_peers_longest_idle_one(
    subtests: pytest.Subtests,
):
    for seed in range(50):
        with subtests.test(seed=seed):
            chance = random.Random(seed)
            room, guests = fill(chance, 30, "abc")
            left = 0
            for now in range(30, 300):
                guest = chance.choice(guests)
                step = chance.randrange(4)
                if step == 0:
                    guest.since = None
                elif step == 1:
                    guest.since = now
                elif step == 2:
                    guests.append(newcomer := Guest(chance.choice("abc"), now))
                    room.come(newcomer.peer, newcomer)
                elif departed := room.make(peer := chance.choice("abcz"), now):
                    left += 1
                    same = [guest for guest in guests if guest.peer == departed.peer]
                    assert departed.since == min(guest.since for guest in same if guest.since is not None)
                    assert len(same) >= sum(guest.peer == peer for guest in guests)
                    guests.remove(departed)
                    room.go(departed.peer, departed)  # it is over later, too
                    assert room.taken == len(guests)
            assert left > 20


def test_a_peer_that_has_more_than_anybody_takes_no_place_from_others():
    room = make_room()
    for guest in (*(Guest("busy", None) for _ in range(9)), Guest("quiet", 1.0)):
        room.come(guest.peer, guest)
    assert room.make("busy", LOOK_SECONDS) is None
    assert room.make("other", LOOK_SECONDS) is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_idle_connection_of_one_peer_leaves_for_its_next(seed: int):
    chance = random.Random(seed)
    room, guests = fill(chance, chance.randrange(40), "abc")
    now, own = 0.0, [guest for guest in guests if guest.peer == "a"]
    while departed := room.make_of("a", now := now + LOOK_SECONDS):
        assert departed.since == min(guest.since for guest in own if guest.since is not None)
        own.remove(departed)
        assert room.count("a") == len(own)
    assert not any(guest.since is not None for guest in own)
    assert room.taken == len(own) + sum(guest.peer != "a" for guest in guests)


def test_everybody_is_not_looked_at_for_each_who_comes():
    room, guests = fill(random.Random(1), 1000, "abcdefgh")
    for _ in range(200):
        assert room.make("newcomer", 5.0) is not None
    assert sum(guest.looked_at for guest in guests) < 1500
    busy = [Guest("a", None) for _ in range(100)]
    room = make_room()
    for guest in busy:
        room.come("a", guest)
    for _ in range(200):
        assert room.make("newcomer", 5.0) is None
    assert sum(guest.looked_at for guest in busy) == 100
