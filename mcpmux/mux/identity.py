"""What mcpmux says about itself: capabilities and instructions out of many servers' own.

Advertised capabilities are the union of what connected upstreams offer, cut to what mcpmux delivers. An
extension, and what is experimental, is told as the servers tell it when those that have it agree on its
settings: what it adds to items and results passes untouched. Methods and notifications of its own reach a
server that is the only one and unprefixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.tasks import EXTENSION, task_capabilities

DELIVERED: dict[str, frozenset[str]] = {
    "tools": frozenset({"listChanged"}),
    "resources": frozenset({"listChanged", "subscribe"}),
    "prompts": frozenset({"listChanged"}),
    "completions": frozenset(),
    "logging": frozenset(),
}
"""Capability → the options of it that mcpmux delivers."""

_PASSED = ("extensions", "experimental")
"""Capabilities that hold others, by names that mcpmux need not know."""

_OWN = "listChanged"
"""Delivered for every list, whatever the servers offer: one of them may go, or come back different."""


def merge_capabilities(servers: Iterable[ServerFacts], *, legacy: bool = False) -> dict[str, Any]:
    """The union of the servers' capabilities that mcpmux can stand for, before a client of that era."""
    servers = list(servers)
    merged: dict[str, Any] = task_capabilities(servers, legacy=legacy)
    for facts in servers:
        for capability, options in DELIVERED.items():
            if facts.offers(capability):
                offered = facts.capabilities.get(capability) or {}
                ours = merged.setdefault(capability, {})
                ours.update(
                    {option: True for option in options if option == _OWN or offered.get(option) is True}
                )
    for kind in _PASSED:
        for name, settings in _agreed(kind, servers).items():
            merged.setdefault(kind, {}).setdefault(name, settings)
    return merged


def _agreed(kind: str, servers: Iterable[ServerFacts]) -> dict[str, Any]:
    """What the servers offer under a capability, by name, where their settings for it are the same."""
    said: dict[str, list[Any]] = {}
    for facts in servers:
        offered = facts.capabilities.get(kind)
        for name, settings in offered.items() if isinstance(offered, dict) else ():
            if name != EXTENSION and isinstance(settings, dict):  # tasks are spoken for
                said.setdefault(name, []).append(settings)
    return {name: every[0] for name, every in said.items() if all(each == every[0] for each in every)}


def merge_instructions(own: str | None, servers: Iterable[tuple[str, ServerFacts]]) -> str | None:
    """Our own text, then each server's under a heading with its name; None when there is none at all."""
    parts = [own] if own else []
    parts += [f"## {name}\n\n{facts.instructions}" for name, facts in servers if facts.instructions]
    return "\n\n".join(parts) or None
