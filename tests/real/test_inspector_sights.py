"""More of the inspector in a real Chromium: who listens."""

from __future__ import annotations

import pytest

from tests.real.browser import Browser
from tests.real.test_inspector_page import ROWS, opened, settle
from tests.runtime.subscribable import Subscribable
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
