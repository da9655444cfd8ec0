"""A person copies, links, marks, compares and saves exchanges in the inspector."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from mcpmux.config.views import Selector, View
from mcpmux.protocol.principal import ANYONE
from tests.browser.browser import Browser, Page
from tests.browser.test_inspector_access import ALL, WIDE, check
from tests.browser.test_inspector_page import ROWS, luminance, opened, settle
from tests.peers.server import ScriptedServer
from tests.process.running import Running
from tests.real.parts import npm_env
from tests.traffic.admin_world import Listening, Traffic, get

MCPMUX = f'mcpmux() {{ {sys.executable} -m mcpmux "$@"; }}; '
NASTY = 'it\'s "$HOME" `id` $(id) \\ \x1b[31m\n ünï 😀 -- ~'
META = ("params._meta", "result._meta")  # what differs between clients
OTHER_REVISION = (*META, "result.resultType")


def button(word: str) -> str:
    return (
        f"[...document.querySelectorAll('.tools button')].find(each => each.textContent.includes('{word}'))"
    )


async def open_row(page: Page, number: int) -> None:
    await page.wait(f"document.getElementById('row-{number}')?.dataset.status === 'ok'")
    await page.run(f"document.getElementById('row-{number}').click()")
    shown = "document.querySelector('#detail [role=tabpanel]')?.dataset.row"
    await page.wait(f"location.hash.endsWith('-{number}') && {shown} === '{number}'")


async def copied(page: Page, word: str) -> str:
    """Copy the exchange as a command, HTTP, JSON or a link, and return the copied text."""
    await page.run("document.querySelector('.copied').replaceChildren()")
    await page.run(f"{button(word)}.click()")
    await page.wait("document.querySelector('.copied').textContent")
    text: str = await page.run("document.querySelector('.copied pre')?.textContent ?? ''")
    return text or await page.run("document.querySelector('.copied').textContent")


async def run_in_shell(text: str) -> str:
    done = await trio.run_process(
        ["bash", "-c", MCPMUX + text], capture_stdout=True, stderr=subprocess.STDOUT
    )
    return done.stdout.decode()


async def newest(here: Listening, method: str) -> int:
    """Return the row of the newest exchange with that method."""
    return next(
        row.number
        for row in here.traffic.ring.before(here.traffic.ring.last + 1)
        if row.first.method == method
    )


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "docs__find", "arguments": {"text": NASTY, "n": 12345678901234567890}}),
    ("tools/call", {"name": "docs__find", "arguments": {}}),
    ("resources/read", {"uri": "docs+file:///it's-$(id);&!*"}),
    ("tools/list", {}),
    ("prompts/get", {"name": "docs__ask"}),
]


def heard() -> ScriptedServer:
    """Return a server that answers everything of ASKED."""

    async def call(*_: object) -> dict[str, Any]:
        return {"resultType": "complete", "content": [{"type": "text", "text": "heard"}]}

    async def read(_server: object, params: dict[str, Any], _message: object) -> dict[str, Any]:
        contents = [{"uri": params["uri"], "text": "heard"}]
        return {"resultType": "complete", "contents": contents, "ttlMs": 0, "cacheScope": "private"}

    async def prompt(*_: object) -> dict[str, Any]:
        message = {"role": "user", "content": {"type": "text", "text": "heard"}}
        return {"resultType": "complete", "messages": [message]}

    return ScriptedServer(
        tools=[{"name": "find", "inputSchema": {"type": "object"}}],
        resources=[{"name": "a", "uri": "file:///a.md"}],
        prompts=[{"name": "ask"}],
        handlers={"tools/call": call, "resources/read": read, "prompts/get": prompt},
    )


async def test_what_is_copied_does_the_same_again_in_a_shell(browser: Browser):
    views = {"coding": View(exclude=(Selector(name="secret"),))}
    async with opened(browser, servers={"docs": heard()}, tap=True, views=views) as (page, here):
        modern = here.world.client(principal=ANYONE.within("coding"))
        for method, params in ASKED:
            await modern.request(method, modern.params(params))
        legacy = here.world.client()
        await legacy.initialize("2025-06-18")
        await legacy.request(*ASKED[0])
        of_legacy = here.traffic.ring.last
        for number in (1, 2, 3, 4, 5, of_legacy):
            await open_row(page, number)
            row = (await get(here, f"/api/exchanges/{number}"))["row"]
            for word in ("command", "cURL"):
                text = await copied(page, word)
                assert "\x1b" not in text
                last = here.traffic.ring.last
                output = await run_in_shell(text)
                again = await newest(here, row["method"])
                assert again > last, output
                assert (await get(here, f"/api/exchanges/{again}"))["row"].get("view") == row.get("view")
                answer = await get(here, f"/api/exchanges/{number}/differences/{again}")
                paths = [difference["path"] for difference in answer["differences"]]
                other = OTHER_REVISION if (number, word) == (of_legacy, "command") else META
                assert all(path.startswith(other) for path in paths), (paths, text)
        both = json.loads(await copied(page, "JSON"))
        assert both["request"]["params"] == ASKED[0][1]
        assert both["answer"]["result"]["content"][0]["text"] == "heard"


async def test_what_is_copied_goes_where_its_client_was_and_is_no_option(browser: Browser):
    async with opened(browser) as (page, _):
        command = "import('/copying.js').then(copying => copying.command({}, {}, 'http://host/mcp/'))"
        narrowed = '{view: "coding?tools=a*"}, {method: "tools/list"}'
        text = await page.run(command.replace("{}, {}", narrowed))
        assert text == "mcpmux ls 'http://host/mcp/coding?tools=a*' tools"
        hostile = '{}, {method: "resources/read", params: {uri: "-o/etc/x"}}'
        text = await page.run(command.replace("{}, {}", hostile))
        assert text == "mcpmux read http://host/mcp -- -o/etc/x"


async def test_an_exchange_is_sent_again_and_compared_with_what_it_was(browser: Browser):
    views = {"coding": View(exclude=(Selector(name="secret"),))}
    async with opened(browser, servers={"docs": heard()}, tap=True, views=views) as (page, here):
        client = here.world.client(principal=ANYONE.within("coding"))
        await client.request(ASKED[0][0], client.params(ASKED[0][1]))
        await open_row(page, 1)
        await page.run(f"{button('Resend')}.click()")
        await page.wait("document.getElementById('request-1')?.value.includes('12345678901234567890')")
        assert await page.run("document.querySelector('#view-client [aria-label=View]').value") == "coding"
        await page.run("document.querySelector('#view-client .primary').click()")
        await page.wait("document.querySelector('#view-client .answer')")
        await page.run("document.querySelector('#view-client [data-row]').click()")
        paths = "[...document.querySelectorAll('.comparison tbody th')].map(path => path.textContent)"
        await page.wait(f"{paths}.length > 0")
        assert all(path.startswith(META) for path in await page.run(paths))
        assert (await get(here, f"/api/exchanges/{await newest(here, 'tools/call')}"))["row"][
            "view"
        ] == "coding"


async def test_a_link_leads_back_to_its_exchange_and_never_to_another(browser: Browser):
    traffic = Traffic(rows=60)
    for _ in range(50):
        traffic.exchange()
    async with opened(browser, traffic) as (page, here):
        await page.run("document.getElementById('filter').focus()")
        await page.type("upstream=docs")
        await page.wait("document.getElementById('count').textContent === '50 of 50'")
        await page.run("document.getElementById('list').scrollTop = 10000")
        await open_row(page, 3)
        link = await copied(page, "link")
        assert link == f"{here.url}/#filter=upstream%3Ddocs&exchange=test-3"
        title = "document.querySelector('#detail header').textContent"
        for _ in range(2):  # the second time the page is loaded anew
            await page.open("about:blank")
            await page.open(link)
            await page.wait(
                "document.querySelector('#detail [role=tabpanel]') && document.activeElement.id === 'detail'"
            )
            assert await page.run("document.querySelector('.facts').textContent.includes('Exchange3')")
            assert await page.run("document.getElementById('filter').value") == "upstream=docs"
            await page.wait("document.querySelector('#row-3[aria-selected=true]')")
            assert await page.run("location.href") == link
        await page.run("document.querySelector('.skip').click()")
        await settle(page)
        assert await page.run("document.getElementById('filter').value") == "upstream=docs"
        await page.run("location.hash = 'exchange=other-3'")
        await page.wait(f"{title}.includes('cannot be shown')")
        assert "another run" in await page.run("document.getElementById('detail').textContent")
        assert await page.run("document.querySelector('.tools')?.offsetWidth ?? 0") == 0
        await page.key("Escape")
        await page.wait("document.getElementById('detail').hidden")
        for _ in range(20):
            traffic.exchange()
        assert traffic.ring.first == 11
        await page.run("location.hash = 'exchange=test-3'")
        await page.wait(
            "document.getElementById('detail').textContent.includes('newer traffic took its place')"
        )
        assert ["404" in problem for problem in page.problems] == [True]
        page.problems.clear()


async def test_exchanges_are_marked_noted_compared_and_saved(browser: Browser, tmp_path: Path):
    traffic = Traffic()
    for number in range(5):
        text = "odd" if number % 2 else "even"
        answer = {"result": {"content": [{"type": "text", "text": text}]}}
        traffic.exchange(params={"name": "docs__find", "arguments": {"n": number}}, answer=answer)
    async with opened(browser, traffic) as (page, _):
        await page.wait(f"{ROWS} === 5")
        await open_row(page, 2)
        await page.key("m")
        await page.wait("document.getElementById('row-2').getAttribute('aria-description') === 'marked'")
        await page.wait(f"{button('Marked')}.getAttribute('aria-pressed') === 'true'")
        await page.run("document.querySelector('.note').focus()")
        await page.type("m 4 <b>odd</b>")  # no key has its function while a note is typed
        await open_row(page, 4)
        note = "— m 4 <b>odd</b>"
        await page.wait(f"document.getElementById('row-2').textContent.includes('{note}')")
        assert await page.run("document.querySelector('.note').value") == ""
        await page.run(f"{button('Mark')}.click()")
        await page.wait("document.querySelectorAll('.row[data-marked=true]').length === 2")

        compared = "document.querySelector('.comparison').textContent"
        await page.run(f"{button('Compare')}.click()")
        await page.wait(f"{compared}.includes('Open another exchange')")
        cells = "[...document.querySelectorAll('.comparison tbody tr')].map(row => row.innerText)"
        await open_row(page, 2)
        await page.wait(f"{cells}.length === 1")
        assert await page.run(cells) == ["params.arguments.n\t3\t1"]
        await open_row(page, 1)
        await page.wait(f"{cells}.length === 2")
        assert await page.run(cells) == ["params.arguments.n\t3\t0", 'result.content[0].text\t"odd"\t"even"']
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await settle(page)
            ground = await page.run(luminance("document.querySelector('#detail')", "backgroundColor"))
            for place in (".comparison td", ".comparison thead th", ".tools .hint", ".menu summary", ".note"):
                ink = await page.run(luminance(f"document.querySelector('{place}')", "color"))
                light, dark = max(ink, ground), min(ink, ground)
                assert (light + 0.05) / (dark + 0.05) > 4.5, (scheme, place)
        await page.run(f"{button('Stop')}.click()")
        await page.wait(f"{compared} === ''")

        await page.run("document.getElementById('save').click()")
        await page.resize(360, 700)
        await settle(page)
        wide = "document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth"
        assert not await page.run(wide)
        detail = "document.getElementById('detail')"
        assert not await page.run(f"{detail}.scrollWidth > {detail}.clientWidth")
        link = "document.querySelectorAll('#saving a')[1]"
        saved = await page.run(f"fetch({link}.href).then(response => response.text())")
        name = await page.run(f"{link}.download")
        (tmp_path / name).write_text(saved)
        har = "document.querySelector('#saving a[href*=har]')"
        assert (await page.run(f"{har}.download")).endswith(".har")
        entries = f"fetch({har}.href).then(answer => answer.json()).then(({{log}}) => log.entries.length)"
        assert await page.run(entries) > 0
        codes = await page.run(
            "[...document.querySelectorAll('#saving .choices code')].map(each => each.textContent)"
        )
        mock, stats = (code.replace(name, str(tmp_path / name)) for code in codes)
        assert "8 messages" in await run_in_shell(stats)
        with Running(*shlex.split(mock.replace(":9000", ":0"))[1:]) as mocked:
            output = await run_in_shell(f"mcpmux call {mocked.line().strip()} docs__find n:=3")
        assert output == "odd\n"


async def test_a_mock_is_started_used_and_stopped_from_the_page(browser: Browser):
    traffic = Traffic()
    for word in ("one", "two"):
        answer = {"result": {"resultType": "complete", "content": [{"type": "text", "text": word}]}}
        traffic.exchange(params={"name": "docs__find", "arguments": {"word": word}}, answer=answer)
    second = traffic.ring.row(2)
    assert second is not None
    traffic.ring.mark(second, True, "")
    running = "[...document.querySelectorAll('#saving .mocks li')].map(each => each.textContent)"
    choice = "[...document.querySelectorAll('#saving button')].find(each => each.textContent === '%s')"
    async with opened(browser, traffic) as (page, _):
        await page.run("document.getElementById('save').click()")
        await page.run(f"{choice % 'Mock what is marked'}.click()")
        await page.wait(f"{running}.length === 1")
        assert "answers 1 request of marked" in await page.run(f"{running}[0]")
        url = await page.run("document.querySelector('#saving .mocks code').textContent")
        assert await run_in_shell(f"mcpmux call {url} docs__find word=two") == "two\n"
        await page.run("document.getElementById('save').click()")
        await page.run("document.getElementById('save').click()")  # it is there when one looks again
        await page.wait(f"{running}.length === 1")
        await page.run(f"{(npm_env('axe') / 'axe-core' / 'axe.min.js').read_text()}; 0")
        for width in (360, 1280):
            await page.resize(width, 800)
            assert await page.run(check(ALL)) == []
            assert not await page.run(WIDE)
        await page.run(f"{choice % 'Stop mock 1'}.click()")
        await page.wait(f"{running}.length === 0")
        await page.run("document.getElementById('filter').value = 'method=prompts/get'")
        await page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
        await page.wait(f"{choice % 'Mock what the filter finds'} !== undefined")
        await page.run(f"{choice % 'Mock what the filter finds'}.click()")
        problem = "document.querySelector('#saving .problem').textContent"
        await page.wait(f"{problem} !== ''")
        assert "nothing here can be answered from" in await page.run(problem)
        page.problems.clear()  # the refusal, which the browser tells, too
