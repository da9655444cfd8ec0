"""More of the inspector in a real Chromium: who listens, and what happened when."""

from __future__ import annotations

import pytest

from tests.real.browser import Browser, Page
from tests.real.test_inspector_page import ROWS, opened, settle
from tests.runtime.subscribable import Subscribable
from tests.traffic.admin_world import Traffic
from tests.traffic.test_admin_subscriptions import UPDATED, listen

pytestmark = pytest.mark.real

SUBSCRIPTION_ROWS = "[...document.querySelectorAll('#view-subscriptions tbody tr')].map(row => row.innerText)"


async def test_subscriptions_lead_to_the_exchanges_of_their_clients(browser: Browser):
    docs = Subscribable("2025-11-25")
    async with opened(browser, servers={"docs": docs}, tap=True) as (page, here):
        await page.key("5")
        await page.wait("document.getElementById('view-subscriptions').innerText.includes('Nobody listens')")
        client = await listen(here, "docs+memo:1", toolsListChanged=True)
        await page.wait(f"{SUBSCRIPTION_ROWS}.length === 2")
        assert [row.split("\t")[0] for row in await page.run(SUBSCRIPTION_ROWS)] == [
            "List of tools",
            "docs+memo:1",
        ]
        await docs.update("memo:1")
        await client.receive_method(UPDATED)
        await page.run("document.querySelectorAll('#view-subscriptions summary')[1].click()")
        await page.wait(f"{SUBSCRIPTION_ROWS}[1].split('\\t')[3] === '1'")
        assert "2026-07-28" in (await page.run(SUBSCRIPTION_ROWS))[1]  # what is open stays open
        await page.run("document.querySelector('#view-subscriptions details[open] li button').click()")
        await page.wait(f"!document.getElementById('view-exchanges').hidden && {ROWS} === 1")
        await settle(page)
        assert "subscriptions/listen" in await page.run("document.getElementById('list').textContent")


HINT = "document.querySelector('.zoom .hint').textContent"
BAR_Y = 43  # of the first lane: below the times and the name of the client


async def drag(page: Page, begin: float, end: float) -> None:
    """Drag over the timeline between two parts of its width; a click if they are the same."""
    await settle(page)  # its width may be about to change
    box = await page.run(
        "(({x, y, width}) => [x, y, width])(document.querySelector('.lanes canvas').getBoundingClientRect())"
    )
    events = (("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end))
    for kind, part in events:
        place = {"x": box[0] + part * box[2], "y": box[1] + BAR_Y}
        await page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    await settle(page)


async def test_a_timeline_shows_many_exchanges_and_a_span_of_it(browser: Browser):
    traffic = Traffic()
    for _ in range(10):  # 100 ms, then a pause of 900
        traffic.exchange(ms=100)
        traffic.now += 0.9
    other = traffic.recorder.client("stdio")
    other.name = "another"
    async with opened(browser, traffic) as (page, _):
        await page.key("t")
        await page.wait(f"{HINT}.startsWith('10 exchanges of 1 client')")
        traffic.message_passed(other, "in", {"id": 1, "method": "ping"})
        await page.wait(f"{HINT}.startsWith('11 exchanges of 2 clients')")
        label = await page.run("document.querySelector('.lanes canvas').getAttribute('aria-label')")
        assert label == "Timeline of 11 exchanges of 2 clients; the list below has them, too"

        await drag(page, 0.005, 0.005)  # the oldest exchange takes the first hundredth
        await page.wait("document.querySelector('#detail .tree')")
        assert await page.run("document.querySelector('.row[aria-selected=true]').dataset.row") == "1"
        await page.key("Escape")

        await drag(page, 0.0, 0.25)
        assert (await page.run(HINT)).startswith("3 exchanges of 1 client, 2.50 s")
        await drag(page, 0.2, 0.2)  # between two
        assert await page.run("document.getElementById('detail').hidden")
        for button, there in ("Zoom out", 4), ("Show all of the time", 11), ("Zoom in", 5):
            await page.run(f"document.querySelector('[aria-label=\"{button}\"]').click()")
            await settle(page)
            assert (await page.run(HINT)).startswith(f"{there} exchanges")
        await page.run("document.querySelector('.lanes').focus()")
        for key, there in ("ArrowLeft", 5), ("0", 11):
            await page.key(key)
            await settle(page)
            assert (await page.run(HINT)).startswith(f"{there} exchanges")

        await page.run("document.getElementById('filter').focus()")
        await page.type("method=ping")
        await page.wait(f"{HINT}.startsWith('1 exchange of 1 client')")


async def test_a_timeline_has_a_bounded_part_of_many_exchanges(browser: Browser):
    traffic = Traffic(size=2**30)
    traffic.quick(5000)
    async with opened(browser, traffic) as (page, _):
        await page.key("t")
        await page.wait(f"{HINT}.startsWith('2,000 exchanges') && {HINT}.endsWith('newest 2,000')")
        assert len([url for url in page.requests if "/api/exchanges?" in url]) < 15
        await page.run("document.getElementById('list').scrollTop = 1e9")
        await page.wait("document.getElementById('row-1')?.dataset.status === 'ok'")
        await settle(page)
        assert (await page.run(HINT)).startswith("2,000 exchanges")
