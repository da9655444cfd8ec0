"""Writers of an audit log that are killed: `python -m tests.traffic.audit_killed FOLDER ROUNDS SEED`.

Each round a fresh process writes to the log as fast as it can, and is killed soon after a random number of
exchanges were answered. In every second round the system takes a few bytes a time of what is written, so that
kills hit the middle of records. Prints what is wrong with the log after each round, and how many answers
there were.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import trio

from mcpmux.config import Audit as AuditSettings
from mcpmux.logs import configure_logs
from mcpmux.traffic.audit.chain import verify
from mcpmux.traffic.audit.opening import open_audit
from mcpmux.traffic.recorder import Recorder
from tests.traffic.audit_world import call_of, fields, leg_of, read_log

CLIENTS = 20  # that ask at the same time
ANSWERS = 150  # at most before a kill
DELAY_SECONDS = 0.005  # some groups of records
PIECE_BYTES = 16  # longer than an answer's line


async def write(directory: Path, run: str, out: int) -> None:
    """Exchanges without end; each answer is a line on `out`."""
    async with open_audit(AuditSettings(directory=str(directory), rotate_size=8192), run) as audit:
        recorder = Recorder([], [audit], trio.current_time)

        async def ask(first: int) -> None:
            number = first
            while True:
                await recorder.admit(leg_of(), number, call_of("resources/read", uri="memo:" + "x" * 300))
                await recorder.ended(number, fields({"contents": []}))
                os.write(out, b"%d\n" % number)
                number += CLIENTS

        async with trio.open_nursery() as nursery:
            for first in range(CLIENTS):
                nursery.start_soon(ask, first)


def write_in_pieces() -> None:
    """From now on the system is as lazy as it may be."""
    write_all = os.write
    os.write = lambda file, data: write_all(file, bytes(memoryview(data)[:PIECE_BYTES]))


def kill_one(directory: Path, run: str, answers: int, delay: float, *, in_pieces: bool) -> list[int]:
    """The numbers of the exchanges that were answered before it was dead."""
    source, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        if in_pieces:
            write_in_pieces()
        trio.run(write, directory, run, out)
        os._exit(1)
    os.close(out)
    with os.fdopen(source, "rb") as answered:
        numbers = [int(answered.readline()) for _ in range(answers)]
        time.sleep(delay)  # so that it hits any moment, not the one after an answer
        os.kill(pid, signal.SIGKILL)
        numbers += [int(line) for line in answered.read().splitlines()]
    os.waitpid(pid, 0)
    return numbers


def main(directory: Path, rounds: int, seed: int) -> None:
    configure_logs("error", "console")
    dice = random.Random(seed)
    expected = set()
    for number in range(rounds):
        run = f"run{number}"
        answers, delay = dice.randint(1, ANSWERS), dice.uniform(0, DELAY_SECONDS)
        answered = kill_one(directory, run, answers, delay, in_pieces=number % 2 == 1)
        expected |= {(run, each) for each in answered}
        verdict = verify(directory, None)
        if verdict.fault is not None:
            print(f"round {number}: {verdict.fault}")
    missing = expected - {(record["run"], record.get("exchange")) for record in read_log(directory)}
    if missing:
        print(f"answered, but not in the log: {sorted(missing)}")
    print(f"{len(expected)} answers")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
