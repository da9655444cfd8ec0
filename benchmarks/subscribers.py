"""Many subscribers of one resource in one process: an open stream each, and no task for any of them.

Promises: every stream is open before anything is measured, and every change is counted at every subscriber
before the next one is caused, so no notifications are combined. Modern ones listen with
`subscriptions/listen`; legacy ones have a session, subscribe in it, and open its GET stream. Prints `ready`
once all streams are open, then one JSON object; with `--idle` it only keeps them open until it is ended.

`mcpmux bench --push` takes many times as long for a notification as mcpmux: its time would be measured.
"""

from __future__ import annotations

import select
import signal
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

import click
import msgspec

from benchmarks.asking import SILENCE_SECONDS, Client
from benchmarks.notifier import CHANGE_PATH
from benchmarks.process import MeasurementFailed
from benchmarks.upstream import LEGACY, MODERN
from mcpmux.cli.process import may_open
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw

RECEIVE_BYTES = 16 * 1024
SPARE_FILES = 100  # besides one socket for each subscriber
WARM_UP_CHANGES = 3


class Delivery(msgspec.Struct):
    """Times of changes in seconds, in order: each until the last subscriber had it.

    `seconds` is how long all of them took, one after the other.
    """

    changes: list[float]
    subscribers: int
    seconds: float


class Subscriber:
    """One open stream. `heard` counts the changes that have come."""

    __slots__ = ("_needle", "_tail", "heard", "socket")

    def __init__(self, url: str, uri: str, era: str) -> None:
        """Connect, subscribe to `uri`, and wait until the stream is open."""
        client = Client(url, era).open()
        self.socket = client.socket
        self.heard = 0
        self._tail = b""
        self._needle = b'"uri":"%b"' % uri.encode()
        if era == MODERN:
            wish = {"resourceSubscriptions": [uri]} if uri else {"toolsListChanged": True}
            client.post(m.LISTEN, {"notifications": raw(wish)})
            self._await(b"acknowledged")
        else:
            if uri:
                client.post(m.RESOURCES_SUBSCRIBE, {"uri": raw(uri)})
                client.receive()
            client.get_stream()
            self._await(b": open")
        self.socket.setblocking(False)

    def __repr__(self) -> str:
        return f"<Subscriber {self.heard} heard>"

    def receive(self) -> int:
        """Receive once; how many changes have come with it."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise MeasurementFailed("a stream has ended")
        data = self._tail + data
        count = data.count(self._needle)
        self.heard += count
        self._tail = data[data.rfind(b"\n") + 1 :]
        return count

    def _await(self, sign: bytes) -> None:
        data = b""
        while sign not in data:
            part = self.socket.recv(RECEIVE_BYTES)
            data += part
            if not part or b'"error"' in data:
                raise MeasurementFailed(f"not subscribed: {data[:500]!r}")


def measure(subscribers: list[Subscriber], upstream: str, changes: int) -> Delivery:
    """Cause change after change, each when every subscriber has heard of the one before."""
    trigger = HTTPConnection(urlsplit(upstream).netloc, timeout=SILENCE_SECONDS)
    by_fd = {subscriber.socket.fileno(): subscriber for subscriber in subscribers}
    durations = []
    with select.epoll() as poller:
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        started = time.monotonic()
        for number in range(changes + WARM_UP_CHANGES):
            if number == WARM_UP_CHANGES:
                started = time.monotonic()
            trigger.request("POST", CHANGE_PATH)
            began = int(trigger.getresponse().read())
            waiting = len(by_fd)
            while waiting > 0:
                ready = poller.poll(SILENCE_SECONDS)
                if not ready:
                    raise MeasurementFailed(f"{waiting} subscribers did not hear of a change")
                for fd, _ in ready:
                    waiting -= by_fd[fd].receive()
            durations.append((time.monotonic_ns() - began) / 1e9)
        seconds = time.monotonic() - started
    if any(subscriber.heard != changes + WARM_UP_CHANGES for subscriber in subscribers):
        raise MeasurementFailed("a subscriber has not heard of every change once")
    return Delivery(durations[WARM_UP_CHANGES:], len(subscribers), seconds)


@click.command()
@click.argument("url")
@click.argument("upstream", required=False)
@click.option("--uri", default="", help="What they subscribe to, as clients see it; nothing by default.")
@click.option("--era", type=click.Choice([MODERN, LEGACY]), default=MODERN, show_default=True)
@click.option("--count", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@click.option("--changes", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--idle", is_flag=True, help="Cause no change.")
def main(url: str, upstream: str | None, uri: str, era: str, count: int, changes: int, *, idle: bool) -> None:
    """Subscribe at URL; cause changes at the notifier UPSTREAM and wait for each."""
    may_open(count + SPARE_FILES)
    subscribers = [Subscriber(url, uri, era) for _ in range(count)]
    click.echo("ready")
    if idle or upstream is None:
        signal.pause()
        return
    report = measure(subscribers, upstream, changes)
    click.echo(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
