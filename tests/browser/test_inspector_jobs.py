"""Five jobs that people do with the inspector, and the number of clicks and keys that each takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.browser.browser import Browser, Page, open_page
from tests.browser.test_inspector_page import settle
from tests.peers.revision import Json
from tests.process.running import WAIT_SECONDS, Running
from tests.process.test_workers import META, begin_modern

SERVER = """
import json, sys, time
print("index of 12 documents loaded", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    answer = {"result": {}}
    if method == "initialize":
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "docs", "version": "1"}}}
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("find", "build", "open")]
        answer = {"result": {"tools": tools}}
    elif method == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": "found"}]}}
        if params["name"] == "build":
            time.sleep(0.5)
        if params["name"] == "open":
            problem = {"message": "No such document", "data": {"hint": "ask for plan.md"}}
            answer = {"error": {"code": -32602, **problem}}
    if number is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": number, **answer}), flush=True)
"""
MANY = 60  # calls after those that people look for, which are out of sight then

TAB = "[role=tab]"
ROW = ".row"
Step = tuple[str, ...]
"""`click SELECTOR TEXT`: on the first such element with this text; `type TEXT`; `press KEY`."""

JOBS: dict[str, tuple[int, tuple[Step, ...], str, str]] = {
    "find the slow call": (
        2,
        (("click", TAB, "Exchanges"), ("click", ".columns button", "Duration")),
        f"{ROW}[aria-posinset='1']",
        "depth: 7",
    ),
    "what did the model send": (
        3,
        (
            ("click", TAB, "Latency"),
            ("click", ".groups button", "docs__build"),
            ("click", ROW, "docs__build"),
        ),
        "#view-detail-request",
        "depth: 7",
    ),
    "why did it fail": (
        2,
        (("click", ".card button", "1 of "), ("click", ROW, "docs__open")),
        "#view-detail-answer",
        'hint: "ask for plan.md"',
    ),
    "who called this": (
        2,
        (("click", TAB, "Latency"), ("click", ".groups button", "docs__build")),
        f"{ROW} .client",
        "night-build",
    ),
    "what does the server print": (
        1,
        (("click", "summary", "Output (1 line)"),),
        ".output",
        "index of 12 documents loaded",
    ),
}
"""The job -> the clicks and keys that it may take, what a person does, and where the answer is in sight."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run mcpmux with traffic, and return the URL of its inspector."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "docs.py").write_text(SERVER)
    file = folder / "mcpmux.toml"
    file.write_text(
        f"[upstreams.docs]\ncommand = {json.dumps(sys.executable)}\n"
        f"args = {json.dumps([str(folder / 'docs.py')])}\n"
        '[listeners]\nhttp = ["127.0.0.1:0"]\n[admin]\nport = 0\n'
    )
    with Running("serve", str(file)) as mux:
        url = mux.line().strip()
        inspector = mux.line(containing="token=").strip()
        mux.line("stderr", containing="ready")
        make_calls(url)
        yield inspector


def make_calls(url: str) -> None:
    at = urlsplit(url)
    calls: dict[str, list[tuple[str, Json]]] = {
        "night-build": [("build", {"depth": 7})],
        "chat-app": [
            ("open", {"path": "plan.txt"}),
            *(("find", {"query": f"word {n}"}) for n in range(MANY)),
        ],
    }
    for client, of_client in calls.items():
        connection = HTTPConnection(at.netloc, timeout=WAIT_SECONDS)
        meta = META | {"io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"}}
        for tool, arguments in of_client:
            params = {"name": f"docs__{tool}", "arguments": arguments, "_meta": meta}
            begin_modern(connection, "tools/call", params, f"docs__{tool}").read()
        connection.close()


class Person:
    """Somebody at a page, who acts on what is in sight. `actions`: the clicks and keys so far."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.actions = 0

    async def do(self, step: Step) -> None:
        match step:
            case ("click", selector, text):
                x, y = await self.see(selector, text)
                for kind in ("mousePressed", "mouseReleased"):
                    await self.page.send(
                        "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, x=x, y=y
                    )
                self.actions += 1
            case ("type", text):
                for letter in text:
                    await self.page.key(letter)
                self.actions += len(text)
            case ("press", key):
                await self.page.key(key)
                self.actions += 1

    async def see(self, selector: str, text: str) -> tuple[float, float]:
        """Wait until an element with a text is in sight and under no other one; return its middle."""
        middle = f"""(() => {{
            for (const each of document.querySelectorAll({json.dumps(selector)})) {{
                if (!each.innerText?.includes({json.dumps(text)})) continue;
                const {{ x, y, width, height }} = each.getBoundingClientRect();
                const [left, top] = [x + width / 2, y + height / 2];
                if (each.contains(document.elementFromPoint(left, top))) return [left, top];
            }}
            return null;
        }})()"""
        await self.page.wait(middle)
        await settle(self.page)
        x, y = await self.page.run(middle)
        return x, y


@pytest.mark.parametrize("job", JOBS)
async def test_a_job_takes_few_clicks_and_keys(browser: Browser, address: str, job: str):
    most, steps, where, answer = JOBS[job]
    async with open_page(browser) as page:
        await page.resize(1280, 800)
        await page.open(address)
        await page.wait("document.getElementById('link')?.dataset.state === 'live'")
        person = Person(page)
        for step in steps:
            await person.do(step)
        await person.see(where, answer)
        assert person.actions <= most
