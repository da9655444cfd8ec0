"""Held exchanges in a real browser: a person edits, lets go, refuses and answers them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.browser.browser import Browser, Page
from tests.browser.test_inspector_access import ALL, OPEN_PAGE, WIDE, check
from tests.browser.test_inspector_page import opened
from tests.peers.client import ScriptedClient
from tests.real.parts import npm_env
from tests.runtime.test_interception import DELETE, REFUSED, calls_at, disk
from tests.traffic.admin_world import Listening

TYPE = (
    "(element, text) => { element.value = text; element.dispatchEvent(new Event('input', {bubbles: true})) }"
)


@asynccontextmanager
async def open_held(browser: Browser) -> AsyncIterator[tuple[Listening, Page, ScriptedClient, Any]]:
    """Yield the page on which held exchanges are, with an order to hold tool calls that was typed there."""
    server = disk()
    async with opened(browser, servers={"x": server}) as (page, here):
        await page.run("document.getElementById('tab-held').click()")
        await page.wait("document.querySelector('#view-held [name=filter]')")
        await page.run("document.querySelector('#view-held [name=filter]').focus()")
        await page.type("method=tools/call")
        await page.key("Enter")
        await page.wait("!document.querySelector('#view-held .bar .button[type=button]').hidden")
        yield here, page, here.world.client(), server


async def hold(page: Page, client: ScriptedClient, key: str) -> int:
    """Call a tool; return the id of the request once the page shows that it is held."""
    request_id = await client.start("tools/call", DELETE)
    await page.wait(f"document.getElementById('held-{key}')")
    return request_id


async def press(page: Page, key: str, words: str) -> None:
    """Click the button of a held exchange."""
    buttons = f"[...document.querySelectorAll('#held-{key} button')]"
    await page.run(f"{buttons}.find(button => button.textContent.trim() === '{words}').click()")


async def test_a_held_call_is_edited_in_its_form_and_let_go(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, server):
        request_id = await hold(page, client, "1")
        assert await page.run("document.querySelector('#held-1 label').textContent.includes('path')")
        await page.run(f"({TYPE})(document.querySelector('#held-1 textarea'), '/edited')")
        await trio.sleep(2.5)  # the page is loaded anew meanwhile, and keeps what was typed
        await press(page, "1", "Let it go")
        assert "result" in await client.answer(request_id)
        assert calls_at(server)[-1]["arguments"] == {"path": "/edited"}
        await page.wait("!document.getElementById('held-1')")


async def test_an_edit_stays_when_shown_as_json_and_as_a_form(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, server):
        request_id = await hold(page, client, "1")
        await page.run(f"({TYPE})(document.querySelector('#held-1 textarea'), '/edited')")
        await press(page, "1", "As JSON")
        await page.wait("document.querySelector('#held-1 textarea.json')?.value.includes('/edited')")
        await press(page, "1", "Answer it …")
        await page.wait("document.querySelector('#held-1 textarea').value.includes('content')")
        await press(page, "1", "No answer")
        await page.wait("document.querySelector('#held-1 textarea.json')?.value.includes('/edited')")
        await press(page, "1", "As a form")
        await page.wait("document.querySelector('#held-1 textarea:not(.json)')?.value === '/edited'")
        await press(page, "1", "Let it go")
        assert "result" in await client.answer(request_id)
        assert calls_at(server)[-1]["arguments"] == {"path": "/edited"}


async def test_what_no_form_can_hold_is_let_go_unchanged(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, server):
        request_id = await client.start("tools/call", {**DELETE, "arguments": {"path": 5}})
        await page.wait("document.querySelector('#held-1 textarea.json')")
        await press(page, "1", "Let it go")
        assert "result" in await client.answer(request_id)
        assert calls_at(server)[-1]["arguments"] == {"path": 5}


async def test_a_bad_edit_is_explained_and_the_call_stays_held(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, server):
        request_id = await hold(page, client, "1")
        await press(page, "1", "As JSON")
        await page.wait("document.querySelector('#held-1 textarea.json')")
        changed = '{"name": "x__look", "arguments": {"path": "/"}}'
        await page.run(f"({TYPE})(document.querySelector('#held-1 textarea'), '{changed}')")
        await press(page, "1", "Let it go")
        await page.wait("document.querySelector('#held-1 p.wrong').textContent.includes('it changes `name`')")
        assert not calls_at(server)
        page.problems.clear()  # the browser logs each status 422
        await page.run("document.querySelector('#held-1 form input').value = 'not there'")
        await press(page, "1", "Refuse")
        error = (await client.answer(request_id))["error"]
        assert error["code"] == REFUSED and error["message"].endswith("not there")


async def test_a_call_is_answered_in_the_place_of_its_server(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, server):
        request_id = await hold(page, client, "1")
        await press(page, "1", "Answer it …")
        await page.wait("document.querySelector('#held-1 textarea').value.includes('content')")
        text = '{"content": [{"type": "text", "text": "made up"}]}'
        await page.run(f"({TYPE})(document.querySelector('#held-1 textarea'), '{text}')")
        await press(page, "1", "Answer")
        assert (await client.answer(request_id))["result"]["content"][0]["text"] == "made up"
        assert not calls_at(server)


async def test_keys_decide_about_the_held_call_in_focus(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, server):
        request_id = await hold(page, client, "1")
        await page.run("document.getElementById('held-1').focus()")
        await page.key("a")
        assert "result" in await client.answer(request_id)
        assert calls_at(server)[-1]["arguments"] == DELETE["arguments"]
        request_id = await hold(page, client, "2")
        await page.run("document.getElementById('held-2').focus()")
        await page.key("r")
        await page.type("no")
        await page.key("Enter")
        assert (await client.answer(request_id))["error"]["message"].endswith(": no")
        await page.wait("document.querySelector('#view-held').textContent.includes('No exchange is held.')")


async def test_the_page_of_held_exchanges_is_accessible(browser: Browser) -> None:
    async with open_held(browser) as (_, page, client, _server):
        await hold(page, client, "1")
        await page.run(f"{(npm_env('axe') / 'axe-core' / 'axe.min.js').read_text()}; 0")
        for scheme, width in (("light", 360), ("light", 1280), ("dark", 1280)):
            await page.prefer(scheme)
            await page.resize(width, 900)
            assert await page.run(check(ALL)) == []
            assert not await page.run(f"{WIDE} || {OPEN_PAGE}.scrollWidth > {OPEN_PAGE}.clientWidth")
