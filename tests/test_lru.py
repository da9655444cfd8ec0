"""The memory of what was used last, against the plainest model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.lru import ENTRY_BYTES, Lru, weigh

keys = st.sampled_from("abcdef") | st.tuples(st.sampled_from("ab"), st.text(max_size=300))
steps = st.lists(st.tuples(st.sampled_from(["get", "set", "pop"]), keys, st.text(max_size=300)), max_size=60)


@given(steps, st.integers(1, 5), st.integers(ENTRY_BYTES, 8 * ENTRY_BYTES))
def test_the_entries_used_last_are_kept_within_both_bounds(steps, most, size):
    lru: Lru[object, str] = Lru(most, size)
    model: dict[object, str] = {}
    for step, key, value in steps:
        if step == "get":
            assert lru.get(key) == model.get(key)
            if key in model:
                model[key] = model.pop(key)
        elif step == "pop":
            assert lru.pop(key) == model.pop(key, None)
        else:
            model.pop(key, None)
            lru[key] = value
            if 4 * taken({key: value}) <= size:
                model[key] = value
            while len(model) > most or taken(model) > size:
                del model[next(iter(model))]
        assert list(lru) == list(model)
        assert lru.bytes == taken(model) <= size
    lru.clear()
    assert (len(lru), lru.bytes) == (0, 0)


def taken(model: dict[object, str]) -> int:
    return sum(ENTRY_BYTES + weigh(key) + weigh(value) for key, value in model.items())
