"""A headless Chromium, driven by its DevTools protocol over a WebSocket."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

Json = dict[str, Any]

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--remote-debugging-port=0",
)
START_SECONDS = 90
WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.02
MESSAGE_BYTES = 64 * 2**20


def find_chromium() -> str:
    """Return the browser's program; without one the test is skipped, and fails in CI."""
    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    reason = f"none of {', '.join(NAMES)} is installed"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Page:
    """One tab. `requests`: the URLs of all that it has asked for; `problems`: errors on its console."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self.session: Json = {}  # which tab is meant; without it the browser
        self._numbers = 0
        self._replies: dict[int, trio.MemorySendChannel[Json]] = {}
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def read(self) -> None:
        """Take what the browser says, until cancelled."""
        while True:
            message = json.loads(await self._socket.get_message())
            if "id" in message:
                self._replies.pop(message["id"]).send_nowait(message)
                continue
            params = message.get("params", {})
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.problems.append(params["exceptionDetails"].get("exception", {}).get("description", "?"))
            elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.problems.append(params["entry"]["text"])

    async def send(self, method: str, **params: Any) -> Json:
        """Send one command, and return its result."""
        self._numbers += 1
        send, receive = trio.open_memory_channel[Json](1)
        self._replies[self._numbers] = send
        message = {"id": self._numbers, "method": method, "params": params, **self.session}
        await self._socket.send_message(json.dumps(message))
        with trio.fail_after(WAIT_SECONDS):
            reply = await receive.receive()
        assert "error" not in reply, (method, reply["error"])
        result: Json = reply["result"]
        return result

    async def open(self, url: str) -> None:
        """Go there."""
        await self.send("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        reply = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def wait(self, expression: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until an expression is true."""
        deadline = trio.current_time() + seconds
        while True:
            if await self.run(f"Boolean({expression})"):
                return
            late = trio.current_time() > deadline
            assert not late, f"never true: {expression}; the console says {self.problems}"
            await trio.sleep(LOOK_SECONDS)

    async def key(self, key: str) -> None:
        """Press a key: a name such as `ArrowDown`, or a character."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9, "End": 35, "Home": 36}
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        common = {"key": key, "windowsVirtualKeyCode": code, "code": key if len(key) > 1 else ""}
        await self.send(
            "Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {})
        )
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        await self.send("Input.insertText", text=text)

    async def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def resize(self, width: int, height: int, scale: float = 1) -> None:
        """Set the size of the window, in CSS pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=False,
        )  # fmt: skip

    async def picture(self, path: Path) -> None:
        """Save a screenshot, as PNG."""
        shot = await self.send("Page.captureScreenshot", format="png")
        await trio.Path(path).write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """A running browser with its profile in `directory`. Plain, so that it can be shared by tests."""

    def __init__(self, directory: Path) -> None:
        command = [find_chromium(), *FLAGS, f"--user-data-dir={directory}", "about:blank"]
        with (directory / "stderr").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._directory = directory

    async def endpoint(self) -> str:
        """Wait for the start of Chromium, and return the URL of its DevTools endpoint."""
        written = trio.Path(self._directory / "DevToolsActivePort")
        with trio.move_on_after(START_SECONDS):
            while True:
                assert self._process.poll() is None, self._said()
                lines = (await written.read_text()).split() if await written.exists() else []
                if len(lines) == 2:
                    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
                await trio.sleep(LOOK_SECONDS)
        raise AssertionError(self._said())

    def _said(self) -> str:
        return f"chromium: {(self._directory / 'stderr').read_text(errors='replace')}"

    def stop(self) -> None:
        """End it with its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_SECONDS)


@asynccontextmanager
async def open_page(browser: Browser) -> AsyncIterator[Page]:
    """Open a tab in a browser context of its own."""
    endpoint = await browser.endpoint()
    async with (
        open_websocket_url(endpoint, max_message_size=MESSAGE_BYTES) as socket,
        trio.open_nursery() as nursery,
    ):
        page = Page(socket)
        nursery.start_soon(page.read)
        context = (await page.send("Target.createBrowserContext"))["browserContextId"]
        created = await page.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await page.send("Target.attachToTarget", targetId=created["targetId"], flatten=True)
        page.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.send(f"{domain}.enable")
        try:
            yield page
        finally:
            page.session = {}
            with trio.move_on_after(WAIT_SECONDS, shield=True):
                await page.send("Target.disposeBrowserContext", browserContextId=context)
            nursery.cancel_scope.cancel()
