"""Pages in a real Chromium that connect to mcpmux by the official SDK, as the MCP Inspector does.

They show MCP Apps of real servers behind mcpmux. Their origin is another one than mcpmux's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.process import free_port
from mcpmux.auth.bearer import hash_token
from tests.auth.made import RSA, public
from tests.browser.browser import Browser, Page, open_page
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env, program
from tests.real.web_server import run_web_server

HOST = Path(__file__).with_name("apps_host.mjs")
ERAS = [pytest.param("auto", "2026-07-28"), pytest.param("legacy", "2025-11-25")]
UI = {"mimeType": "text/html;profile=mcp-app"}


def server(name: str) -> Json:
    return stdio([str(npm_env("apps") / ".bin" / name), "--stdio"])


class Host(NamedTuple):
    """A browser, the URL of a host app's page, and that of mcpmux."""

    browser: Browser
    url: str
    mux: str


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run a host app whose only server is mcpmux. Two of three upstreams are alike."""
    directory = tmp_path_factory.mktemp("apps")
    clock, budget = server("mcp-server-basic-vanillajs"), server("mcp-budget-allocator-server")
    config = write_config(directory, {"here": clock, "there": clock, "budget": budget})
    with (
        HttpMux(config) as mux,
        run_web_server([program("node"), str(HOST), str(npm_env("apps"))], "http://", {}) as url,
    ):
        browser = Browser(directory)
        yield Host(browser, url.strip(), mux.url)
        browser.stop()


@asynccontextmanager
async def opened(host: Host) -> AsyncIterator[Page]:
    """Open the page of the host app."""
    async with open_page(host.browser) as page:
        await page.open(host.url)
        await page.wait("window.show")
        yield page


@asynccontextmanager
async def connected(host: Host, query: str, mode: str) -> AsyncIterator[tuple[Page, Json]]:
    """Open the page, and connect it to mcpmux. Yields the page and what its client has seen."""
    async with opened(host) as page:
        yield page, await page.run(f"connect('{host.mux}{query}', '{mode}')")
        assert page.problems == []


def inside(tool: str) -> str:
    """Return JavaScript for the document of the app that is shown for a tool."""
    return f"document.getElementById('{tool}').contentDocument"


@pytest.mark.parametrize(("mode", "revision"), ERAS)
async def test_apps_of_servers_with_the_same_names_are_shown_with_their_results(
    host: Host, mode: str, revision: str
) -> None:
    links = {
        "here__get-time": "ui://here/get-time/mcp-app.html",
        "there__get-time": "ui://there/get-time/mcp-app.html",
        "budget__get-budget-data": "ui://budget/budget-allocator/mcp-app.html",
    }
    async with connected(host, "", mode) as (page, seen):
        assert seen == {"revision": revision, "links": links}
        for tool, uri in links.items():
            assert await page.run(f"show('{tool}')") == {"uri": uri, **UI}
        for tool in ("here__get-time", "there__get-time"):
            await page.wait(f"/^20.*Z$/.test({inside(tool)}.getElementById('server-time').textContent)")
        budget = f"{inside('budget__get-budget-data')}.getElementById('sliders-container')"
        await page.wait(f"{budget}.textContent.includes('Marketing')")


@pytest.mark.parametrize(("mode", "revision"), ERAS)
async def test_an_app_calls_its_servers_tool_by_its_own_name(host: Host, mode: str, revision: str) -> None:
    time = f"{inside('there__get-time')}.getElementById('server-time').textContent"
    press = f"{inside('there__get-time')}.getElementById('get-time-btn').click()"
    async with connected(host, "?upstreams=there,budget", mode) as (page, seen):
        assert (seen["revision"], len(seen["links"])) == (revision, 2)
        await page.run("show('there__get-time')")
        await page.wait(f"{time}.endsWith('Z')")
        start = await page.run(time)
        await page.run(press)
        await page.wait(f"{time}.endsWith('Z') && {time} > '{start}'")
    async with connected(host, "", mode) as (page, _):  # where another server has such a tool
        await page.run("show('there__get-time')")
        await page.wait(f"{time}.endsWith('Z')")
        await page.run(press)
        await page.wait(f"{time} === '[ERROR]'")
        (refusal,) = await page.run("refusals")
        assert "here__get-time" in refusal
        assert "there__get-time" in refusal


TOKEN = "mcpmux_0123456789abcdefghijklmnopqrstuvwxyz"
VIEW = {"include": [{"upstream": "here"}]}
ISSUER = "https://login.example.com"


@pytest.fixture(scope="module")
def guarded(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Serve the same page, and an mcpmux with a view that asks for tokens."""
    directory, port = tmp_path_factory.mktemp("guarded"), free_port()
    keys = directory / "keys.json"
    keys.write_bytes(public(RSA))
    auth = {
        "tokens": {"page": {"sha256": hash_token(TOKEN)}},
        "issuers": {"login": {"issuer": ISSUER, "jwks_file": str(keys)}},
        "resource": f"http://127.0.0.1:{port}/mcp",
    }
    upstreams = {"here": server("mcp-server-basic-vanillajs")}
    config = write_config(directory, upstreams, auth=auth, views={"mine": VIEW})
    with HttpMux(config, port=port) as mux:
        yield host._replace(mux=mux.url)


async def test_a_page_learns_of_each_url_where_its_tokens_are(guarded: Host) -> None:
    async with opened(guarded) as page:
        for url in (guarded.mux, f"{guarded.mux}/mine", guarded.mux.replace("/mcp", "/sse")):
            resource, status, challenge, code = await page.run(f"discover('{url}')")
            assert (resource, status, code) == (url, 401, -32600)
            metadata = url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp").replace(
                "/sse", "/.well-known/oauth-protected-resource/sse"
            )
            assert f'resource_metadata="{metadata}"' in challenge


@pytest.mark.parametrize("mode", ["auto", "legacy", "sse"])
async def test_a_page_with_a_token_connects_in_every_way(guarded: Host, mode: str) -> None:
    url = f"{guarded.mux.replace('/mcp', '/sse') if mode == 'sse' else guarded.mux}/mine"
    async with opened(guarded) as page:
        seen = await page.run(f"connect('{url}', '{mode}', {{Authorization: 'Bearer {TOKEN}'}})")
        assert list(seen["links"]) == ["here__get-time"]
        assert seen["revision"] == ("2026-07-28" if mode == "auto" else "2025-11-25")
