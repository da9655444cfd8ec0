"""`mcpmux traffic mock`: a server that answers from a capture."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import click
import trio

from mcpmux.app.listeners import Serving, serve_http_listener, serve_stdio, serve_stream_listener
from mcpmux.cli.console import tell
from mcpmux.cli.options import DEFAULT_ADDRESS, LEVELS, parse_http, parse_listen
from mcpmux.cli.process import Mistake
from mcpmux.cli.serve import choose_listeners
from mcpmux.cli.traffic_replay import files_argument, read_capture, read_redactor, redact_option
from mcpmux.config import AnyListener, Limits, Listeners
from mcpmux.config.target import URL_STARTS
from mcpmux.logs import configure_logs
from mcpmux.traffic.reading.dialogue import Dialogue
from mcpmux.traffic.replay.captured_answers import CapturedAnswers
from mcpmux.traffic.replay.mock_server import open_mock
from mcpmux.traffic.replay.report import count_text

DRAIN_SECONDS = 2.0  # for what is being answered when we are asked to stop


@click.command()
@files_argument
@click.option(
    "--listen",
    metavar="HOST:PORT|URL",
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="Listen there for HTTP, or at ws:// or tcp://HOST:PORT or unix:PATH.",
)
@click.option("--stdio", is_flag=True, help="Serve the program that started mcpmux, on stdin and stdout.")
@click.option("--upstream", metavar="NAME", help="Stand for this upstream, and not for mcpmux itself.")
@click.option("--latency", is_flag=True, help="Take as long for everything as it took then.")
@click.option("--cycle", is_flag=True, help="After the last answer to a request give the first again.")
@redact_option
@click.option(
    "--log-level", type=LEVELS, default="warning", help="Least important events to write to stderr."
)
def mock(
    files: tuple[Path, ...],
    listen: str,
    stdio: bool,
    upstream: str | None,
    latency: bool,
    cycle: bool,
    redact: str | None,
    log_level: str,
) -> None:
    """Serve what was captured, as if the servers were there.

    The default is the folder mcpmux-capture. Clients of every revision are served. A request gets the answer
    to an equal one; one with other arguments that of another call of the same tool, prompt or completion.
    When it was asked several times the answers come in their order, then the last one again. What is not in
    the capture is refused, and logged.

    \b
    Examples:
      mcpmux traffic mock
      mcpmux traffic mock capture.jsonl --upstream docs --listen 127.0.0.1:9000
      mcpmux traffic mock capture.jsonl --stdio       for a host app that starts its servers itself
    """
    configure_logs(log_level, "console", read_redactor(redact))
    listeners = choose_listeners(Listeners(), stdio, [] if stdio else [_parse(listen)])
    reading = read_capture(files, "upstream" if upstream else "client", upstream)
    dialogues = reading.dialogues()
    _introduce(dialogues)
    trio.run(_serve, listeners, dialogues, latency, cycle)


def _parse(address: str) -> AnyListener:
    return parse_listen(address) if address.startswith(URL_STARTS) else parse_http(address, "--listen")


def _introduce(dialogues: Sequence[Dialogue]) -> None:
    """Say what cannot be served. Raises Mistake when that is everything."""
    answers = CapturedAnswers(dialogues)
    reasons = count_text(answers.unusable.items())
    if not answers.size:
        raise Mistake(f"nothing in this capture can be served: {reasons}")
    if answers.unusable:
        tell(f"not served: {reasons}")
    if answers.redacted:
        tell(f"{answers.redacted} answers are served with redacted values in them")


async def _serve(listeners: Listeners, dialogues: Sequence[Dialogue], latency: bool, cycle: bool) -> None:
    stopping = trio.Event()
    on_stderr = listeners.stdio  # then stdout belongs to the protocol
    async with open_mock(dialogues, latency=latency, cycle=cycle) as server, trio.open_nursery() as signals:
        serving = Serving(Limits(), server, stopping, lambda url: click.echo(url, err=on_stderr))
        signals.start_soon(_watch_signals, stopping, signals.cancel_scope)
        async with trio.open_nursery() as clients:
            for listener in listeners.http:
                await clients.start(serve_http_listener, listener, serving)
            for each in listeners.streams:
                await clients.start(serve_stream_listener, each, serving)
            if listeners.stdio:
                clients.start_soon(serve_stdio, serving)
            await stopping.wait()
            server.close()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        signals.cancel_scope.cancel()


async def _watch_signals(stopping: trio.Event, everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for _ in received:
            if stopping.is_set():
                everything.cancel(reason="second signal")
                return
            stopping.set()
