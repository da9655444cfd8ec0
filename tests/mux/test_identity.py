from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.merge import DELIVERED, merge_capabilities, merge_instructions
from mcpmux.protocol.handshake import ServerFacts
from tests.peers.revision import MODERN


def facts(capabilities: dict[str, Any], instructions: str | None = None) -> ServerFacts:
    return ServerFacts(MODERN, capabilities, None, instructions)


options: st.SearchStrategy[Any] = st.dictionaries(
    st.sampled_from(["listChanged", "subscribe", "other"]), st.sampled_from([True, False, None, {}, 1])
)
capabilities: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["tools", "resources", "prompts", "completions", "logging", "tasks"]),
    options | st.sampled_from([None, True, []]),
)


@given(st.lists(capabilities, max_size=4))
def test_what_is_advertised_is_offered_by_somebody_and_delivered_by_us(offers: list[dict[str, Any]]):
    servers = [facts(offer) for offer in offers]
    merged = merge_capabilities(servers)
    assert merged.keys() <= DELIVERED.keys()
    for name in DELIVERED:
        assert (name in merged) == any(server.offers(name) for server in servers)
    for name, advertised in merged.items():
        assert advertised.keys() <= DELIVERED[name]
        assert set(advertised.values()) <= {True}
    subscribe = any(
        server.offers("resources") and server.capabilities["resources"].get("subscribe") is True
        for server in servers
    )
    assert merged.get("resources", {}).get("subscribe", False) is subscribe


@given(st.lists(capabilities, max_size=4))
def test_every_advertised_list_can_change(offers: list[dict[str, Any]]):
    merged = merge_capabilities([facts(offer) for offer in offers])
    for name in ("tools", "resources", "prompts"):
        assert name not in merged or merged[name]["listChanged"] is True


@given(st.lists(capabilities, max_size=4), st.randoms(use_true_random=False))
def test_the_union_knows_no_order(offers: list[dict[str, Any]], random):
    union = merge_capabilities([facts(offer) for offer in offers])
    random.shuffle(offers)
    assert merge_capabilities([facts(offer) for offer in offers]) == union


def test_the_offer_itself_is_not_touched():
    offer = {"resources": {"subscribe": True}}
    merge_capabilities([facts(offer), facts({"resources": {"listChanged": False}})])
    assert offer == {"resources": {"subscribe": True}}


def test_the_oldest_servers_may_complete_without_saying_so():
    assert merge_capabilities([ServerFacts("2024-11-05", {})]) == {"completions": {}}


@pytest.mark.parametrize(
    ("own", "servers", "text"),
    [
        (None, [], None),
        ("", [("x", None), ("y", "")], None),
        ("Ours.", [], "Ours."),
        (None, [("x", "Do.")], "## x\n\nDo."),
        ("Ours.", [("x", "Do."), ("y", None), ("z", "Don't.")], "Ours.\n\n## x\n\nDo.\n\n## z\n\nDon't."),
    ],
)
def test_instructions_are_ours_then_each_servers_under_its_name(
    own: str | None, servers: list[tuple[str, str | None]], text: str | None
):
    assert merge_instructions(own, [(name, facts({}, words)) for name, words in servers]) == text


settings = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([{}, {"x": 1}, {"x": 2}, 3]))
passed = st.dictionaries(st.sampled_from(["extensions", "experimental"]), settings | st.just(None))


@given(st.lists(passed, max_size=4), st.booleans(), st.randoms(use_true_random=False))
def test_extensions_are_merged_where_their_owners_agree(offers: list[Any], legacy: bool, random):
    merged = merge_capabilities([facts(offer) for offer in offers], legacy=legacy)
    for kind in ("extensions", "experimental"):
        for name in ("a", "b"):
            offered = [offer[kind][name] for offer in offers if name in (offer.get(kind) or {})]
            offered = [extension for extension in offered if isinstance(extension, dict)]
            merged_extension = merged.get(kind, {}).get(name)
            assert merged_extension == (
                offered[0] if offered and all(extension == offered[0] for extension in offered) else None
            )
    random.shuffle(offers)
    assert merge_capabilities([facts(offer) for offer in offers], legacy=legacy) == merged
