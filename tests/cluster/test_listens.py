"""Laws of the function that chooses the owner of a session."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.cluster.listens import choose_owner

replica_ids = st.integers(0, 16**10 - 1).map("{:010x}".format)
ids = st.sets(replica_ids, min_size=2, max_size=20)
names = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)


@given(ids, names, st.randoms())
def test_all_who_know_the_same_replicas_name_the_same_owner(replicas, name, chance):
    shuffled = list(replicas)
    chance.shuffle(shuffled)
    owner = choose_owner(name, replicas)
    assert owner in replicas
    assert choose_owner(name, shuffled) == owner


@given(ids, names, st.data())
def test_only_what_was_owned_by_the_one_that_goes_moves(replicas, name, data):
    gone = data.draw(st.sampled_from(sorted(replicas)))
    earlier, after = choose_owner(name, replicas), choose_owner(name, replicas - {gone})
    assert after == earlier or earlier == gone


@given(ids, names, replica_ids)
def test_one_that_comes_takes_from_others_and_moves_nothing_between_them(replicas, name, fresh):
    earlier, after = choose_owner(name, replicas), choose_owner(name, replicas | {fresh})
    assert after in (earlier, fresh)


def test_each_owns_its_share():
    replicas = [f"{number:010x}" for number in range(10)]
    owned = Counter(choose_owner(f"upstream-{number}", replicas) for number in range(5000))
    assert set(owned) == set(replicas)
    assert all(400 < share < 600 for share in owned.values())


def test_nobody_owns_anything_without_replicas():
    with pytest.raises(ValueError, match="empty"):
        choose_owner("docs", [])
