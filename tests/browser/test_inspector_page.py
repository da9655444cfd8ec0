"""The inspector in a real Chromium: what a person sees of the traffic, and what hostile text cannot do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcpmux.channels.tap import EXCHANGE
from mcpmux.config.views import Selector, View, ViewOverride
from tests.browser.browser import Browser, Page, open_page
from tests.cluster.replicas import move, open_replicas
from tests.peers.server import CACHE, ScriptedServer
from tests.traffic.admin_world import Listening, Traffic, listening

ROWS = "document.querySelectorAll('.row').length"
TEXTS = "[...document.querySelectorAll('.row')].map(row => row.textContent)"
MOST_ROWS = 80  # elements; a window shows some thirty rows
HOSTILE = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>"\'><svg onload=window.hurt=1>'


@asynccontextmanager
async def opened(
    browser: Browser, traffic: Traffic | None = None, **settings: object
) -> AsyncIterator[tuple[Page, Listening]]:
    """Open the inspector's page. At the end check that it had no errors and sent no requests elsewhere."""
    async with (
        listening(traffic, **settings) as here,  # type: ignore[arg-type]
        open_page(browser) as page,
    ):
        await page.resize(1280, 800)
        await page.open(here.announced)
        await page.wait("document.getElementById('link')?.dataset.state === 'live'")
        await page.key("2")
        yield page, here
        elsewhere = [url for url in page.requests if not url.startswith((f"{here.url}/", "data:"))]
        assert elsewhere == []
        assert page.problems == []


def many(number: int) -> Traffic:
    """Return the traffic of so many exchanges."""
    traffic = Traffic(size=2**30)
    for _ in range(number):
        traffic.exchange()
    return traffic


def row_with(text: str) -> str:
    """Return JavaScript for the row that shows a text."""
    return f"[...document.querySelectorAll('.row')].find(row => row.textContent.includes({json.dumps(text)}))"


async def open_part(page: Page, name: str) -> None:
    """Show `request`, `answer`, `legs` or `timing` of the exchange that is open."""
    tab = f"document.getElementById('tab-detail-{name}')"
    await page.wait(tab)
    await page.run(f"{tab}.click()")
    await page.wait(f"document.getElementById('view-detail-{name}')")


async def settle(page: Page) -> None:
    """Wait for two frames, by when all pending changes are drawn."""
    await page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


async def test_rows_appear_as_it_happens(browser: Browser):
    async with opened(browser) as (page, here):
        assert await page.run(ROWS) == 0
        assert await page.run("!document.getElementById('empty').hidden")
        assert await page.run("document.querySelector('.columns .in-view').offsetWidth") == 0  # no views
        request, _ = here.traffic.begin("resources/read", {"uri": "docs+file:///a.md"})
        await page.wait(f"{row_with('docs+file:///a.md')}?.dataset.status === 'open'")
        here.traffic.message_passed(
            here.traffic.client, "out", {"id": request, "error": {"code": -32602, "message": "no"}}
        )
        await page.wait(f"{row_with('Error -32602')}")
        here.traffic.exchange()
        await page.wait(f"{ROWS} === 2")
        assert "tools/call" in (await page.run(TEXTS + ".join()"))


async def test_the_number_of_an_exchange_is_shown_whole(browser: Browser):
    async with opened(browser, many(1)) as (page, _):
        await page.wait(f"{ROWS} === 1")
        cell = "document.querySelector('.row .seq')"
        await page.run(f"{cell}.textContent = '#12345'")
        for width in (1360, 700):
            await page.resize(width, 700)
            await settle(page)
            assert await page.run(f"{cell}.offsetWidth > 0 && {cell}.scrollWidth <= {cell}.clientWidth"), (
                width
            )


async def test_what_mcpmux_asks_by_itself_is_shown_when_it_is_asked_for(browser: Browser):
    async with opened(browser) as (page, here):
        docs = here.traffic.upstreams["docs"]
        here.traffic.message_passed(docs, "out", {"id": 1, "method": "server/discover"})
        here.traffic.message_passed(docs, "in", {"id": 1, "result": {}})
        here.traffic.exchange()
        await page.wait(f"{ROWS} === 1")
        assert "tools/call" in (await page.run(TEXTS))[0]
        await page.run("document.getElementById('own').click()")
        await page.wait(f"{row_with('server/discover')} !== undefined")
        assert await page.run(ROWS) == 1
        await page.run(f"{row_with('server/discover')}.click()")
        await page.wait("document.getElementById('detail').textContent.includes('server/discover')")
        here.traffic.message_passed(docs, "out", {"id": 2, "method": "ping"})
        await page.wait(f"{ROWS} === 2")
        await page.run("document.getElementById('own').click()")
        await page.wait(f"{row_with('tools/call')} !== undefined")
        assert await page.run(ROWS) == 1


async def test_the_token_does_not_stay_in_the_address(browser: Browser):
    async with opened(browser) as (page, here):
        assert await page.run("location.href") == f"{here.url}/"
        assert await page.run("document.cookie") == ""


async def test_a_filter_shows_what_fits_and_says_what_is_wrong_with_it(browser: Browser):
    traffic = many(5)
    traffic.exchange("resources/read", {"uri": "search+file:///b.md", "name": ""}, "search")
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 6")
        await page.key("/")
        assert await page.run("document.activeElement.id") == "filter"
        await page.type("upstream=search")
        await page.wait(f"{ROWS} === 1")
        assert await page.run("document.getElementById('count').textContent") == "1 of 6"
        traffic.exchange()
        traffic.exchange(upstream="search")
        await page.wait(f"{ROWS} === 2")  # and the other one is not there
        assert "docs__find" not in await page.run(TEXTS + ".join()")
        top = "document.getElementById('list').getBoundingClientRect().top"
        place = await page.run(top)
        await page.type(" metod=x")
        await page.wait("document.getElementById('filter').getAttribute('aria-invalid') === 'false'")
        await page.key("Enter")
        await page.wait("!document.getElementById('filter-problem').hidden")
        assert await page.run(top) == place
        assert "method" in await page.run("document.getElementById('filter-problem').textContent")
        assert await page.run(ROWS) == 2
        assert ["400" in problem for problem in page.problems] == [True]
        page.problems.clear()
        await page.key("Escape")
        await page.wait(f"{ROWS} === 8")
        assert await page.run("document.getElementById('filter-problem').hidden")


SUGGESTED = "[...document.querySelectorAll('#suggestions:not([hidden]) code')].map(each => each.textContent)"


async def test_a_filter_is_completed_from_keys_names_and_earlier_filters(browser: Browser):
    traffic = many(3)
    traffic.exchange(upstream="search")
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 4")
        await page.key("/")
        assert await page.run(SUGGESTED) == []
        await page.type("ups")
        await page.wait(f"{SUGGESTED}[0] === 'upstream=' && {ROWS} === 0")  # it is searched for meanwhile
        assert await page.run("document.getElementById('filter').getAttribute('aria-expanded')") == "true"
        await page.key("ArrowDown")
        await page.key("Enter")
        await page.wait(f"{SUGGESTED}.join() === 'upstream=search,upstream=docs'")
        await page.run("document.querySelector('#suggestions li').click()")
        await page.wait(f"{ROWS} === 1 && {SUGGESTED}.length === 0")
        assert await page.run("document.getElementById('filter').value") == "upstream=search"
        await page.key("Escape")
        await page.wait(f"{ROWS} === 4")
        await page.type("docs__fi")  # a word alone is searched for
        await page.wait(f"{ROWS} === 3 && {SUGGESTED}[0] === 'uri=docs__find'")
        for _ in range(2):
            await page.key("Escape")
        await page.run("document.getElementById('list').focus()")
        await page.key("/")
        await page.wait(f"{SUGGESTED}.join() === 'upstream=search'")


async def test_rows_show_arguments_and_words_and_are_sorted_and_cleared(browser: Browser):
    traffic = Traffic()
    for ms in (30, 10, 20):
        traffic.exchange(ms=ms)
    refused = {"error": {"code": -32602, "message": "no such document"}}
    traffic.exchange("resources/read", {"uri": "docs+file:///a.md"}, answer=refused, ms=5)
    durations = "[...document.querySelectorAll('.row .duration')].map(each => parseFloat(each.textContent))"
    sort = (
        "[...document.querySelectorAll('.columns button')].find(each => each.innerText.includes('Duration'))"
    )
    async with opened(browser, traffic) as (page, _):
        await page.resize(1600, 800)
        await page.wait(f"{ROWS} === 4")
        texts = await page.run("[...document.querySelectorAll('.row')].map(row => row.innerText)")
        assert "#4" in texts[0] and "no such document" in texts[0]
        assert "#3" in texts[1] and "n: 2" in texts[1]
        bars = "[...document.querySelectorAll('.when .all')].map(each => each.getBoundingClientRect().width)"
        assert (await page.run(bars))[3] > (await page.run(bars))[2]
        for order in ([30, 20, 10, 5], [5, 10, 20, 30], [5, 20, 10, 30]):
            await page.run(f"{sort}.click()")
            await page.wait(f"{durations}.join() === '{','.join(map(str, order))}'")
        await page.run(f"{sort}.click()")
        await page.wait(f"{durations}[0] === 30")
        traffic.exchange(ms=25)
        await page.wait(f"{durations}.join() === '30,25,20,10,5'")
        await page.run("document.getElementById('clear').click()")
        await page.wait(f"{ROWS} === 0")
        traffic.exchange(ms=1)
        await page.wait(f"{ROWS} === 1")
        await page.run("document.querySelector('#cleared button').click()")
        await page.wait(f"{ROWS} === 6")


async def test_a_column_keeps_the_width_that_it_was_given(browser: Browser):
    async with opened(browser, many(1)) as (page, here):
        await page.resize(1600, 800)
        await page.wait(f"{ROWS} === 1")
        grip = "document.querySelector('.columns .status .grip')"
        width = "document.querySelector('.row .status').offsetWidth"
        narrow = await page.run(width)
        box = await page.run(f"(({{right, y}}) => [right - 3, y + 5])({grip}.getBoundingClientRect())")
        for kind, x in (("mousePressed", 0), ("mouseMoved", 50), ("mouseReleased", 50)):
            place = {"x": box[0] + x, "y": box[1]}
            await page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        assert await page.run(width) == narrow + 50
        await page.open(here.url)
        await page.wait(f"{ROWS} === 1")
        assert await page.run(width) == narrow + 50
        await page.run(f"{grip}.dispatchEvent(new MouseEvent('dblclick', {{bubbles: true}}))")
        assert await page.run(width) == narrow


async def test_columns_are_chosen(browser: Browser):
    async with opened(browser, many(1)) as (page, here):
        await page.resize(1600, 800)
        await page.wait(f"{ROWS} === 1")
        choose = "[...document.querySelectorAll('#chosen label')].find(each => each.innerText === ' Client')"
        wide = "document.querySelector('.row .name').offsetWidth"
        seen = "document.querySelector('.row .client').checkVisibility({visibilityProperty: true})"
        narrow = await page.run(wide)
        await page.run("document.getElementById('choose').click()")
        await page.run(f"{choose}.click()")
        assert not await page.run(seen)
        assert await page.run(wide) > narrow
        await page.key("Escape")  # closes only what was opened
        assert not await page.run("document.getElementById('chosen').checkVisibility()")
        await page.open(here.url)
        await page.wait(f"{ROWS} === 1")
        assert not await page.run(seen)
        await page.run("document.getElementById('choose').click()")
        assert not await page.run(f"{choose}.control.checked")
        await page.run(f"{choose}.click()")
        assert await page.run(f"{seen} && {wide} === {narrow}")


HOLD = """(ask => {
  window.held = [];
  window.fetch = (url, options) => new Promise((go) => {
    String(url).includes("filter=text") ? held.push(go) : go();
  }).then(() => ask(url, options));
})(window.fetch)"""
"""Questions for exchanges with a text wait until they are let go."""


async def test_rows_of_an_earlier_filter_cannot_be_opened(browser: Browser):
    traffic = many(5)
    traffic.exchange("resources/read", {"uri": "search+file:///b.md", "name": ""}, "search")
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 6")
        await page.run(HOLD)
        await page.key("/")
        await page.type("text~b.md")
        await page.wait("held.length === 1")
        await page.run("document.querySelector('.row:last-child').click()")
        await page.key("ArrowDown")  # into the list
        await page.key("Enter")
        assert await page.run("getComputedStyle(document.querySelector('.row')).pointerEvents") == "none"
        assert await page.run("document.getElementById('view-exchanges').dataset.detail") != "open"
        await page.run("held.pop()()")
        await page.wait(f"{ROWS} === 1")
        await page.run("document.querySelector('.row').click()")
        await page.wait("document.querySelector('.detail').textContent.includes('search+file:///b.md')")


async def test_the_answer_to_an_earlier_filter_changes_nothing(browser: Browser):
    traffic = many(5)
    traffic.exchange("resources/read", {"uri": "search+file:///b.md", "name": ""}, "search")
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 6")
        await page.run(HOLD)
        await page.key("/")
        await page.type("text~find")
        await page.wait("held.length === 1")
        await page.key("Escape")
        await page.type("upstream=search")
        await page.wait(f"{ROWS} === 1")
        await page.run("held.pop()()")
        await page.run("fetch('/api/control')")  # comes after the answer that was held
        await settle(page)
        assert await page.run(ROWS) == 1
        assert await page.run("document.getElementById('list').ariaBusy") == "false"


async def test_an_exchange_shows_its_timeline_and_what_was_rewritten(browser: Browser):
    traffic = many(1)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 1")
        await page.run("document.querySelector('.row').click()")
        await page.wait("document.querySelectorAll('.body').length === 1")
        assert await page.run("document.querySelector('.title').innerText") == "docs__find\ntools/call\nOK"
        await open_part(page, "legs")
        assert await page.run("document.querySelectorAll('.step').length") == 4
        bodies = await page.run("[...document.querySelectorAll('.body')].map(body => body.textContent)")
        assert 'name: "docs__find"' in bodies[0]
        assert 'name: "find"' in bodies[1]
        marked = await page.run("[...document.querySelectorAll('[data-mark]')].map(leaf => leaf.textContent)")
        assert marked == ["id: 1", 'name: "docs__find"', "id: 1001", 'name: "find"']
        await open_part(page, "timing")
        assert await page.run("document.querySelectorAll('.timeline .bar').length") == 2
        rows = "[...document.querySelectorAll('.spans tbody tr')].map(row => row.innerText)"
        assert [row.split("\t")[:2] for row in await page.run(rows)] == [
            ["c1", "tools/call"],
            ["docs", "tools/call"],
        ]
        await page.run("document.querySelectorAll('.spans button')[1].click()")
        await page.wait("document.querySelector('.step[aria-selected=true]').dataset.step === '1'")
        await page.run("document.querySelectorAll('.step')[2].click()")
        await page.wait("document.querySelector('.body').textContent.includes('docs → mcpmux')")
        assert await page.run("document.querySelectorAll('.body').length") == 2


async def test_a_failed_exchange_opens_at_its_answer(browser: Browser):
    traffic = many(2)
    refused = {"error": {"code": -32602, "message": "no such document"}}
    traffic.exchange("resources/read", {"uri": "docs+file:///a.md"}, answer=refused)
    traffic.begin("tools/call", {"name": "docs__wait"})
    shown = "document.querySelector('#detail [role=tabpanel]')"
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 4")
        for number, part in ((3, "answer"), (2, "request")):
            await page.run(f"document.getElementById('row-{number}').click()")
            await page.wait(f"{shown}?.dataset.row === '{number}'")
            assert await page.run(f"{shown}.id") == f"view-detail-{part}"
            assert ("no such document" in await page.run(f"{shown}.textContent")) is (number == 3)
        await page.run("document.getElementById('tab-detail-request').focus()")
        await page.key("ArrowRight")
        await page.wait("document.activeElement.id === 'tab-detail-answer'")
        await page.run("document.getElementById('row-4').click()")
        await page.wait(f"{shown}.textContent.includes('There is no answer yet')")


async def test_an_exchange_that_goes_on_is_followed_while_it_is_read(browser: Browser):
    traffic = Traffic()
    request, exchange = traffic.begin("tools/call", {"name": "docs__find", "arguments": {"deep": {"a": 1}}})
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 1")
        await page.run("document.querySelector('.row').click()")
        await open_part(page, "legs")
        await page.wait("document.querySelectorAll('.step').length === 1")
        await page.run("document.querySelector('.tree').mine = true")
        token = EXCHANGE.set(exchange)
        for progress in (1, 2):
            params = {"progressToken": 1, "progress": progress}
            traffic.message_passed(
                traffic.client, "out", {"method": "notifications/progress", "params": params}
            )
            await page.wait(f"document.querySelectorAll('.step').length === {progress + 1}")
        traffic.message_passed(traffic.client, "out", {"id": request, "result": {}})
        EXCHANGE.reset(token)
        await page.wait("document.querySelector('.detail .chip').textContent === 'OK'")
        assert await page.run("document.querySelector('.tree').mine")  # what was open stayed open


async def test_numbers_are_shown_as_they_are_written(browser: Browser):
    traffic = Traffic()
    traffic.exchange(params={"name": "docs__find", "arguments": {"large": 12345678901234567890, "half": 0.5}})
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 1")
        await page.run("document.querySelector('.row').click()")
        await page.wait("document.querySelector('.tree')")
        text = await page.run("document.querySelector('.body').textContent")
        assert "12345678901234567890" in text
        assert "half: 0.5" in text


async def test_the_keyboard_is_enough(browser: Browser):
    traffic = many(100)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} > 10")
        selected = "document.querySelector('.row[aria-selected=true]')?.dataset.row"
        active = "document.getElementById('list').getAttribute('aria-activedescendant')"
        await page.key("ArrowDown")
        assert await page.run("document.activeElement.id") == "list"
        await page.key("ArrowDown")
        await page.wait(f"{selected} === '99' && {active} === 'row-99'")
        await page.key("End")
        await page.wait(f"{selected} === '1' && {active} === 'row-1'")
        await page.key("Home")
        await page.wait(f"{selected} === '100'")
        await page.key("Enter")
        await page.wait("document.activeElement.id === 'detail'")
        await open_part(page, "legs")
        await page.run("document.querySelector('.step[tabindex=\"0\"]').focus()")
        await page.key("ArrowDown")
        await page.wait("document.activeElement.dataset.step === '1'")
        assert await page.run("document.activeElement.getAttribute('aria-selected')") == "true"
        await page.key("Escape")
        await page.wait("document.getElementById('detail').hidden && document.activeElement.id === 'list'")
        await page.key("/")
        await page.type("exchange=7")
        await page.wait(f"{ROWS} === 1")
        await page.key("ArrowDown")
        await page.key("Enter")
        await page.wait("!document.getElementById('detail').hidden")
        await page.key("Escape")
        await page.key("4")
        await page.wait("!document.getElementById('view-latency').hidden")
        await page.key("/")
        await page.wait("document.activeElement.id === 'filter'")


async def test_the_keys_are_shown_and_walk_through_exchanges(browser: Browser):
    async with opened(browser, many(3)) as (page, _):
        await page.wait(f"{ROWS} === 3")
        selected = "document.querySelector('.row[aria-selected=true]')?.dataset.row"
        for key in "jjk":
            await page.key(key)
        await page.wait(f"{selected} === '3'")
        await page.key("j")
        await page.key("Enter")
        await page.wait("document.querySelector('#detail [role=tabpanel]')?.dataset.row === '2'")
        await page.key("j")  # while an exchange is read
        await page.wait("document.querySelector('#detail [role=tabpanel]')?.dataset.row === '1'")
        await page.key("?")
        await page.wait("document.querySelector('dialog[open]')")
        assert "next, previous exchange" in await page.run("document.querySelector('dialog').innerText")
        await page.key("4")
        assert await page.run("document.getElementById('view-latency').hidden")
        await page.key("Escape")
        await page.wait("!document.querySelector('dialog[open]')")
        assert not await page.run("document.getElementById('detail').hidden")
        await page.key("Escape")
        await page.wait("document.getElementById('detail').hidden")
        await page.key("/")
        for key in "j?4":
            await page.key(key)
        assert await page.run("document.getElementById('filter').value") == "j?4"
        assert await page.run(selected) == "1"


async def test_light_and_dark_are_readable(browser: Browser):
    async with opened(browser, many(3)) as (page, _):
        await page.wait(f"{ROWS} === 3")
        grounds = []
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await settle(page)
            ground = await page.run(luminance("document.querySelector('.listing')", "backgroundColor"))
            grounds.append(ground)
            for place in (
                ".row .method",
                ".row .target",
                ".row .time",
                ".columns span",
                ".count",
                ".tabs button",
            ):
                ink = await page.run(luminance(f"document.querySelector('{place}')", "color"))
                light, dark = max(ink, ground), min(ink, ground)
                assert (light + 0.05) / (dark + 0.05) > 4.5, (scheme, place)
        assert grounds[0] > 0.8
        assert grounds[1] < 0.05


def luminance(element: str, style: str) -> str:
    """Return JavaScript for the relative luminance of a colour (WCAG 2.2)."""
    return (
        f"(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b)(getComputedStyle({element}).{style}"
        ".match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)"
        ".map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))"
    )


async def test_a_hundred_thousand_exchanges_have_as_many_elements_as_fit_the_window(browser: Browser):
    traffic = Traffic(size=2**30)
    traffic.quick(100_000)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} > 10")
        assert await page.run("document.getElementById('count').textContent.replace(/\\D/g, '')") == "100000"
        await page.run(
            "window.most = 0; new MutationObserver("
            "() => window.most = Math.max(window.most, document.querySelectorAll('.row').length)"
            ").observe(document.querySelector('.sheet'), {childList: true})"
        )
        for part in (0.5, 0.1, 0.9, 1, 0.333, 0):
            await page.run(
                f"(list => list.scrollTop = {part} * list.scrollHeight)(document.getElementById('list'))"
            )
            await settle(page)
            above = "Math.ceil(document.getElementById('list').scrollTop / 28)"
            shown = f"document.getElementById('row-' + Math.max(1, 100000 - {above} - 3))"
            await page.wait(f"{shown}?.dataset.status === 'ok'")
            assert await page.run(ROWS) < MOST_ROWS
        assert await page.run("window.most") < MOST_ROWS
        await page.key("End")
        await page.wait("document.querySelector('.row[aria-selected=true]')?.dataset.row === '1'")
        requests = [url for url in page.requests if "/api/exchanges?" in url]
        assert len(requests) < 40  # what was looked at, and not the rest
        assert await page.run("document.querySelectorAll('*').length") < 1500


async def test_what_is_read_stays_where_it_is_while_more_comes(browser: Browser):
    traffic = many(500)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} > 10")
        await page.run("document.getElementById('list').scrollTop = 2800")
        await page.wait("document.getElementById('row-395')?.dataset.status === 'ok'")
        place = "document.getElementById('row-395').getBoundingClientRect().top"
        top = await page.run(place)
        traffic.exchange()
        await page.wait("document.getElementById('count').textContent.startsWith('501')")
        await settle(page)
        assert await page.run(place) == top


async def test_a_flood_pauses_the_list_until_it_is_resumed(browser: Browser):
    traffic = many(5)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 5")
        for _ in range(2):  # the first alone is more than anybody reads, the second finds it paused
            for _ in range(800):
                traffic.exchange()
            digits = "document.getElementById('count').textContent.replace(/\\D/g, '')"
            await page.wait(f"{digits} === '{traffic.ring.last}'")
        assert not await page.run("document.getElementById('paused').hidden")
        shown = await page.run(TEXTS)
        traffic.exchange(upstream="search")
        await page.wait("/[1-9][0-9,.]* new/.test(document.getElementById('paused').textContent)")
        assert await page.run(TEXTS) == shown
        assert await page.run(ROWS) < MOST_ROWS
        await page.key("p")
        await page.wait(f"document.getElementById('paused').hidden && {row_with('search__find')}")
        assert await page.run("document.getElementById('list').scrollTop") == 0


async def test_pausing_by_hand_counts_what_is_new(browser: Browser):
    traffic = many(2)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 2")
        await page.run("document.getElementById('pause').click()")
        traffic.exchange()
        await page.wait("document.getElementById('paused').textContent.includes('1 new')")
        assert await page.run(ROWS) == 2
        await page.run("document.querySelector('#paused button').click()")
        await page.wait(f"{ROWS} === 3")


async def test_a_hostile_text_is_only_text(browser: Browser):
    traffic = Traffic()
    traffic.client.name = HOSTILE
    answer = {
        "result": {"content": [{"type": "text", "text": HOSTILE}], HOSTILE: HOSTILE, "__proto__": {"hurt": 1}}
    }
    traffic.exchange(HOSTILE, {"name": HOSTILE, HOSTILE: [HOSTILE]}, answer=answer)
    traffic.recorder.message_passed(traffic.upstreams["docs"], "in", HOSTILE.encode())
    server = ScriptedServer(tools=[])

    async def discover(*_: object) -> dict[str, object]:
        info = {"name": HOSTILE, "version": HOSTILE}
        return {
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "instructions": HOSTILE,
            "capabilities": {HOSTILE: {}, "tools": {}},
            "_meta": {"io.modelcontextprotocol/serverInfo": info}, **CACHE,
        }  # fmt: skip

    server.handlers["server/discover"] = discover
    async with opened(browser, traffic, servers={"docs": server}) as (page, _):
        await page.wait(f"{ROWS} === 2")
        for row in (1, 2):
            await page.run(f"document.getElementById('row-{row}').click()")
            await page.wait("document.getElementById('detail').textContent.includes('onerror')")
        await page.run("document.getElementById('row-1').click()")
        await open_part(page, "legs")
        for step in range(4):
            await page.run("document.getElementById('row-1').click()")
            await page.wait("document.querySelectorAll('.step').length === 4")
            await page.run(f"document.querySelectorAll('.step')[{step}].click()")
        await page.key("1")
        await page.wait("document.getElementById('view-upstreams').textContent.includes('onerror')")
        await page.key("4")
        await page.wait("document.getElementById('view-latency').textContent.includes('onerror')")
        await settle(page)
        assert await page.run("window.hurt === undefined && ({}).hurt === undefined")
        assert await page.run("document.querySelectorAll('main script, main img, main iframe').length") == 0


async def test_markup_out_of_text_is_impossible_on_this_page(browser: Browser):
    async with opened(browser) as (page, _):
        tried = (
            "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
        )
        assert await page.run(tried) == "TypeError"
        page.problems.clear()


async def test_upstreams_and_latency_are_shown(browser: Browser):
    async with opened(browser, many(20)) as (page, _):
        await page.key("1")
        await page.wait("document.querySelectorAll('#view-upstreams .card').length === 3")
        states = "[...document.querySelectorAll('.card[data-state]')].map(card => card.dataset.state).join()"
        await page.wait(f"{states} === 'ready,down'")
        assert "nobody there" in await page.run(
            "document.querySelector('.card[data-state=down]').textContent"
        )
        await page.key("4")
        await page.wait("document.querySelectorAll('.groups tbody tr').length === 3")
        assert await page.run("document.querySelectorAll('.chart').length") == 2
        longest = "document.querySelector('.chart circle.most')"  # a ring, so that it covers no other dot
        assert await page.run(f"getComputedStyle({longest}).fill") == "none"


async def test_the_slowest_exchange_of_a_tool_is_one_click_away(browser: Browser):
    traffic = many(2)
    for ms in (50, 700, 80):
        traffic.exchange(params={"name": "docs__slow report"}, ms=ms)
    rows = "[...document.querySelectorAll('.groups')[0].querySelectorAll('tbody tr')]"
    texts = f"{rows}.map(row => row.innerText)"
    async with opened(browser, traffic) as (page, _):
        await page.key("4")
        await page.wait(f"document.querySelector('.groups') && {rows}.length === 2")
        assert (await page.run(texts))[0].startswith("docs__slow report\ttools/call\t3\t0\t")
        heads = (
            "[...document.querySelectorAll('.groups th button')].filter(each => each.innerText === 'Median')"
        )
        for first in ("slow report", "find", "slow report"):
            await page.run(f"{heads}[0].click()")
            await page.wait(f"{texts}[0].includes('{first}')")
        await page.run(f"{rows}[0].querySelectorAll('button')[1].click()")  # the longest
        await page.wait("document.querySelector('#detail [role=tabpanel]')?.dataset.row === '4'")
        await page.key("4")
        await page.run(f"{rows}[0].querySelector('button').click()")
        await page.wait(f"{ROWS} === 3")
        numbers = "[...document.querySelectorAll('.row')].map(row => row.dataset.row).join()"
        assert await page.run(numbers) == "4,5,3"


async def test_the_first_page_says_how_to_connect(browser: Browser):
    async with opened(browser, servers={"docs": ScriptedServer(tools=[])}, tap=True) as (page, here):
        await page.run("sessionStorage.clear()")
        await page.open(here.url)
        card = "document.querySelector('#view-upstreams .connect')"
        await page.wait(f"{card}?.querySelectorAll('.hosts button').length > 5")
        endpoint = await page.run(f"{card}.querySelector('code').textContent")
        assert endpoint.startswith("http://127.0.0.1:") and endpoint.endswith("/mcp")
        for title, words in (("VS Code", endpoint), ("Claude Desktop", "mcpmux install claude-desktop")):
            await page.run(
                f"[...{card}.querySelectorAll('button')].find(b => b.innerText === '{title}').click()"
            )
            await page.wait(f"{card}.textContent.includes({json.dumps(words)})")
        copies = "document.querySelector('.connect .copyable button')"
        await page.send(
            "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
        )
        await page.run(f"{copies}.click()")
        await page.wait(f"{copies}.innerText === 'Copied'")
        await page.key("2")
        await page.open("about:blank")
        await page.open(here.url)  # the page that was shown is shown again
        await page.wait("document.getElementById('view-exchanges')?.hidden === false")


VIEWS = {
    "coding": View(
        include=(Selector(upstream="docs", kind="tools"), Selector(kind="resources")),
        exclude=(Selector(name="delete*"),),
        principals=("alice", "team-*"),
        overrides=(ViewOverride(upstream="docs", name="search", rename="find"),),
    ),
    "reading": View(include=(Selector(readOnlyHint=True),)),
}
TOOL = {"name": "search", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
VIEW_CARDS = "[...document.querySelectorAll('#view-views article')].map(card => card.textContent)"


async def test_the_view_of_an_exchange_is_shown(browser: Browser):
    traffic = many(1)
    traffic.exchange(view="coding")
    traffic.exchange(view="coding?tools=find*")
    traffic.exchange(view="?upstreams=docs")
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 4")
        shown = await page.run(
            "[...document.querySelectorAll('.row .in-view')].map(cell => cell.textContent)"
        )
        assert sorted(shown) == ["", "?upstreams=docs", "coding", "coding?tools=find*"]
        heading = "document.querySelector('.columns .in-view').offsetWidth"
        assert await page.run(heading) > 0
        facts = "document.querySelector('#detail .facts')?.textContent"
        await page.run(f"{row_with('coding?')}.click()")
        await page.wait(f"{facts}?.includes('Viewcoding') && {facts}.includes('Narrowed totools=find*')")
        await page.run("document.getElementById('row-4').click()")
        await page.wait(f"{facts}?.includes('Vieweverything') && {facts}.includes('upstreams=docs')")
        await page.run("document.getElementById('row-1').click()")
        await page.wait(f"{facts} && !{facts}.includes('View')")


async def test_views_lead_to_their_exchanges(browser: Browser):
    traffic = many(2)
    traffic.exchange(view="coding")
    traffic.exchange(view="coding?tools=find*")
    traffic.exchange(view="reading")
    servers = {"docs": ScriptedServer(tools=[TOOL]), "search": None}
    async with opened(browser, traffic, servers=servers, views=VIEWS) as (page, _):
        await page.key("3")
        await page.wait(f"{VIEW_CARDS}.join().includes('about')")
        everything, coding, reading = await page.run(VIEW_CARDS)
        assert "Everything" in everything and "Tools1" in everything
        for words in ("alice, team-*", "tools of docs", "everything called delete*", "Tools1", "1 override"):
            assert words in coding
        assert "Counted without search: " in coding
        assert "tools that change nothing" in reading and "everybody" in reading
        details = "[...document.querySelectorAll('#view-views article')[1].querySelectorAll('details')]"
        assert "docs__find" in await page.run(f"{details}[0].textContent")  # the tool, as its clients call it
        await page.run(f"{details}.at(-1).querySelector('summary').click()")
        assert "searchfind" in await page.run(f"{details}.at(-1).textContent")
        await page.run("document.querySelector('[data-action=count]').focus()")
        await page.key("Enter")  # what is open and has the focus keeps it
        await page.wait(f"{VIEW_CARDS}.join().includes('about')")
        assert await page.run("document.activeElement.dataset.action") == "count"
        assert await page.run(f"{details}.at(-1).open")
        await page.run("document.querySelector('[data-action=\"exchanges coding\"]').focus()")
        await page.key("Enter")
        await page.wait(f"!document.getElementById('view-exchanges').hidden && {ROWS} === 2")
        assert await page.run("document.getElementById('filter').value") == "view=coding"
        assert await page.run("document.activeElement.id") == "list"


async def test_without_views_it_is_said_how_to_make_one(browser: Browser):
    async with opened(browser) as (page, _):
        await page.key("3")
        await page.wait("document.getElementById('view-views').textContent.includes('[views.reading]')")
        await page.wait(f"{VIEW_CARDS}.length === 1 && {VIEW_CARDS}[0].includes('everybody')")


async def test_views_are_readable_in_both_colours_and_in_a_narrow_window(browser: Browser):
    async with opened(browser, servers={"docs": ScriptedServer(tools=[TOOL])}, views=VIEWS) as (page, _):
        await page.key("3")
        await page.wait(f"{VIEW_CARDS}.join().includes('about')")
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await settle(page)
            ground = await page.run(luminance("document.querySelector('.card')", "backgroundColor"))
            for place in (".places", ".card a", ".selection dt", ".selection dd", ".card summary"):
                ink = await page.run(luminance(f"document.querySelector('#view-views {place}')", "color"))
                light, dark = max(ink, ground), min(ink, ground)
                assert (light + 0.05) / (dark + 0.05) > 4.5, (scheme, place)
        await page.resize(360, 700)
        await settle(page)
        wide = "document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth"
        assert not await page.run(wide)
        view = "document.getElementById('view-views')"
        assert not await page.run(f"{view}.scrollWidth > {view}.clientWidth")


async def test_an_upstream_is_drained_enabled_and_disabled_after_a_question(browser: Browser):
    async with opened(browser, many(3)) as (page, _):
        await page.key("1")
        button = "document.querySelector('[data-action=\"{} docs\"]')"
        state = "document.querySelector('.card[data-state]').dataset.state"
        for action, then in [("drain", "drained"), ("enable", "ready")]:
            await page.wait(f"{button.format(action)} !== null")
            await page.run(f"{button.format(action)}.click()")
            await page.wait(f"{state} === '{then}'")
        await page.run("window.told = []; window.alert = (text) => told.push(text)")
        await page.run("window.confirm = (text) => (told.push(text), false)")
        await page.run(f"{button.format('disable')}.click()")
        assert "Disable docs?" in await page.run("told.join()")
        await page.run("window.confirm = () => true")
        await page.run(f"{button.format('disable')}.click()")
        disabled = "[...document.querySelectorAll('.card')].find((card) => card.dataset.state === 'disabled')"
        await page.wait(f"{disabled}?.textContent.includes('docs')")
        await page.run("document.querySelector('[data-action=\"disable search\"]').click()")
        await page.wait("told.some((text) => text.includes('at least one upstream'))")
        page.problems.clear()  # the refusal is an answer 409


async def test_a_narrow_window_shows_one_thing_at_a_time(browser: Browser):
    async with opened(browser, many(3)) as (page, _):
        await page.resize(400, 700)
        await page.wait(f"{ROWS} === 3")
        wide = "document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth"
        assert not await page.run(wide)
        await page.run("document.querySelector('.row').click()")
        await page.wait("document.querySelector('.tree')")
        assert await page.run("document.querySelector('.listing').offsetWidth") == 0
        assert not await page.run(wide)
        await page.run("document.querySelector('.close').click()")
        await page.wait("document.querySelector('.listing').offsetWidth > 300")


async def test_real_messages_of_a_running_mux_are_shown(browser: Browser):
    async def find(*_: object) -> dict[str, object]:
        return {"resultType": "complete", "content": [{"type": "text", "text": "found"}]}

    tool = {"name": "find", "inputSchema": {"type": "object"}}
    server = ScriptedServer(tools=[tool], handlers={"tools/call": find})
    async with opened(browser, servers={"docs": server}, tap=True) as (page, here):
        client = here.world.client()
        await client.request("tools/call", {"name": "docs__find", "arguments": {}})
        await page.wait(f"{row_with('docs__find')}?.dataset.status === 'ok'")
        await page.run(f"{row_with('docs__find')}.click()")
        await open_part(page, "legs")
        bodies = await page.run("[...document.querySelectorAll('.body')].map(body => body.textContent)")
        assert 'name: "docs__find"' in bodies[0]
        assert 'name: "find"' in bodies[1]


async def test_a_merged_list_is_compared_with_each_upstream(browser: Browser):
    tool = {"name": "find", "inputSchema": {"type": "object"}}
    servers = {name: ScriptedServer(tools=[tool, tool | {"name": name}]) for name in ("docs", "search")}
    async with opened(browser, servers=servers, tap=True) as (page, here):
        client = here.world.client()
        await client.request("tools/list", client.params({}))
        await page.wait(f"{row_with('tools/list')}?.dataset.status === 'ok'")
        await page.run(f"{row_with('tools/list')}.click()")
        await open_part(page, "legs")
        await page.run("[...document.querySelectorAll('.step')].at(-1).click()")
        pairs = "[...document.querySelectorAll('.bodies')].map(pair => pair.innerText)"
        await page.wait(f"{pairs}.length === 2")
        docs, search = sorted(await page.run(pairs), key=lambda pair: "search" in pair)
        assert "docs__find" in docs and "docs__docs" in docs and "search" not in docs
        assert "search__find" in search and "docs" not in search
        changed = "[...document.querySelectorAll('.bodies [data-mark]')].map(each => each.innerText)"
        assert all("name" in text for text in await page.run(changed))


REPLICA_CARDS = "[...document.querySelectorAll('#view-replicas article')].map(card => card.textContent)"


async def test_replicas_are_shown_where_there_is_a_cluster(browser: Browser):
    servers = {"alpha": ScriptedServer(tools=[]), "beta": ScriptedServer(tools=[])}
    async with (
        open_replicas(**servers) as replicas,
        opened(browser, replicas=replicas["alpha"].node) as (page, _),
    ):
        await page.wait("document.getElementById('tab-replicas')")
        await page.key("8")
        await page.wait(f"{REPLICA_CARDS}.length === 2")
        alpha, beta = await page.run(REPLICA_CARDS)
        assert alpha.startswith("alphainside") and beta.startswith("betainside")
        for words in ("Legacy sessions0", "Others1", "Lease", replicas["beta"].node.members.replica):
            assert words in beta
        move(replicas["beta"].node, "http://127.0.0.1:1")
        silent = "document.querySelector('#view-replicas .card[data-state=silent]')"
        await page.wait(f"{silent}?.textContent.includes('connection refused')")
        assert "Legacy sessions" not in await page.run(f"{silent}.textContent")
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await settle(page)
            ground = await page.run(luminance(silent, "backgroundColor"))
            for place in (".chip", ".target", ".trouble", ".facts dt", ".facts dd"):
                ink = await page.run(luminance(f"document.querySelector('#view-replicas {place}')", "color"))
                light, dark = max(ink, ground), min(ink, ground)
                assert (light + 0.05) / (dark + 0.05) > 4.5, (scheme, place)
        await page.resize(360, 700)
        await settle(page)
        view = "document.getElementById('view-replicas')"
        assert not await page.run(f"{view}.scrollWidth > {view}.clientWidth")
        wide = "document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth"
        assert not await page.run(wide)
        await page.run("document.getElementById('tab-replicas').focus()")
        await page.key("ArrowRight")
        await page.wait("document.activeElement.id === 'tab-upstreams'")


async def test_without_a_cluster_no_page_of_replicas_is_offered(browser: Browser):
    async with opened(browser) as (page, here):
        await page.wait("document.getElementById('view-exchanges').hidden === false")
        assert f"{here.url}/api/replicas" in page.requests
        await page.key("8")
        await page.run("document.getElementById('tab-held').focus()")
        await page.key("ArrowRight")
        await page.wait("document.activeElement.id === 'tab-upstreams'")
        assert await page.run("document.getElementById('tab-replicas') === null")
        assert await page.run("document.getElementById('view-replicas').hidden")
