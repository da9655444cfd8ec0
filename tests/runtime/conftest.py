"""Which pairs of revisions are tried by default."""

from __future__ import annotations

import pytest

from mcpmux.protocol.revisions import NEWEST

PARTIES = (("down", "up"), ("era", "revision"))
"""What tests call the revisions of the client and of the server."""

Pair = tuple[str, str]


def find_pair(item: pytest.Item) -> Pair | None:
    """Return the revisions of the client and of the server in a test, None if it has no such pair."""
    callspec = getattr(item, "callspec", None)
    params = callspec and callspec.params
    for client, server in PARTIES:
        if params and client in params and server in params:
            return params[client], params[server]
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark pairs of revisions as slow, except those that are equal and the farthest crossing of the eras."""
    pairs = {item: pair for item in items if (pair := find_pair(item))}
    crossings: dict[str, Pair] = {}
    for item, pair in pairs.items():
        test = item.nodeid.partition("[")[0]
        if (pair[0] == NEWEST) is not (pair[1] == NEWEST):
            crossings[test] = min(crossings.get(test, pair), pair)
    for item, pair in pairs.items():
        if pair[0] != pair[1] and pair != crossings.get(item.nodeid.partition("[")[0]):
            item.add_marker("slow")
