"""Lists of very many upstreams are complete: every item once, whether they come whole or page by page."""

import resource
from contextlib import ExitStack, contextmanager

import pytest

from tests.runtime.served import ask, connected, result_of, started, started_mux

ITEMS = 100
FILES = 16_000  # for as many upstreams in one process

# A thousand handshakes take a busy machine longer than a list waits for a server that starts.
PATIENT = 'connect_timeout = "2m"\nlist_timeout = "2m"\n'

pytestmark = pytest.mark.slow


@contextmanager
def open_files_allowed(needed):
    """Allow child processes as many open files, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY,) and hard < needed:
        pytest.skip(f"the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def walked(client):
    """Return the URIs of all pages, and the number of pages."""
    uris, pages = [], 0
    cursor: dict[str, str] = {}
    while True:
        ask(client, "resources/list", **cursor)
        result = result_of(client)
        assert "dev.mcpmux/upstreams" not in result["_meta"]
        uris += [item["uri"] for item in result["resources"]]
        pages += 1
        if "nextCursor" not in result:
            return uris, pages
        cursor = {"cursor": result["nextCursor"]}


@pytest.mark.parametrize(("upstreams", "page"), [(100, 100), (1000, 50)])
def test_every_item_of_many_upstreams_is_listed_once(upstreams, page):
    with ExitStack() as stack, open_files_allowed(FILES):
        _, ports = started(
            stack,
            "benchmarks.upstream",
            *["--port=0"] * upstreams,
            f"--items={ITEMS}",
            f"--page={page}",
            urls=upstreams,
        )
        config = "".join(
            f'[upstreams.s{number}]\nurl = "http://127.0.0.1:{port}/mcp"\n{PATIENT}'
            for number, port in enumerate(ports)
        )
        _, port = started_mux(stack, config)
        with connected(port) as client:
            uris, pages = walked(client)
    assert len(uris) == upstreams * ITEMS
    assert set(uris) == {
        f"s{number}+bench:///item/{item}" for number in range(upstreams) for item in range(ITEMS)
    }
    assert pages == ITEMS // page  # a page that is full with one round of all upstreams holds no more
