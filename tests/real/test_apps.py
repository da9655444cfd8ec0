"""MCP Apps of real servers behind one mcpmux, shown by the official SDK for hosts in a real Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.real.browser import Browser, Page, open_page
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env, program
from tests.real.web_server import run_web_server

pytestmark = pytest.mark.real

HOST = Path(__file__).with_name("apps_host.mjs")
ERAS = [pytest.param("auto", "2026-07-28"), pytest.param("legacy", "2025-11-25")]
UI = {"mimeType": "text/html;profile=mcp-app"}


def server(name: str) -> Json:
    return stdio([str(npm_env("apps") / ".bin" / name), "--stdio"])


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """A browser, and the URL of a host app whose only server is mcpmux. Two of three upstreams are alike."""
    directory = tmp_path_factory.mktemp("apps")
    clock, budget = server("mcp-server-basic-vanillajs"), server("mcp-budget-allocator-server")
    config = write_config(directory, {"here": clock, "there": clock, "budget": budget})
    with HttpMux(config) as mux:
        command = [program("node"), str(HOST), str(npm_env("apps")), str(urlsplit(mux.url).port)]
        with run_web_server(command, "http://", {}) as url:
            browser = Browser(directory)
            yield browser, url.strip()
            browser.stop()


@asynccontextmanager
async def connected(host: tuple[Browser, str], path: str, mode: str) -> AsyncIterator[tuple[Page, Json]]:
    """The page of the host app, which has connected to a path of mcpmux: what it has seen."""
    browser, url = host
    async with open_page(browser) as page:
        await page.open(url)
        await page.wait("window.show")
        yield page, await page.run(f"connect('{path}', '{mode}')")
        assert page.problems == []


def inside(tool: str) -> str:
    """JavaScript for the document of the app that is shown for a tool."""
    return f"document.getElementById('{tool}').contentDocument"


@pytest.mark.parametrize(("mode", "revision"), ERAS)
async def test_apps_of_servers_with_the_same_names_are_shown_with_their_results(
    host: tuple[Browser, str], mode: str, revision: str
) -> None:
    links = {
        "here__get-time": "ui://here/get-time/mcp-app.html",
        "there__get-time": "ui://there/get-time/mcp-app.html",
        "budget__get-budget-data": "ui://budget/budget-allocator/mcp-app.html",
    }
    async with connected(host, "/mcp", mode) as (page, seen):
        assert seen == {"revision": revision, "links": links}
        for tool, uri in links.items():
            assert await page.run(f"show('{tool}')") == {"uri": uri, **UI}
        for tool in ("here__get-time", "there__get-time"):
            await page.wait(f"/^20.*Z$/.test({inside(tool)}.getElementById('server-time').textContent)")
        budget = f"{inside('budget__get-budget-data')}.getElementById('sliders-container')"
        await page.wait(f"{budget}.textContent.includes('Marketing')")


@pytest.mark.parametrize(("mode", "revision"), ERAS)
async def test_an_app_calls_its_servers_tool_by_its_own_name(
    host: tuple[Browser, str], mode: str, revision: str
) -> None:
    time = f"{inside('there__get-time')}.getElementById('server-time').textContent"
    press = f"{inside('there__get-time')}.getElementById('get-time-btn').click()"
    async with connected(host, "/mcp?upstreams=there,budget", mode) as (page, seen):
        assert (seen["revision"], len(seen["links"])) == (revision, 2)
        await page.run("show('there__get-time')")
        await page.wait(f"{time}.endsWith('Z')")
        before = await page.run(time)
        await page.run(press)
        await page.wait(f"{time}.endsWith('Z') && {time} > '{before}'")
    async with connected(host, "/mcp", mode) as (page, _):  # where another server has such a tool
        await page.run("show('there__get-time')")
        await page.wait(f"{time}.endsWith('Z')")
        await page.run(press)
        await page.wait(f"{time} === '[ERROR]'")
        (refusal,) = await page.run("refusals")
        assert "here__get-time" in refusal
        assert "there__get-time" in refusal
