"""More of the inspector in a real Chromium: who listens, and what happened when, payloads."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import trio

from tests.browser.browser import Browser, Page
from tests.browser.test_inspector_page import ROWS, open_part, opened, settle
from tests.peers.subscribable import Subscribable
from tests.traffic.admin_world import Json, Traffic
from tests.traffic.test_admin_subscriptions import UPDATED, WAIT_SECONDS, listen

SUBSCRIPTION_ROWS = "[...document.querySelectorAll('#view-subscriptions tbody tr')].map(row => row.innerText)"


async def test_subscriptions_lead_to_the_exchanges_of_their_clients(browser: Browser):
    docs = Subscribable("2025-11-25")
    async with opened(browser, servers={"docs": docs}, tap=True) as (page, here):
        await page.key("6")
        await page.wait(
            "document.getElementById('view-subscriptions').innerText.includes('No client listens')"
        )
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
        legend = "[...document.querySelectorAll('.zoom .legend')].map(each => each.textContent).join()"
        assert await page.run(legend) == "exchange,at upstreams,failed,open"

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


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="  # PNG
)
SILENCE = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"
    b"\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data\x02\x00\x00\x00\x80\x80"
).decode()
NOTES = """# Results

Found **two** in `a.md`, see [the site](https://example.com/a) and [bad](javascript:window.hurt=1).
![pixel](https://example.com/pixel.png)

- one
  - inside

1. first

| name | size |
| --- | --- |
| a | 1 |

> quoted

```
<b>code</b>
```
"""


async def show(page: Page, traffic: Traffic, *content: Json) -> None:
    """Open an exchange with that content, and all of its payloads."""
    traffic.exchange(answer={"result": {"content": content}})
    row = f"document.getElementById('row-{traffic.ring.last}')"
    await page.wait(f"{row} !== null")
    await page.run(f"{row}.click()")
    await page.wait(
        f"document.querySelector('#detail .facts')?.innerText.includes('Exchange\\n{traffic.ring.last}')"
    )
    await open_part(page, "answer")
    await page.run("document.querySelectorAll('.payload').forEach(each => each.open = true)")
    await settle(page)


def resource(mime: str, text: str) -> Json:
    return {"type": "resource", "resource": {"uri": "docs+a:1", "mimeType": mime, "text": text}}


def of_payload(expression: str) -> str:
    return f"(payload => {expression})(document.querySelector('.payload'))"


async def frames_of(page: Page, number: int) -> list[str]:
    """Wait for `number` frames with pages of payloads, and return their targets."""
    with trio.fail_after(WAIT_SECONDS):
        while True:
            targets = (await page.send("Target.getTargets"))["targetInfos"]
            frames = [target["targetId"] for target in targets if target["url"].startswith("data:text/html")]
            if len(frames) >= number:
                return frames


async def text_of(page: Page, frame: str) -> str:
    """Return the text of a frame once it is complete. No script runs in the frame."""
    attached = await page.send("Target.attachToTarget", targetId=frame, flatten=True)
    outer, page.session = page.session, {"sessionId": attached["sessionId"]}
    with trio.fail_after(WAIT_SECONDS):
        while True:
            # The whole tree at once: the numbers of nodes may be of a document that is gone.
            tree = json.dumps(await page.send("DOM.getDocument", depth=-1))
            if '["id", "end"]' in tree:
                page.session = outer
                return tree


async def test_payloads_are_shown_as_what_they_are(browser: Browser):
    async with opened(browser) as (page, here):
        shown = partial(show, page, here.traffic)
        await shown({"type": "image", "data": PIXEL, "mimeType": "image/png"})
        await page.wait(of_payload("payload.querySelector('img').naturalWidth === 1"))
        await shown({"type": "audio", "data": SILENCE, "mimeType": "audio/wav"})
        await page.wait(of_payload("payload.querySelector('audio').readyState > 0"))
        await shown({"type": "text", "text": '{"large": 12345678901234567890}'})
        assert "large: 12345678901234567890" in await page.run(of_payload("payload.textContent"))
        await shown({"type": "text", "text": "only words"})
        assert await page.run("document.querySelector('.payload')") is None
        blob = base64.b64encode(NOTES.encode()).decode()
        for content in (
            {"type": "text", "text": NOTES},
            resource("text/markdown; charset=utf-8", NOTES),
            {"type": "resource", "resource": {"uri": "a:1", "mimeType": "text/markdown", "blob": blob}},
        ):
            await shown(content)
            tags = "[...payload.querySelectorAll('.markdown *')].map(each => each.localName).join(' ')"
            assert await page.run(of_payload(tags)) == (
                "h4 p strong code a ul li li ol li table thead tr th th tbody tr td td blockquote div p pre"
            )
            assert await page.run(of_payload("payload.querySelector('a').href")) == "https://example.com/a"
            text = await page.run(of_payload("payload.textContent"))
            for words in ("bad (javascript:window.hurt=1)", "image: pixel (https://", "<b>code</b>"):
                assert words in text
        assert page.problems == []
        page.requests[:] = [url for url in page.requests if not url.startswith("data:")]


async def test_a_hostile_payload_runs_nothing_and_loads_nothing(browser: Browser):
    async with open_elsewhere() as (elsewhere, visitors), opened(browser) as (page, here):
        hurt = "parent.hurt=1;top.hurt=1;window.hurt=1"
        drawing = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="{hurt}">'
            f'<script>{hurt}</script><image href="{elsewhere}/image"/>'
            f'<foreignObject><iframe src="{elsewhere}/in"/></foreignObject></svg>'
        )
        hostile = (
            f"<!doctype html><meta http-equiv=refresh content='0;url={elsewhere}/refresh'>"
            f"<link rel=preconnect href={elsewhere}><base href={elsewhere}/base/>"
            f"<link rel=stylesheet href={elsewhere}/style><script src={elsewhere}/script></script>"
            f"<script>{hurt}</script><img src={elsewhere}/image onerror='{hurt}'><svg onload='{hurt}'></svg>"
            f"<iframe src={elsewhere}/frame></iframe><video src={elsewhere}/video autoplay></video>"
            f"<form action={elsewhere}/form><button autofocus>x</button></form><p id=end>The end</p>"
            f"<a href='{elsewhere}/link' target=_top>x</a>"
        )
        shown = partial(show, page, here.traffic)
        await shown(resource("image/svg+xml", drawing))
        await page.wait(of_payload("payload.querySelector('img').naturalWidth === 9"))
        encoded = base64.b64encode(drawing.encode()).decode()
        await shown({"type": "image", "data": encoded, "mimeType": "image/svg+xml"})
        await page.wait(of_payload("payload.querySelector('img').naturalWidth === 9"))
        await shown({"type": "image", "data": '" onerror="window.hurt=1', "mimeType": "image/png"})
        await shown(resource("text/markdown", f"{hostile}\n\n# {hostile}\n\n[x](javascript:{hurt})"))
        await page.wait("document.querySelector('.markdown') !== null")
        dangerous = "document.querySelectorAll('.markdown :is(script, img, iframe, svg, a)').length"
        assert await page.run(dangerous) == 0
        await shown(resource("text/html", hostile))
        await page.wait(
            of_payload("payload.querySelector('iframe')?.getAttribute('sandbox') === ''")
        )  # a sandbox without permissions
        for frame in await frames_of(page, 1):  # without the frame that it has
            assert "The end" in await text_of(page, frame)
        await settle(page)
        assert await page.run("window.hurt === undefined")
        assert await page.run("location.pathname") == "/"
        async with await trio.open_tcp_stream("127.0.0.1", urlsplit(elsewhere).port or 0):
            with trio.fail_after(WAIT_SECONDS):
                while not visitors:
                    await trio.lowlevel.checkpoint()
        assert len(visitors) == 1  # us
        page.problems.clear()  # the browser says there what it has refused
        page.requests[:] = [url for url in page.requests if not url.startswith(("data:", elsewhere))]


@asynccontextmanager
async def open_elsewhere() -> AsyncIterator[tuple[str, list[trio.SocketStream]]]:
    """Open a server elsewhere. Yields its URL and its visitors."""
    visitors: list[trio.SocketStream] = []

    async def take(stream: trio.SocketStream) -> None:
        visitors.append(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, take, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}", visitors
        nursery.cancel_scope.cancel()


async def test_scrolling_past_a_hundred_thousand_exchanges_asks_a_few_questions_at_once(browser: Browser):
    traffic = Traffic(size=2**30)
    traffic.quick(100_000)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} > 10")
        await page.run(
            "(ask => { window.now = window.most = 0;"
            " window.fetch = (...of) => {"
            " most = Math.max(most, ++now); return ask(...of).finally(() => now--); }"
            "})(window.fetch)"
        )
        await page.run(
            "new Promise(done => { const list = document.getElementById('list'); let frames = 200;"
            " const step = () => { list.scrollTop += list.scrollHeight / 200;"
            " --frames ? requestAnimationFrame(step) : done() }; step() })"
        )
        await page.wait(
            "document.getElementById('row-1')?.dataset.status === 'ok'"
        )  # what is in sight is there
        assert 0 < await page.run("window.most") <= 4
        assert await page.run("document.querySelectorAll('*').length") < 1500
