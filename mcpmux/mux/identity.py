"""What mcpmux says about itself: capabilities and instructions out of many servers' own.

Advertised capabilities are the union of what connected upstreams offer, cut to what mcpmux delivers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcpmux.protocol.handshake import ServerFacts

DELIVERED: dict[str, frozenset[str]] = {
    "tools": frozenset({"listChanged"}),
    "resources": frozenset({"listChanged", "subscribe"}),
    "prompts": frozenset({"listChanged"}),
    "completions": frozenset(),
    "logging": frozenset(),
}
"""Capability → the options of it that mcpmux delivers."""

_OWN = "listChanged"
"""Delivered for every list, whatever the servers offer: one of them may go, or come back different."""


def merge_capabilities(servers: Iterable[ServerFacts]) -> dict[str, Any]:
    """The union of the servers' capabilities that mcpmux can stand for."""
    merged: dict[str, Any] = {}
    for facts in servers:
        for capability, options in DELIVERED.items():
            if facts.offers(capability):
                offered = facts.capabilities.get(capability) or {}
                ours = merged.setdefault(capability, {})
                ours.update(
                    {option: True for option in options if option == _OWN or offered.get(option) is True}
                )
    return merged


def merge_instructions(own: str | None, servers: Iterable[tuple[str, ServerFacts]]) -> str | None:
    """Our own text, then each server's under a heading with its name; None when there is none at all."""
    parts = [own] if own else []
    parts += [f"## {name}\n\n{facts.instructions}" for name, facts in servers if facts.instructions]
    return "\n\n".join(parts) or None
