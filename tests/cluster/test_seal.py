"""Values in a store open for their reader alone, as what it is, and tell a reader no facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import ForeignSeal, OpenSeal, Seal

SEALS: list[Seal] = [ClusterSeal(b"one key of a cluster"), OpenSeal()]
texts = st.text(max_size=20)
bounds = st.tuples(texts, texts, texts)


@pytest.mark.parametrize("seal", SEALS, ids=["encrypted", "open"])
@given(kind=texts, name=texts, principal=texts, data=st.binary(max_size=200))
def test_it_opens_as_what_it_was_sealed(seal, kind, name, principal, data):
    assert seal.open(kind, name, seal.seal(kind, name, data, principal), principal) == data


@pytest.mark.parametrize("seal", SEALS, ids=["encrypted", "open"])
@given(bound=bounds, other=bounds, data=st.binary(max_size=50))
def test_it_opens_as_nothing_else(seal, bound, other, data):
    kind, name, principal = bound
    sealed = seal.seal(kind, name, data, principal)
    if other != bound:
        with pytest.raises(ForeignSeal):
            seal.open(other[0], other[1], sealed, other[2])


@given(data=st.binary(min_size=8, max_size=50), place=st.integers(0, 1000), name=texts)
def test_a_reader_of_the_store_sees_nothing_and_can_change_nothing(data, place, name):
    seal, other = SEALS[0], ClusterSeal(b"another key")
    sealed = seal.seal("session", name, data, "alice")
    assert data not in sealed
    assert sealed != seal.seal("session", name, data, "alice")
    changed = bytearray(sealed)
    changed[place % len(changed)] ^= 1
    for wrong in (bytes(changed), sealed[:-1], b""):
        with pytest.raises(ForeignSeal):
            seal.open("session", name, wrong, "alice")
    with pytest.raises(ForeignSeal):
        other.open("session", name, sealed, "alice")


@given(texts, texts)
def test_names_are_of_the_key(kind, text):
    seal, other = SEALS[0], ClusterSeal(b"another key")
    assert seal.name(kind, text) == seal.name(kind, text)
    assert seal.name(kind, text) != other.name(kind, text)
    assert len(text) < 4 or text not in seal.name(kind, text)
