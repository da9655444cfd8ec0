from __future__ import annotations

import pytest

from mcpmux.protocol import method as m

NAMES = {name: value for name, value in vars(m).items() if isinstance(value, str) and name.isupper()}


def test_no_method_has_two_names():
    assert len(set(NAMES.values())) == len(NAMES)


def test_cacheable_results_are_those_that_the_specification_lists():
    """ "Cacheable Results", 2026-07-28."""
    assert {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    } == m.CACHEABLE


def test_those_that_may_ask_for_input_are_those_that_the_specification_lists():
    """ "Supported Requests" of multi round-trip requests, 2026-07-28."""
    assert {"prompts/get", "resources/read", "tools/call"} == m.MAY_ASK_FOR_INPUT


def test_requests_removed_in_2026_are_known():
    """Changelog of 2026-07-28: items 2, 4, 5 and 6."""
    assert {
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
    } == m.REMOVED_IN_MODERN


@pytest.mark.parametrize(
    ("method", "items", "capability"),
    [
        ("resources/list", "resources", "resources"),
        ("resources/templates/list", "resourceTemplates", "resources"),
        ("tools/list", "tools", "tools"),
        ("prompts/list", "prompts", "prompts"),
    ],
)
def test_every_paged_list_says_where_its_items_are(method: str, items: str, capability: str):
    """ "Operations Supporting Pagination", 2026-07-28."""
    assert m.LISTS[method] == (items, capability)
    assert len(m.LISTS) == 4


def test_what_may_be_sent_twice_changes_nothing():
    assert not m.IDEMPOTENT & {m.TOOLS_CALL, m.LISTEN, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE}
