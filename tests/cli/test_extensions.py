from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.cli import check as ext
from mcpmux.cli.check import EXTENSIONS, Extension, explain_extensions
from mcpmux.mux.merge import merge_capabilities
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.tasks import EXTENSION as TASKS
from tests.mux.test_identity import facts, passed


@given(st.lists(passed, max_size=4))
def test_what_is_explained_of_extensions_is_what_clients_are_told(offers: list[Any]):
    servers = {str(number): facts(offer) for number, offer in enumerate(offers)}
    merged = merge_capabilities(servers.values())
    declared: dict[tuple[str, str], list[str]] = {}
    for server, offer in zip(servers, offers, strict=True):
        for kind, names in offer.items():
            for name in names or ():
                declared.setdefault((kind, name), []).append(server)
    items = explain_extensions(servers, transparent=False)
    assert {(item.kind, item.name): list(item.servers) for item in items} == declared
    assert all(item.told == (item.name in merged.get(item.kind, {})) for item in items)


CALLS: dict[str, Any] = {"requests": {"tools": {"call": {}}}}


@pytest.mark.parametrize(
    ("capabilities", "kind", "name", "told", "why"),
    [
        ([{"extensions": {"x/y": {}}}], EXTENSIONS, "x/y", True, ext.METHODS_STAY),
        ([{"extensions": {ext.UI: {}}}], EXTENSIONS, ext.UI, True, ""),
        (
            [{"extensions": {"x/y": {}}}, {"extensions": {"x/y": {"a": 1}}}],
            EXTENSIONS,
            "x/y",
            False,
            ext.DIFFERENT,
        ),
        ([{"experimental": {"x": True}}], ext.EXPERIMENTAL, "x", False, ext.NO_OBJECT),
        ([{"vendor": {}}], ext.CAPABILITIES, "vendor", False, ext.UNKNOWN),
        ([{"extensions": {TASKS: {}}}], EXTENSIONS, TASKS, True, ext.TASKS_PASS),
    ],
)
def test_what_becomes_of_an_extension_is_explained(
    capabilities: Any, kind: str, name: str, told: bool, why: str
):
    servers = {f"s{number}": facts(members) for number, members in enumerate(capabilities)}
    assert explain_extensions(servers, transparent=False) == [
        Extension(kind, name, tuple(servers), told, why)
    ]


def test_tasks_of_a_legacy_server_are_those_of_the_extension():
    core = {"core": ServerFacts("2025-11-25", {"tasks": CALLS})}
    declared = {"early": ServerFacts("2025-11-25", {"extensions": {TASKS: {}}})}
    extension = Extension(EXTENSIONS, TASKS, ("core",), True, ext.TASKS_PASS)
    assert explain_extensions(core, transparent=False) == [extension]
    refused = Extension(EXTENSIONS, TASKS, ("early",), False, ext.LEGACY_TASKS)
    assert explain_extensions(declared, transparent=False) == [refused]


def test_the_only_server_without_a_prefix_gets_methods_of_extensions():
    alone = {"s": facts({"tools": {}, "extensions": {"x/y": {}}})}
    assert explain_extensions(alone, transparent=True) == [Extension(EXTENSIONS, "x/y", ("s",), True, "")]
    assert explain_extensions({"s": facts({"tools": {}, "tasks": {}})}, transparent=True) == []
