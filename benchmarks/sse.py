"""A client of HTTP+SSE, revision 2024-11-05: answers come in one stream, requests go over another connection.

Some that are compared speak nothing newer to their clients. One request is in flight at a time.
"""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Sequence
from urllib.parse import urljoin

from benchmarks.connection import SILENCE_SECONDS, Connection, WrongAnswer
from benchmarks.events import Event, Events, Unchunking
from benchmarks.question import Client, Question, Subject, decode_response, encode_initialize, shown
from benchmarks.upstream import LEGACY
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import encode_notification

RECEIVE_BYTES = 64 * 1024
ACCEPTED = (200, 202)


class Stream:
    """The stream of a session, from which its events are taken."""

    def __init__(self, url: str) -> None:
        opened = Connection(url)
        self.socket: socket.socket = opened.socket
        self._head = b""
        self._unchunking: Unchunking | None = None
        self._events = Events()
        self._ready: deque[Event] = deque()
        fields = f"Host: {opened.authority}\r\nAccept: text/event-stream\r\n"
        self.socket.sendall(f"GET {opened.path} HTTP/1.1\r\n{fields}\r\n".encode())

    def __repr__(self) -> str:
        return f"<Stream {len(self._ready)} events ready>"

    def receive(self) -> list[Event]:
        """Receive once: the events that are complete then. Raises WrongAnswer."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            raise WrongAnswer(f"nothing came for {SILENCE_SECONDS} s") from None
        if not data:
            raise WrongAnswer("the stream ended")
        if not self._head:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end or not head.startswith(b"HTTP/1.1 200"):
                raise WrongAnswer(f"no stream: {shown(head)}")
            self._head = head
            self._unchunking = Unchunking() if b"transfer-encoding: chunked" in head.lower() else None
        return self._events.feed(self._unchunking.feed(data) if self._unchunking else data)

    def next(self) -> Event:
        """Wait for one event."""
        while not self._ready:
            self._ready.extend(self.receive())
        return self._ready.popleft()


class StreamAsker:
    """One session in the loop: the same to `load.drive` as an asker of Streamable HTTP."""

    __slots__ = ("_began", "_number", "_post", "_posted", "_question", "_questions", "_stream", "fd")

    def __init__(self, url: str, method: str, subjects: Sequence[Subject], size: int) -> None:
        """Open the session. Raises WrongAnswer."""
        self._stream = Stream(url)
        self.fd = self._stream.socket.fileno()
        endpoint = self._stream.next()
        if endpoint.name != "endpoint":
            raise WrongAnswer(f"the first event is {endpoint}")
        self._post = Connection(urljoin(url, endpoint.data.decode()))
        self._posted = False
        client = Client(self._post, LEGACY)
        self._send(client.frame(encode_initialize()))
        decode_response(self._stream.next().data)
        self._send(client.frame(encode_notification(m.INITIALIZED)))
        questions = [client.question(method, each.name, size, each.answered) for each in subjects]
        self._questions = itertools.cycle(questions)
        self._question: Question = questions[0]
        self._number = 0
        self._began = 0.0

    def ask(self, number: int, now: float) -> None:
        """Send the next question."""
        self._question = next(self._questions)
        self._number = number
        self._began = now
        self._send(self._question.encode(number))

    def take(self) -> float | None:
        """Receive once; when that completes the answer, the time at which it was asked for."""
        answers = [event.data for event in self._stream.receive() if not _is_notification(event.data)]
        if not answers:
            return None
        if len(answers) > 1:
            raise WrongAnswer(f"{len(answers)} answers to one question: {shown(answers[0])}")
        self._question.check(self._number, answers[0])
        return self._began

    def _send(self, request: bytes) -> None:
        """Post, when the response to the post before is in: it usually is, for its answer is."""
        if self._posted:
            while (accepted := self._post.receive()) is None:
                pass
            if accepted.status not in ACCEPTED:
                raise WrongAnswer(f"status {accepted.status}: {shown(accepted.body)}")
        self._posted = True
        self._post.send(request)


def _is_notification(data: bytes) -> bool:
    return b'"method"' in data[:60] or data.startswith(b":")
