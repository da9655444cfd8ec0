"""The client in the inspector, in a real Chromium: what a person can ask servers of both eras, and answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import trio

from mcpmux.config.views import Selector, View
from tests.browser.browser import Browser, Page
from tests.browser.test_inspector_page import HOSTILE, ROWS, luminance, opened, settle
from tests.library.servers import Worker
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import CACHE, ScriptedServer
from tests.peers.subscribable import OFFERS, Subscribable
from tests.runtime.test_asking import Curious
from tests.traffic.admin_world import Listening

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "Of the book"},
        "pages": {"type": "integer", "default": 10},
        "number": {"type": "number"},
        "kind": {"enum": ["novel", "poems"]},
        "lent": {"type": "boolean"},
        "days": {"type": "array", "items": {"enum": ["mon", "tue", "wed"]}},
        "tags": {"type": "array"},
        "author": {"anyOf": [{"$ref": "#/$defs/author"}, {"type": "null"}], "default": None},
    },
    "required": ["title", "kind"],
    "$defs": {"author": {"type": "object"}},
}
QUESTIONS: Json = {
    "who": {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": "Who are you?",
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "age": {"type": "integer"},
                    "born": {"type": "string", "format": "date"},
                    "mail": {"type": "string", "format": "email"},
                },
                "required": ["name"],
            },
        },
    },
    "visit": {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": "Log in there", "url": "https://login.example/?a=1"},
    },
    "words": {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "A rhyme"}}],
            "maxTokens": 5,
        },
    },
    "where": {"method": "roots/list", "params": {}},
}
HOSTILE_NAME = HOSTILE.partition("<script>")[0]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Desk(Subscribable):
    """A server whose tools return their arguments, or ask; its template and prompt have completions."""

    def __init__(self) -> None:
        super().__init__(MODERN, capabilities={**OFFERS, "prompts": {}, "completions": {}})
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("ask", "show", HOSTILE_NAME)]
        self.lists["tools/list"] = ("tools", [{"name": "book", "inputSchema": SCHEMA}, *tools])
        template = {"uriTemplate": "memo:{+room}{?day}", "name": "memo"}
        self.lists["resources/templates/list"] = ("resourceTemplates", [template])
        prompt = {"name": "explain", "arguments": [{"name": "topic", "required": True}]}
        self.lists["prompts/list"] = ("prompts", [prompt])
        answers = {
            "tools/call": Desk.call,
            "resources/read": Desk.read,
            "prompts/get": Desk.explain,
            "completion/complete": Desk.complete,
        }
        self.handlers |= answers

    async def call(self, params: Json, _message: Json) -> Json:
        if params["name"] == "show":
            image = {"type": "image", "mimeType": "image/png", "data": PIXEL}
            link = {"type": "resource_link", "uri": "memo:1", "name": "one"}
            return {"resultType": "complete", "content": [image, link, text(HOSTILE)], "isError": True}
        if params["name"] == "ask" and "inputResponses" not in params:
            return {"resultType": "input_required", "inputRequests": QUESTIONS, "requestState": "s"}
        answer = params.get("inputResponses", params.get("arguments"))
        return {"resultType": "complete", "content": [text(json.dumps(answer))]}

    async def read(self, params: Json, _message: Json) -> Json:
        return {
            "resultType": "complete",
            "contents": [{"uri": params["uri"], "text": params["uri"]}],
            **CACHE,
        }

    async def explain(self, params: Json, _message: Json) -> Json:
        message = {"role": "user", "content": text(f"Explain {params['arguments']['topic']}")}
        return {"resultType": "complete", "messages": [message]}

    async def complete(self, params: Json, _message: Json) -> Json:
        value, others = params["argument"]["value"], params.get("context", {}).get("arguments", {})
        return {"resultType": "complete", "completion": {"values": [f"{value}-{len(others)}"]}}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def inside(selector: str) -> str:
    """Return JavaScript for the first such element of the page."""
    return f"document.querySelector({json.dumps('#view-client ' + selector)})"


SEND, CANCEL, LISTEN = (inside(f".request .actions button:nth-child({place})") for place in (1, 2, 3))
ANSWER, STATE = inside(".answer"), inside(".state")


@asynccontextmanager
async def client_page(
    browser: Browser, views: Mapping[str, View] = MappingProxyType({}), **servers: ScriptedServer
) -> AsyncIterator[tuple[Page, Listening]]:
    """Open the page with its list of tools."""
    async with opened(browser, servers=servers, tap=True, views=views) as (page, here):
        await page.key("5")
        await page.wait(f"{inside('.item')} !== null")
        yield page, here


async def select(page: Page, label: str, value: str) -> None:
    element = inside(f"[aria-label={label}]")
    await page.run(f"{element}.value = '{value}'; {element}.dispatchEvent(new Event('change'))")


async def pick(page: Page, kind: str, name: str) -> None:
    """Choose something that there is."""
    await select(page, "Kind", kind)
    item = inside(f"[data-id={json.dumps(name)}]")
    await page.wait(f"{item} !== null")
    await page.run(f"{item}.click()")


def field(label: str, within: str = ".request") -> str:
    """Return JavaScript for the input with that label."""
    labels = f"[...document.querySelectorAll('#view-client {within} .field label')]"
    return f"{labels}.find(each => each.textContent.startsWith({json.dumps(label)})).control"


async def fill(page: Page, label: str, value: str, within: str = ".request") -> None:
    await page.run(f"{field(label, within)}.value = {json.dumps(value)}")


async def send(page: Page) -> Any:
    """Send what is filled in: the text of the answer's first block."""
    await page.run(f"{SEND}.click()")
    await page.wait(f"{STATE}.textContent === 'Answered'")
    return await page.run(f"{ANSWER}.querySelector('pre')?.textContent")


async def test_a_tool_is_called_with_what_a_form_says(browser: Browser):
    async with client_page(browser, docs=Desk(), old=Curious(LEGACY, "roots/list")) as (page, here):
        await page.run(f"{inside('[type=search]')}.focus()")
        await page.type("BOO")
        assert await page.run("document.querySelectorAll('#view-client .item').length") == 1
        await pick(page, "tools", "docs__book")
        await page.run(f"{SEND}.click()")
        assert "required" in await page.run(f"{field('title')}.closest('.field').textContent")
        assert await page.run(f"document.activeElement === {field('title')}")
        json_switch = f"{inside('.request header input')}.click()"
        await page.run(json_switch)  # unfinished, too
        assert json.loads(await page.run(f"{field('Params')}.value"))["arguments"] == {"pages": 10}
        await page.run(json_switch)
        assert "tools/call" not in {row.first.method for row in here.traffic.ring.before(9)}
        for label, value in {
            "title": "Ulysses",
            "number": "12345678901234567890",
            "kind": "0",
            "lent": "1",
        }.items():
            await fill(page, label, value)
        await page.run(f"{field('days')}.options[0].selected = {field('days')}.options[2].selected = true")
        await fill(page, "tags", "[1")
        await page.run(f"{SEND}.click()")
        assert "not JSON" in await page.run(f"{field('tags')}.closest('.field').textContent")
        await fill(page, "tags", '["a", {"b": 1}]')
        arguments = {
            "title": "Ulysses", "pages": 10, "number": 12345678901234567890, "kind": "novel", "lent": False,
            "days": ["mon", "wed"], "tags": ["a", {"b": 1}],
        }  # fmt: skip
        assert json.loads(await send(page)) == arguments
        await page.run(json_switch)  # as JSON, and back
        assert json.loads(await page.run(f"{field('Params')}.value")) == {
            "name": "docs__book",
            "arguments": arguments,
        }
        await fill(page, "Params", '{"name": "docs__book", "arguments": {"title": "Emma", "kind": "poems"}}')
        await page.run(json_switch)
        assert (
            await page.run(f"{field('title')}.value + {field('kind')}.selectedOptions[0].text") == "Emmapoems"
        )
        assert json.loads(await send(page)) == {"title": "Emma", "kind": "poems"}
        await page.run(json_switch)
        await fill(page, "Params", '{"name": "docs__book", "arguments": {"title": "Emma", "shelf": 1}}')
        await page.run(json_switch)
        assert "cannot hold" in await page.run(f"{field('Params')}.closest('.field').textContent")
        assert json.loads(await send(page)) == {"title": "Emma", "shelf": 1}
        await page.run(f"{inside('.outcome button')}.click()")
        await page.wait("document.querySelector('#detail .body')")
        assert await page.run("document.activeElement.id") == "detail"
        assert "mcpmux-inspector" in await page.run("document.querySelector('#detail .facts').textContent")


async def test_what_runs_is_followed_and_cancelled(browser: Browser):
    worker = Worker()
    async with client_page(browser, docs=worker, more=Worker()) as (page, _):
        await pick(page, "tools", "docs__work")
        assert await send(page) == "done"
        notifications = await page.run(f"{inside('.heard')}.textContent")
        assert "warning" in notifications and '{"low":["ink"]}' in notifications
        await pick(page, "tools", "docs__fail")
        await send(page)
        assert "Error -32050" in await page.run(f"{ANSWER}.textContent")
        await pick(page, "tools", "docs__hang")
        assert await page.run(f"{CANCEL}.disabled && {inside('.heard')}.hidden")
        await page.run(f"{SEND}.click()")
        await page.wait(f"{inside('.outcome button')} !== null && {STATE}.textContent === 'Running …'")
        await page.run(f"{CANCEL}.click()")
        await page.wait(f"{STATE}.textContent === 'Cancelled' && {CANCEL}.disabled")
        with trio.fail_after(60):
            await worker.cancelled.wait()


async def test_a_person_answers_what_servers_ask(browser: Browser):
    async with client_page(browser, docs=Desk(), old=Curious(LEGACY, "elicitation/create")) as (page, _):
        await pick(page, "tools", "docs__ask")
        await page.run(f"{SEND}.click()")
        await page.wait(f"{inside('.questions')} !== null")
        assert await page.run(f"document.activeElement === {inside('.questions')}")
        link = inside(".questions a")
        assert (
            await page.run(f"{link}.textContent + {link}.rel")
            == "https://login.example/?a=1noopener noreferrer"
        )
        assert "A rhyme" in await page.run(f"{inside('.questions')}.textContent")
        answer = f"{inside('.questions .button.primary')}.click()"
        await page.run(answer)  # a name is required
        assert await page.run(f"{inside('.questions')} !== null")
        for label, value in {
            "name": "Ada",
            "age": "36",
            "text": "Ink, pink",
            "Roots": "file:///a\nfile:///b",
        }.items():
            await fill(page, label, value, ".questions")
        await page.run(f"{inside('fieldset:nth-of-type(2) [value=decline]')}.click()")
        assert await page.run(f"{field('born', '.questions')}.type") == "date"
        await fill(page, "born", "1815-12-10", ".questions")
        await fill(page, "mail", "no address", ".questions")
        await page.run(answer)
        assert await page.run(f"document.activeElement === {field('mail', '.questions')}")
        assert await page.run(f"{field('mail', '.questions')}.ariaInvalid") == "true"
        await fill(page, "mail", "ada@example.com", ".questions")
        await page.run(answer)
        await page.wait(f"{STATE}.textContent === 'Answered'")
        answers = json.loads(await page.run(f"{ANSWER}.querySelector('pre').textContent"))
        assert answers["who"] == {"action": "accept", "content": {
            "name": "Ada", "age": 36, "born": "1815-12-10", "mail": "ada@example.com",
        }}  # fmt: skip
        assert answers["visit"] == {"action": "decline"}
        assert answers["words"]["content"] == {"type": "text", "text": "Ink, pink"}
        assert answers["where"] == {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}
        assert await page.run("document.querySelectorAll('#view-client .outcome button').length") == 2
        await pick(page, "tools", "old__t")
        await page.run(f"{SEND}.click()")
        await page.wait(f"{inside('.questions [value=cancel]')} !== null")
        await page.run(f"{inside('.questions [value=cancel]')}.click()")
        await page.run(answer)
        await page.wait(f"{STATE}.textContent === 'Answered'")
        assert await page.run(f"{ANSWER}.querySelector('pre').textContent") == '[{"action": "cancel"}]'
        await page.run(f"{SEND}.click()")
        await page.wait(f"{inside('.questions')} !== null")
        await page.run(f"{inside('.questions .actions button:last-child')}.click()")
        await page.wait(f"{STATE}.textContent.startsWith('No answer was given')")


async def test_resources_templates_and_prompts_are_read_completed_and_followed(browser: Browser):
    desk = Desk()
    async with client_page(browser, docs=desk, more=Worker()) as (page, _):
        await pick(page, "resourceTemplates", "docs+memo:{+room}{?day}")
        await fill(page, "day", "a b")
        await page.run(f"{field('room')}.focus()")
        await page.type("x/y")
        await page.wait(f"{inside('datalist option')}?.value === 'x/y-1'")
        assert await send(page) == "memo:x/y?day=a%20b"
        await pick(page, "prompts", "docs__explain")
        await page.run(f"{field('topic')}.focus()")
        await page.type("ink")
        await page.wait(f"{inside('datalist option')}?.value === 'ink-0'")
        assert await send(page) == "Explain ink"
        await pick(page, "resources", "docs+memo:1")
        assert await send(page) == "memo:1"
        await page.run(f"{LISTEN}.click()")
        updates = "[...document.querySelectorAll('#view-client .heard')].at(-1).textContent"
        await page.wait(f"{updates}.includes('acknowledged')")
        await desk.update("memo:1")
        await page.wait(f"{updates}.includes('resources/updated')")
        await pick(page, "resources", "docs+memo:2")
        assert await page.run(f"{LISTEN}.textContent") == "Subscribe"
        await pick(page, "resources", "docs+memo:1")
        await page.run(f"{LISTEN}.click()")
        with trio.fail_after(60):
            await desk.is_free()


async def test_answers_are_shown_by_their_types_and_text_stays_text(browser: Browser):
    async with client_page(browser, docs=Desk(), more=Worker()) as (page, _):
        await pick(page, "tools", "docs__show")
        await page.run(f"{SEND}.click()")
        await page.wait(f"{ANSWER}?.querySelector('img').naturalWidth === 1")
        assert "Tool error" in await page.run(f"{ANSWER}.textContent")
        assert await page.run(f"{ANSWER}.querySelector('pre').textContent") == HOSTILE
        await page.run(f"{ANSWER}.querySelector('button').click()")
        await page.wait(f"{inside('.request h2')}.textContent === 'docs+memo:1' && {LISTEN}.offsetWidth > 0")
        await pick(page, "tools", "docs__" + HOSTILE_NAME)
        await settle(page)
        assert await page.run("window.hurt === undefined")
        assert await page.run("document.querySelectorAll('main script, main img, main iframe').length") == 0


async def test_upstreams_and_views_narrow_what_is_there(browser: Browser):
    views = {"few": View(include=(Selector(kind="tools", name="work"),))}
    async with client_page(browser, views, docs=Desk(), more=Worker()) as (page, here):
        names = "[...document.querySelectorAll('#view-client .item')].map(each => each.dataset.id).join()"
        await select(page, "Upstream", "more")
        assert await page.run(names) == "more__work,more__fail,more__hang"
        await select(page, "View", "few")
        await page.wait(f"{names} === 'more__work'")
        assert await page.run(f"{inside('[aria-label=Upstream]')}.value") == "more"
        await page.run(f"{inside('.item')}.click()")
        await send(page)
        assert {row.view for row in here.traffic.ring.before(99)} >= {"", "few"}


async def test_a_request_from_elsewhere_fills_the_form(browser: Browser):
    async with client_page(browser, docs=Desk(), more=Worker()) as (page, _):
        open_it = "import('/main.js').then(({openClient}) => openClient(%s))"
        await page.key("2")
        params: Json = {
            "name": "docs__book",
            "arguments": {"title": "Emma", "kind": "poems"},
            "_meta": {"a": 1},
        }
        await page.run(open_it % json.dumps({"method": "tools/call", "params": params}))
        await page.wait(f"{inside('.request h2')}.textContent === 'docs__book'")
        assert await page.run("!document.getElementById('view-client').hidden")
        assert await page.run(f"{field('title')}.value") == "Emma"
        await page.run(
            open_it % json.dumps({"method": "resources/read", "params": {"uri": "docs+memo:9/%7B%7D"}})
        )
        assert await page.run(f"{field('Method')}.value") == "resources/read"
        assert json.loads(await page.run(f"{field('Params')}.value")) == {"uri": "docs+memo:9/%7B%7D"}
        assert await send(page) == "memo:9/%7B%7D"


async def test_what_was_sent_can_be_sent_again_and_copied_as_a_command(browser: Browser):
    async with client_page(browser, docs=Desk(), more=Worker()) as (page, here):
        history = inside("[aria-label='Sent before']")
        assert await page.run(f"{history}.hidden")
        await pick(page, "prompts", "docs__explain")
        await fill(page, "topic", "ink")
        await send(page)
        await pick(page, "resources", "docs+memo:1")
        await page.run(f"{inside('[type=search]')}.focus()")
        await page.type("memo")
        await send(page)
        await page.run(f"{inside('.actions button:last-child')}.click()")
        command = f"{inside('.request .copyable pre')}?.textContent"
        await page.wait(f"/^mcpmux read http.* docs.memo:1$/.test({command})")
        await select(page, "Kind", "tools")
        assert await page.run(f"{inside('[type=search]')}.value") == ""  # each kind is searched for itself
        await page.open(here.announced)  # the tab of the browser keeps it
        await page.wait(f"{history}?.options.length === 3")
        labels = await page.run(f"[...{history}.options].map(each => each.text)")
        assert labels[1:] == ["resources/read docs+memo:1", 'prompts/get docs__explain {"topic":"ink"}']
        await page.run(f"{history}.value = '1'; {history}.dispatchEvent(new Event('change'))")
        await page.wait(f"{inside('.request h2')}.textContent === 'docs__explain'")
        assert await page.run(f"{field('topic')}.value") == "ink"
        await page.run(f"{inside('.actions button:last-child')}.click()")
        await page.wait(f"/^mcpmux prompt http.* docs__explain topic=ink$/.test({command})")
        await page.run(f"{field('topic')}.focus()")
        await page.type("s")
        await page.wait(f"{command} === undefined")  # it is another request now


async def test_it_is_readable_in_both_colours_narrow_windows_and_by_keyboard(browser: Browser):
    async with client_page(browser, docs=Desk(), more=Worker()) as (page, _):
        await page.run(f"{inside('.item')}.focus()")
        await page.key("ArrowDown")
        assert await page.run("document.activeElement.dataset.id") == "docs__ask"
        await page.key("ArrowUp")
        await page.key("Enter")
        await page.wait(f"{inside('.request h2')}.textContent === 'docs__book'")
        assert await page.run("document.activeElement.getAttribute('aria-selected')") == "true"
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await settle(page)
            ground = await page.run(luminance(inside(".detail"), "backgroundColor"))
            for place in (
                ".request h2",
                ".field label",
                ".field small",
                ".field .hint",
                ".wrong",
                ".count",
                "textarea",
            ):
                ink = await page.run(luminance(inside(place), "color"))
                light, dark = max(ink, ground), min(ink, ground)
                assert (light + 0.05) / (dark + 0.05) > 4.5, (scheme, place)
        unnamed = (
            "[...document.querySelectorAll('#view-client :is(input, select, textarea)')]"
            ".filter(each => !each.labels?.length && !each.ariaLabel).length"
        )
        assert await page.run(unnamed) == 0
        await page.resize(360, 700)
        await settle(page)
        for wide in ("document.documentElement", "document.body", inside(".detail"), inside(".items")):
            assert not await page.run(f"{wide}.scrollWidth > {wide}.clientWidth"), wide


CROWDED = """(() => {
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim();
    range.selectNodeContents(texts.currentNode);
    const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size;
    if (lines > 3 && text.length / lines < 4) found.push(text);
  }
  return found;
})()"""
"""Texts of which hardly a letter fits on a line."""


async def test_no_text_runs_down_a_page_letter_by_letter(browser: Browser):
    desk, name = Desk(), "simulate-research-query"
    about = {"description": "What it does, in many words. " * 20, "annotations": {"destructiveHint": True}}
    desk.lists["tools/list"] = ("tools", [{"name": name, "inputSchema": SCHEMA, **about}])
    async with client_page(
        browser, {"w": View(include=(Selector(upstream="documentation"),))}, documentation=desk
    ) as (page, _):
        await pick(page, "tools", f"documentation__{name}")
        await fill(page, "title", "Words")
        await page.run(f"{field('kind')}.value = 0")
        await send(page)
        await page.key("2")
        await page.wait(f"{ROWS} > 0")
        await page.run("document.querySelector('.row').click()")
        await page.wait("document.querySelector('.tree') !== null")
        for width in (1280, 900, 420):
            await page.resize(width, 700)
            for number in range(1, 8):
                await page.run(f"document.querySelectorAll('.top [role=tab]')[{number - 1}].click()")
                await settle(page)
                assert await page.run(CROWDED) == [], (width, number)


async def test_where_it_is_off_the_page_says_so(browser: Browser):
    async with opened(browser) as (page, _):
        await page.key("5")
        await page.wait(f"{inside('.problem')}.textContent.includes('[admin]')")
