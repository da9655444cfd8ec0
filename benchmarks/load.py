"""A closed-loop load generator for one core: as soon as an answer is in and checked, the next request leaves.

Promises: every answer is checked; the first wrong one ends the run with an error; time and count are bounded
(but one exchange is measured at least, so that a busy machine gives a bad number instead of none).
The report is one JSON object on standard output. One process, no tasks: readiness by epoll, one receive and
one send for each exchange, so that it is not what is measured.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import ssl
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import click
import msgspec

from benchmarks.connection import SILENCE_SECONDS, Connection, WrongAnswer
from benchmarks.question import FIRST_ID, LAST_ID, Client, Headers, Question, Subject, shown, stdio_question
from benchmarks.sse import StreamAsker
from benchmarks.upstream import LEGACY, MODERN, TEXT_BYTES, item_uri
from mcpmux.protocol import method as m

CONNECTION_LIMIT = 512
PIPE_BYTES = 64 * 1024  # what a pipe holds; the allocator maps pages anew for each larger buffer
AWAKE_SECONDS = 0.005  # without any answer, until a load generator that stays awake sleeps after all
PIPE_WINDOW = 64  # requests that a pipe surely holds, so that writing them never waits


class Tally(msgspec.Struct):
    """What one run has shown. Times in seconds.

    `exchanges` within `seconds` are those after the warm-up; `all_exchanges` and `cpu_seconds` (the load
    generator's own) are of the whole run.
    """

    exchanges: int
    seconds: float
    all_exchanges: int
    cpu_seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Exchanges a second."""
        return self.exchanges / self.seconds


class Clock:
    """When an exchange began and how long each took, once the warm-up is over."""

    def __init__(self, seconds: float, warm_up: float) -> None:
        self.now = time.perf_counter()
        self._from = self.now + warm_up
        self._until = self._from + seconds
        self._latencies: list[float] = []
        self.count = 0

    def __repr__(self) -> str:
        return f"<Clock {self.count} exchanges>"

    @property
    def running(self) -> bool:
        """Whether there is time, and an id, for another exchange. One at least is measured, however late."""
        in_time = self.now < self._until or not self._latencies
        return in_time and FIRST_ID + self.count < LAST_ID - CONNECTION_LIMIT

    def note(self, began: float) -> None:
        """An exchange that began then is over now."""
        self.now = time.perf_counter()
        self.count += 1
        if self.now >= self._from:
            self._latencies.append(self.now - began)

    def tally(self) -> Tally:
        """The sum of it."""
        latencies = sorted(self._latencies)
        seconds = self.now - self._from
        p50, p99 = percentile(latencies, 50), percentile(latencies, 99)
        return Tally(len(latencies), seconds, self.count, time.process_time(), p50, p99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the (sorted) values do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


class Asker:
    """One connection in the loop: its questions, asked in turn, and when which id was sent."""

    __slots__ = ("_began", "_connection", "_number", "_question", "_questions")

    def __init__(self, client: Client, questions: Sequence[Question]) -> None:
        self._connection = client.connection
        self._questions = itertools.cycle(questions)
        self._question = questions[0]
        self._number = 0
        self._began = 0.0

    def ask(self, number: int, now: float) -> None:
        """Send the next question."""
        self._question = next(self._questions)
        self._number = number
        self._began = now
        self._connection.send(self._question.encode(number))

    def take(self) -> float | None:
        """Receive once; when that completes the answer, the time at which it was asked for."""
        answer = self._connection.receive()
        if answer is None:
            return None
        if answer.status != 200:
            raise WrongAnswer(f"status {answer.status}: {shown(answer.body)}")
        self._question.check(self._number, answer.body)
        return self._began


def drive(askers: Mapping[int, Asker | StreamAsker], clock: Clock, *, awake: bool = False) -> Tally:
    """Keep every asker (by file descriptor) busy until the clock stops; `awake`: without sleeping."""
    number = FIRST_ID
    with select.epoll() as poller:
        for fd, asker in askers.items():
            poller.register(fd, select.EPOLLIN)
            asker.ask(number := number + 1, clock.now)
        while clock.running:
            ready = (awake and _poll_awake(poller)) or poller.poll(SILENCE_SECONDS)
            if not ready:
                raise WrongAnswer(f"nothing came for {SILENCE_SECONDS} s")
            for fd, _ in ready:
                asker = askers[fd]
                began = asker.take()
                if began is not None:
                    clock.note(began)
                    asker.ask(number := number + 1, clock.now)
    return clock.tally()


def _poll_awake(poller: select.epoll) -> list[tuple[int, int]]:
    """What is ready soon. Whoever else wants the core has it meanwhile."""
    until = time.perf_counter() + AWAKE_SECONDS
    while not (ready := poller.poll(0)) and time.perf_counter() < until:
        os.sched_yield()
    return ready


def drive_process(command: Sequence[str], question: Question, window: int, clock: Clock) -> Tally:
    """Keep `window` requests in flight at a server that is started here and answers in order."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            return drive_pipe(process.stdout.fileno(), process.stdin.fileno(), question, window, clock)
        finally:
            process.kill()


def drive_pipe(source: int, target: int, question: Question, window: int, clock: Clock) -> Tally:
    """The loop of `drive` over two pipes: each burst of answers is followed by one of requests."""
    number = FIRST_ID
    in_flight: deque[tuple[int, float]] = deque()
    rest = b""
    answers: list[bytes] = [b""] * window  # as if so many had just been answered
    while clock.running:
        numbers = range(number, number + len(answers))
        number += len(answers)
        in_flight += [(each, clock.now) for each in numbers]
        os.write(target, b"".join(question.encode(each) for each in numbers))
        data = os.read(source, PIPE_BYTES)
        if not data:
            raise WrongAnswer("the server has ended")
        *answers, rest = (rest + data).split(b"\n")
        for answer in answers:
            expected, began = in_flight.popleft()
            question.check(expected, answer)
            clock.note(began)
    return clock.tally()


def connect(era: str, url: str, trust: ssl.SSLContext | None = None, headers: Headers = ()) -> Client:
    """A client of its own connection."""
    return Client(Connection(url, trust), era, headers)


def connect_askers(
    urls: Sequence[str],
    dial: Callable[[str], Client],
    subjects: Sequence[Subject],
    method: str,
    size: int,
    connections: int,
    sessions: int = 0,
) -> dict[int, Asker]:
    """Open the connections, each to the next URL and with its share of the subjects, at least one.

    `sessions`: how many sessions they have together, at a single URL; 0: each its own. Sessions are opened
    before the connections: where that takes long, a server gives up connections that nobody uses.
    """
    askers = {}
    opened = [open_session(dial(urls[index % len(urls)])) for index in range(sessions or connections)]
    for index in range(connections):
        client = dial(urls[index % len(urls)])
        client.join(opened[index % len(opened)])
        mine = share(subjects, index, connections)
        questions = [client.question(method, each.name, size, each.answered) for each in mine]
        askers[client.connection.socket.fileno()] = Asker(client, questions)
    return askers


def open_session(client: Client) -> Client:
    """Open a session that others can join. The client's own connection is closed."""
    client.open()
    client.connection.close()
    return client


def connect_streams(
    url: str, subjects: Sequence[Subject], method: str, size: int, connections: int
) -> dict[int, StreamAsker]:
    """The same over HTTP+SSE, where each has a session of its own."""
    shares = [share(subjects, index, connections) for index in range(connections)]
    askers = [StreamAsker(url, method, mine, size) for mine in shares]
    return {asker.fd: asker for asker in askers}


def share(subjects: Sequence[Subject], index: int, connections: int) -> list[Subject]:
    """What one of the connections asks for, in turn: every subject is somebody's, and nobody has none."""
    turns = range(index, max(len(subjects), index + 1), connections)
    return [subjects[turn % len(subjects)] for turn in turns]


@click.command()
@click.argument("targets", nargs=-1, required=True)
@click.option("--era", type=click.Choice([MODERN, LEGACY]), default=MODERN, show_default=True)
@click.option("--method", type=click.Choice([m.RESOURCES_READ, m.TOOLS_CALL]), default=m.RESOURCES_READ)
@click.option("--subject", "subjects", multiple=True, help="URI to read, or tool to call. May be repeated.")
@click.option(
    "--answered",
    multiple=True,
    help="URI in the answer, for each subject; the subject itself if there is none.",
)
@click.option("--size", type=click.IntRange(1), default=TEXT_BYTES, help="Characters of text in each answer.")
@click.option("--connections", type=click.IntRange(1, CONNECTION_LIMIT), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.01, 600), default=3, show_default=True)
@click.option(
    "--warm-up", type=click.FloatRange(0, 60), default=0.3, help="Seconds before, which do not count."
)
@click.option(
    "--sessions", type=click.IntRange(0), default=0, help="That the connections share; 0: one each. Legacy."
)
@click.option(
    "--awake",
    is_flag=True,
    help="Wait without sleeping: who sends over loopback pays for waking who sleeps, and over a network not.",
)
@click.option("--ca", type=click.Path(exists=True), help="PEM file to trust: TARGETS speak HTTPS.")
@click.option("--header", "headers", multiple=True, help='"NAME: VALUE" in each request. May be repeated.')
@click.option("--sse", is_flag=True, help="TARGETS is the stream of an HTTP+SSE server, 2024-11-05.")
@click.option("--stdio", is_flag=True, help="TARGETS are the command line of a server to start.")
def main(
    targets: tuple[str, ...],
    era: str,
    method: str,
    subjects: tuple[str, ...],
    answered: tuple[str, ...],
    size: int,
    connections: int,
    seconds: float,
    warm_up: float,
    sessions: int,
    awake: bool,
    ca: str | None,
    headers: tuple[str, ...],
    sse: bool,
    stdio: bool,
) -> None:
    """Ask TARGETS (URLs) as fast as they answer, and print what that showed as JSON."""
    names = subjects or (item_uri(0),)
    chosen = [Subject(*each) for each in zip(names, answered or names, strict=True)]
    if stdio:
        question = stdio_question(names[0], size)
        tally = drive_process(targets, question, min(connections, PIPE_WINDOW), Clock(seconds, warm_up))
    elif sse:
        streams = connect_streams(targets[0], chosen, method, size, connections)
        tally = drive(streams, Clock(seconds, warm_up), awake=awake)
    else:
        trust = None if ca is None else ssl.create_default_context(cafile=ca)
        fields = [(name, value) for name, _, value in (each.partition(": ") for each in headers)]
        dial = partial(connect, era, trust=trust, headers=fields)
        askers = connect_askers(targets, dial, chosen, method, size, connections, sessions)
        tally = drive(askers, Clock(seconds, warm_up), awake=awake)
    click.echo(msgspec.json.encode(tally))


if __name__ == "__main__":
    main()
