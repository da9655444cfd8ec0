"""Every page of the inspector with something on it, for checks of all of them and for pictures.

`python -m tests.browser.inspector_tour` makes the pictures of the READMEs, with `pngquant`.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mcpmux.cluster.letter import ReplicaState
from tests.browser.browser import Browser, Page
from tests.browser.test_inspector_page import ROWS, TOOL, VIEWS, open_part, opened, row_with, settle
from tests.peers.subscribable import Subscribable
from tests.real.parts import ROOT, program
from tests.traffic.admin_world import Json, Traffic
from tests.traffic.test_admin_subscriptions import listen

FOLDER = ROOT / "mcpmux" / "traffic" / "inspector"
REPORT = """# Quarterly report

Sales grew by **12 %**; see the table.

| quarter | sales |
| --- | --- |
| first | 1,200 |
| second | 1,344 |
"""


SEARCHED = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "default": 5},
    },
    "required": ["query"],
}


async def report(*_: object) -> Json:
    return {"content": [{"type": "text", "text": REPORT}]}


class Two:
    """Replicas of a cluster; see `Replicas`."""

    def describe(self) -> ReplicaState:
        return ReplicaState(
            name="alpha",
            id="alpha-1",
            url="http://10.0.0.1:7946",
            version="1.0",
            state="inside",
            since=time.time() - 3600,
            others=1,
            owned=2,
            sessions=3,
            handed_in=12,
            commands=740,
            lag_ms=0.4,
            lease_seconds=9.2,
        )

    async def describe_all(self) -> list[ReplicaState]:
        here = self.describe()
        silent = ReplicaState(
            name="beta",
            id="beta-1",
            url="http://10.0.0.2:7946",
            version="",
            state="silent",
            trouble="no answer",
        )
        return [here, silent]


def busy() -> Traffic:
    """Make half a minute of traffic of several clients; the last exchange is one with a report."""
    traffic, chance = Traffic(ago=30), random.Random(7)
    clients = []
    for name, transport in (("claude-code", "stdio"), ("cursor", "http"), ("support-bot", "http")):
        leg = traffic.recorder.client(transport)
        leg.name, leg.revision = name, "2025-11-25" if transport == "stdio" else "2026-07-28"
        clients.append(leg)
    refused = {"error": {"code": -32602, "message": "Unknown document"}}
    for number in range(160):
        traffic.client = chance.choice(clients)
        upstream, method = chance.choice((("docs", "resources/read"), ("search", "tools/call")))
        path = chance.choice(("plan", "budget", "notes"))
        target = {"uri": f"{upstream}+file:///{path}.md"} if method == "resources/read" else None
        failed = {"answer": refused} if number % 19 == 5 else {}
        view = "coding" if traffic.client.name == "cursor" else ""
        traffic.exchange(method, target, upstream, ms=chance.expovariate(1 / 200), view=view, **failed)
        traffic.now += chance.choice((-0.1, -0.03, 0.06, 1.0 if number % 23 == 0 else 0))
    content = [{"type": "text", "text": REPORT}, {"type": "text", "text": '{"rows": 2, "complete": true}'}]
    arguments = {"query": "quarterly report", "limit": 5}
    params = {"name": "docs__search", "arguments": arguments}
    traffic.exchange("tools/call", params, answer={"result": {"content": content}}, view="coding")
    return traffic


@asynccontextmanager
async def open_tour(browser: Browser) -> AsyncIterator[Page]:
    """Open the inspector of one replica of a cluster, with views, clients that listen, and traffic."""
    docs = Subscribable("2025-11-25", uris=["file:///plan.md", "file:///budget.md"])
    docs.lists["tools/list"] = ("tools", [TOOL | {"inputSchema": SEARCHED}])
    docs.handlers["tools/call"] = report
    servers = {"docs": docs, "search": None}
    async with opened(browser, busy(), servers=servers, tap=True, views=VIEWS, replicas=Two()) as (
        page,
        here,
    ):
        client = await listen(
            here, "docs+file:///plan.md", "docs+file:///budget.md", resourcesListChanged=True
        )
        await listen(here, "docs+file:///plan.md")
        await docs.update("file:///plan.md")
        await client.receive_method("notifications/resources/updated")
        await page.wait(f"{ROWS} > 10 && document.getElementById('tab-replicas')")
        yield page


async def visit(page: Page) -> AsyncIterator[str]:
    """Show one page after the other: their names. The one of exchanges is shown three times."""
    tabs = await page.run("[...document.querySelectorAll('.top [role=tab]')].map(tab => tab.id)")
    for tab in tabs:
        name = tab.removeprefix("tab-")
        view = f"document.getElementById('view-{name}')"
        await page.run(f"document.getElementById('{tab}').click()")
        await page.wait(f"!{view}.hidden && {view}.innerText.trim()")
        await page.wait(f"![...{view}.querySelectorAll('dd')].some(each => each.innerText === '…')")
        if name == "latency":
            await page.wait(f"{view}.querySelector('.groups')")
        if name == "upstreams":
            await page.wait(f"{view}.querySelector('.hosts button')")
            await page.run(f"{view}.querySelectorAll('.hosts button')[2].click()")
        await page.run(f"{view}.querySelectorAll('details:not(.payload)').forEach(each => each.open = true)")
        if name == "client":
            await page.wait(f"{view}.querySelector('.item')")
            await page.run(f"{view}.querySelector('.item').click()")
            await page.run(f"{view}.querySelector('.field textarea').value = 'quarterly report'")
            await page.run(f"{view}.querySelector('form').requestSubmit()")
            await page.wait(f"{view}.querySelector('.answer')")
            await page.run(f"{view}.querySelectorAll('.payload').forEach(each => each.open = true)")
        await settle(page)
        yield name
        if name == "exchanges":
            await page.run("document.getElementById('timeline').click()")
            await page.wait("document.querySelector('.zoom .hint').textContent")
            await settle(page)
            yield "timeline"
            await page.run("document.getElementById('timeline').click()")
            await page.run(f"{row_with('#161')}.click()")
            for part in ("request", "timing", "legs"):
                await open_part(page, part)
                await settle(page)
                yield f"exchange-{part}"
            await page.run("document.querySelectorAll('.step')[3].click()")
            await page.run("document.querySelectorAll('.payload').forEach(each => each.open = true)")
            await page.run("document.querySelector('.menu').open = true")
            await settle(page)
            yield "exchange-menu"
            await page.run("document.querySelector('.menu').open = false")
            await settle(page)
            yield "exchange"
            await page.run("document.querySelector('.close').click()")


SIZES = {"": (1360, 850), "-narrow": (420, 850)}
"""What is in the name of a picture -> the size of its window."""
IN_BOTH = {("exchange", ""), ("upstreams", "-narrow"), ("exchanges", "-narrow"), ("exchange", "-narrow")}
"""The pictures that the READMEs show in both colour schemes."""


async def make_pictures(browser: Browser) -> None:
    for old in FOLDER.glob("screenshot-*.png"):
        old.unlink()
    async with open_tour(browser) as page:
        for kind, size in SIZES.items():
            await page.resize(*size)
            for scheme, ending in (("light", ""), ("dark", "-dark")):
                await page.prefer(scheme)
                async for name in visit(page):
                    is_shown = (name, kind) in IN_BOTH or (scheme == "light" and not kind)
                    if not is_shown or name.startswith("exchange-") or name == "held":  # none is held here
                        continue
                    if name == "latency":  # in the time that has traffic
                        choose = "(of => { of.value = 60; of.dispatchEvent(new Event('change')) })"
                        await page.run(f"{choose}(document.getElementById('window'))")
                        await page.wait("document.querySelectorAll('.chart .fine').length > 20")
                    path = FOLDER / f"screenshot-{name}{kind}{ending}.png"
                    await page.picture(path)
                    await trio.run_process([program("pngquant"), "--force", "--ext", ".png", "64", str(path)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        running = Browser(Path(directory))
        try:
            trio.run(make_pictures, running)
        finally:
            running.stop()
