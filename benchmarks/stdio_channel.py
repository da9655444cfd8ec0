"""mcpmux's channel to a stdio upstream and nothing else of it: tasks that ask, one pipe, one server.

Prints a Tally, whose CPU time is that of this process from the first question to the last answer: what mcpmux
would use for its side of the pipe.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import click
import msgspec
import trio

from benchmarks.connection import WrongAnswer
from benchmarks.load import Clock, Tally
from benchmarks.question import CLIENT
from benchmarks.upstream import item_uri
from mcpmux.channels.duplex_channel import DuplexChannel
from mcpmux.channels.opener import answer_server
from mcpmux.channels.opening import open_duplex_channel
from mcpmux.logs import configure_logs
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, VERSION, Call, Event
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.revisions import NEWEST
from mcpmux.transports.process import StopLadder, open_process
from mcpmux.transports.waiting import Deadline

MESSAGE_BYTES = 2**20
PATIENCE = 60.0  # seconds for an answer, as mcpmux gives by default
STOP = StopLadder(1.0, 1.0)


class Asking:
    """What is asked again and again, and what was answered first, as everything must be."""

    def __init__(self, link: DuplexChannel, clock: Clock) -> None:
        meta = {VERSION: raw(NEWEST), CLIENT_INFO: raw(CLIENT), CLIENT_CAPABILITIES: raw({})}
        self._call = Call(m.RESOURCES_READ, {"uri": raw(item_uri(0))}, meta)
        self._link = link
        self._clock = clock
        self._contents: Raw | None = None

    def __repr__(self) -> str:
        return f"<Asking {self._link!r}>"

    async def run(self) -> None:
        """Ask as long as the clock runs."""
        while self._clock.running:
            began = time.perf_counter()
            result = await self._link.exchange(self._call, _unheard, Deadline(PATIENCE, 0.0, PATIENCE))
            contents = result["contents"]
            if self._contents is None:
                self._contents = contents
            elif contents != self._contents:
                raise WrongAnswer(f"another content than was asked for: {bytes(contents)[:500]!r}")
            self._clock.note(began)


async def _unheard(_event: Event) -> None:
    pass


async def drive_channel(core: int, in_flight: int, seconds: float, warm_up: float) -> Tally:
    """Keep so many exchanges in flight with a server on `core`."""
    args = ["-m", "benchmarks.upstream", "--stdio", f"--core={core}"]
    say = partial(click.echo, err=True)
    async with (
        open_process(
            sys.executable, args, {}, None, stop=STOP, on_stderr_line=say, max_message_bytes=MESSAGE_BYTES
        ) as process,
        open_duplex_channel(process, answer_server, lambda _: None, objects=False) as link,
    ):
        await Asking(link, Clock(0, 0)).run()  # the server has started
        used = time.process_time()
        clock = Clock(seconds, warm_up)
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(Asking(link, clock).run)
        return msgspec.structs.replace(clock.tally(), cpu_seconds=time.process_time() - used)


@click.command()
@click.option("--server-core", type=int, required=True, help="The processor core of the server.")
@click.option("--in-flight", type=click.IntRange(1, 512), default=64, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.01, 600), default=3, show_default=True)
@click.option("--warm-up", type=click.FloatRange(0, 60), default=0.3, show_default=True)
def main(server_core: int, in_flight: int, seconds: float, warm_up: float) -> None:
    """Ask a stdio server through mcpmux's channel to it, and print what that showed as JSON."""
    configure_logs("error", "console")
    click.echo(msgspec.json.encode(trio.run(drive_channel, server_core, in_flight, seconds, warm_up)))


if __name__ == "__main__":
    main()
