"""A client that has started mcpmux and speaks to it over its standard input and output.

Prints a Tally, whose CPU time is that of mcpmux, from the first question to the last answer. Answers may come
in any order; each is compared with its question.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import msgspec

from benchmarks.bench import QUIET
from benchmarks.connection import WrongAnswer
from benchmarks.load import PIPE_BYTES, Clock, Tally
from benchmarks.process import cpu_seconds_of, measured_folder
from benchmarks.question import FIRST_ID, Question, shown, stdio_question
from benchmarks.upstream import TEXT_BYTES

STOP_SECONDS = 10

_ID = re.compile(rb'"id":(\d+)')


class Conversation:
    """Questions in flight over two pipes."""

    def __init__(self, source: int, target: int, question: Question) -> None:
        self._source = source
        self._target = target
        self._question = question
        self._number = FIRST_ID
        self._rest = b""

    def __repr__(self) -> str:
        return f"<Conversation after {self._number - FIRST_ID} questions>"

    def drive(self, window: int, clock: Clock) -> Tally:
        """Keep `window` questions in flight until the clock stops, then take what is still to come."""
        in_flight: dict[int, float] = {}
        while clock.running or in_flight:
            if clock.running:
                self._ask(window - len(in_flight), in_flight, clock.now)
            for answer in self._receive():
                found = _ID.search(answer)
                began = in_flight.pop(int(found[1]), None) if found else None
                if found is None or began is None:
                    raise WrongAnswer(f"nothing that was asked: {shown(answer)}")
                self._question.check(int(found[1]), answer)
                clock.note(began)
        return clock.tally()

    def _ask(self, count: int, in_flight: dict[int, float], now: float) -> None:
        numbers = range(self._number, self._number + count)
        self._number += count
        in_flight.update(dict.fromkeys(numbers, now))
        os.write(self._target, b"".join(self._question.encode(each) for each in numbers))

    def _receive(self) -> list[bytes]:
        data = os.read(self._source, PIPE_BYTES)
        if not data:
            raise WrongAnswer("mcpmux has ended")
        *answers, self._rest = (self._rest + data).split(b"\n")
        return answers


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False))
@click.argument("uri")
@click.option("--mux-core", type=int, required=True, help="The processor core of mcpmux.")
@click.option("--in-flight", type=click.IntRange(1, 64), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.01, 600), default=3, show_default=True)
@click.option("--warm-up", type=click.FloatRange(0, 60), default=0.3, show_default=True)
def main(config: str, uri: str, mux_core: int, in_flight: int, seconds: float, warm_up: float) -> None:
    """Start mcpmux with CONFIG, ask it for URI over standard input, and print what that showed as JSON."""
    command = [sys.executable, "-m", "mcpmux", "serve", config, "--stdio", *QUIET]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=measured_folder()) as mux:
        os.sched_setaffinity(mux.pid, {mux_core})
        assert mux.stdin is not None
        assert mux.stdout is not None
        try:
            talk = Conversation(mux.stdout.fileno(), mux.stdin.fileno(), stdio_question(uri, TEXT_BYTES))
            talk.drive(1, Clock(0, 0))
            used = cpu_seconds_of(mux.pid)
            tally = talk.drive(in_flight, Clock(seconds, warm_up))
            used = cpu_seconds_of(mux.pid) - used
        finally:
            mux.terminate()
            try:
                mux.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                mux.kill()
    click.echo(msgspec.json.encode(msgspec.structs.replace(tally, cpu_seconds=used)))


if __name__ == "__main__":
    main()
