"""A served mcpmux with an audit log, asked by many clients until it is killed."""

from __future__ import annotations

import json
import random
import signal
import threading
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.peers.revision import MODERN, make_fields, make_request
from tests.process.running import WAIT_SECONDS, Running

CLIENTS = 8
ANSWERS = 200  # at most before a kill


class Load:
    """Clients that ask without end; `answered` has the trace ids of the whole answers."""

    def __init__(self, url: str, uri: str, dice: random.Random) -> None:
        self._url, self._uri = urlsplit(url), uri
        self._ids = [dice.randbytes(8).hex() for _ in range(CLIENTS)]
        self._enough = threading.Semaphore(0)
        self.answered: list[str] = []
        self.wrong: list[Any] = []
        self._threads = [threading.Thread(target=self._ask, args=[name]) for name in self._ids]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_for(self, answers: int) -> None:
        """Wait for this many more answers."""
        for _ in range(answers):
            assert self._enough.acquire(timeout=WAIT_SECONDS), "too few answers in time"

    def join(self) -> None:
        """Wait for the end of all threads, which comes once there are no answers any more."""
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def _ask(self, name: str) -> None:
        connection = HTTPConnection(self._url.hostname or "", self._url.port, timeout=WAIT_SECONDS)
        number = 0
        while True:
            number += 1
            trace = f"{name}{number:016x}"
            try:
                answer = self._ask_one(connection, trace)
            except (OSError, HTTPException, ValueError):  # killed
                connection.close()
                return
            if "result" not in answer:
                self.wrong.append(answer)
            self.answered.append(trace)
            self._enough.release()

    def _ask_one(self, connection: HTTPConnection, trace: str) -> Any:
        meta = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        read = make_request("resources/read", {"uri": self._uri, "_meta": meta})
        connection.request("POST", self._url.path, json.dumps(read), make_fields(MODERN, read))
        return json.loads(connection.getresponse().read())


def kill_under_load(config: Path, uri: str, dice: random.Random) -> list[str]:
    """Kill an mcpmux under load. Return the trace ids of the requests that it answered before."""
    with Running("serve", str(config), "--http", "127.0.0.1:0", "--log-level", "error") as mux:
        load = Load(mux.line().strip(), uri, dice)
        load.start()
        load.wait_for(dice.randint(1, ANSWERS))
        assert mux.stop(signal.SIGKILL) == -signal.SIGKILL
        load.join()
    assert load.wrong == []
    return load.answered
