"""Real SDK clients that stay connected, subscribe, and report their notifications. See `push_client.py`."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

from tests.real.mux import START_SECONDS, Json
from tests.real.sdk import Client

PROGRAM = Path(__file__).parent / "push_client.py"
UPDATED = "notifications/resources/updated"
LIST_CHANGED = "notifications/resources/list_changed"
HEARD_LIMIT = 10_000  # messages of one client; a test reads a few
HEAR_SECONDS = 90.0  # for an update to arrive, a restart of its server included


class Listener:
    """A real client, as a process that has subscribed to these URIs."""

    def __init__(self, client: Client, url: str, uris: list[str]) -> None:
        self._uris = uris
        target = json.dumps({"url": url, "mode": client.mode, "uris": self._uris})
        self._process = subprocess.Popen(
            [client.python, str(PROGRAM), target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.Queue[Json | None] = queue.Queue(HEARD_LIMIT)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def expect_subscribed(self) -> None:
        """Wait until all its subscriptions are acknowledged."""
        deadline = time.monotonic() + START_SECONDS
        while "agreed" not in (document := self._next(deadline)):
            pass  # the servers have just appeared, of which it is notified
        assert document["agreed"] == self._uris

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(json.loads(line))
        self._said.put(None)

    def _next(self, deadline: float) -> Json:
        try:
            document = self._said.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError("nothing was heard in time") from None
        assert document is not None, "the client has ended"
        return document

    def forget(self) -> None:
        """Drop the notifications received so far."""
        while not self._said.empty():
            self._said.get()

    def hear(self, method: str, uri: str | None = None) -> None:
        """Wait for a notification."""
        deadline = time.monotonic() + HEAR_SECONDS
        while self._next(deadline) != {"method": method, "uri": uri}:
            pass

    def read(self, uri: str) -> str:
        """Have it read a resource: the text."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{uri}\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + HEAR_SECONDS
        while (document := self._next(deadline)).get("read") != uri:
            pass
        return str(document["text"])
