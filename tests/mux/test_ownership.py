"""Whose a thing is: a machine against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux import ownership
from mcpmux.mux.ownership import OWNED_LIMIT, Ownership
from mcpmux.protocol.raw_json import SHORT_CHARS

OWNERS = "ab"
steps = st.lists(
    st.tuples(st.just("add"), st.sampled_from("xy"), st.sampled_from("123"), st.sampled_from(OWNERS))
    | st.tuples(st.just("leave"), st.sampled_from(OWNERS)),
    max_size=40,
)


@given(steps)
def test_a_thing_is_its_first_owners_until_that_goes(script: list[tuple[str, ...]]):
    things: Ownership[int] = Ownership()
    model: dict[tuple[str, str], str] = {}
    for step in script:
        if step[0] == "add":
            _, upstream, own_id, owner = step
            things.add(upstream, own_id, owner, 1)
            model.setdefault((upstream, own_id), owner)
        else:
            things.leave(step[1])
            model = {key: owner for key, owner in model.items() if owner != step[1]}
        assert len(things) == len(model)
        for upstream in "xy":
            for own_id in "123":
                owned_by = model.get((upstream, own_id))
                owner_found = things.find(upstream, own_id)
                assert (owner_found[0] if owner_found else None) == owned_by
                for owner in OWNERS:
                    assert things.is_of(upstream, own_id, owner) is (owned_by == owner)
                    assert things.may_use(upstream, own_id, owner) is (owned_by in (None, owner))


def test_what_one_owner_holds_is_bounded_and_the_oldest_goes_first():
    things: Ownership[None] = Ownership()
    things.add("x", "other", "b", None)
    for number in range(OWNED_LIMIT + 1):
        things.add("x", str(number), "a", None)
    things.add("x", "1" * (SHORT_CHARS + 1), "a", None)
    assert len(things) == ownership.OWNED_LIMIT + 1
    assert things.find("x", "0") is None
    assert things.is_of("x", "1", "a")
    assert things.is_of("x", "other", "b")
