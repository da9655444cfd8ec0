"""The time for which a listing of a server's tools or prompts is known."""

from __future__ import annotations

from typing import Any

from mcpmux.mux.listing import KNOWN_SECONDS, Listing
from mcpmux.mux.view import hints_of
from mcpmux.protocol.envelope import decode_fields, raw

LOOK: Any = {
    "name": "look",
    "inputSchema": {"type": "object", "title": "x"},
    "annotations": {"readOnlyHint": True},
    "execution": {"taskSupport": "optional"},
}
ITEMS = {
    "look": decode_fields(raw(LOOK)),
    "plain": decode_fields(raw({"name": "plain", "inputSchema": 1})),
}


def test_a_list_is_known_until_its_time_or_a_change():
    listing = Listing()
    assert not listing.is_known(0.0)
    listing.learn(ITEMS, 5.0, listing.changes)
    assert listing.is_known(5.0 + KNOWN_SECONDS - 0.1) and not listing.is_known(5.0 + KNOWN_SECONDS)
    listing.changed()
    assert not listing.is_known(5.0)
    assert list(listing.items) == ["look", "plain"]  # until the list is learned again
    assert set(listing.items["look"]) == {"inputSchema", "annotations", "execution"}
    assert repr(listing) == "<Listing of 2 items until -inf, 1 changes>"


def test_a_change_during_the_fetch_outdates_the_list():
    listing = Listing()
    changes = listing.changes
    listing.changed()
    listing.learn(ITEMS, 5.0, changes)
    assert listing.items and not listing.is_known(5.0)


def test_what_a_tool_does_not_state_has_a_default():
    listing = Listing()
    listing.learn(ITEMS, 0.0, 0)
    assert listing.hints == {"look": hints_of({"readOnlyHint": True}), "plain": hints_of(None)}
    assert listing.hints is listing.hints
    assert (listing.schema("look"), listing.schema("plain")) == ({"type": "object", "title": "x"}, {})
    assert [listing.task_support(name) for name in ("look", "plain", "other")] == [
        "optional",
        "forbidden",
        None,
    ]
