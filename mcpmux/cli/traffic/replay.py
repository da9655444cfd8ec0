"""`mcpmux traffic replay` and `mcpmux traffic mock`: send captured requests, serve captured responses."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import attrs
import click
import trio

from mcpmux.app.listeners import Serving, serve_listener, serve_stdio
from mcpmux.app.mux import STOP_LADDER
from mcpmux.app.serving import watch_signals
from mcpmux.bench.plan import is_remote
from mcpmux.channels.channel import Channel
from mcpmux.channels.opener import ChannelOpener
from mcpmux.cli.console import show_line, show_table, tell
from mcpmux.cli.options import (
    ADDRESS,
    DEFAULT_ADDRESS,
    PATH,
    Decorator,
    Parsed,
    json_option,
    log_level_option,
    quiet_option,
    stdio_option,
)
from mcpmux.cli.process import Mistake, run
from mcpmux.cli.serve import choose_listeners
from mcpmux.cli.traffic.source import CaptureFiles, read_redactor, redact_option
from mcpmux.config import AnyListener, Http, Limits, Listeners, Upstream, parse_upstream_argument
from mcpmux.config.model import Target, WebSocket
from mcpmux.config.report import InvalidValue
from mcpmux.config.traffic import parse_path
from mcpmux.format import counts_text, time_text
from mcpmux.printable import printable
from mcpmux.protocol.call import Hear
from mcpmux.protocol.principal import NARROWED
from mcpmux.traffic.reading.dialogue import Reading, SideName, why_not
from mcpmux.traffic.reading.stats import PERCENTILES
from mcpmux.traffic.record import cut
from mcpmux.traffic.replay.mapping import KINDS
from mcpmux.traffic.replay.mock import CapturedAnswers, Mock, open_mock
from mcpmux.traffic.replay.replay import run_replay
from mcpmux.traffic.replay.report import STATUSES, Outcome, Report, Status, show_path

files_argument: Decorator = click.argument("files", nargs=-1, metavar="[FILES|DIR]...", type=PATH)


def read_capture(files: Sequence[Path], side: SideName, upstream: str | None) -> Reading:
    """Return the dialogues of one leg, from `files` or the default folder, naming unreadable lines.

    Raises Mistake if there is no capture, no request of that leg, or `upstream` is not clear.
    """
    source = CaptureFiles(files)
    reading = Reading(side, upstream)
    for record in source.records():
        reading.add(record)
    where = " ".join(map(str, source.paths))
    if not reading.messages:
        raise Mistake(f"{where}: there is no message in this capture")
    if side == "upstream":
        names = ", ".join(sorted(reading.upstreams)) or "none"
        if upstream is None and len(reading.upstreams) > 1:
            raise Mistake(f"several upstreams are in the capture; choose one with --upstream: {names}")
        if upstream is not None and upstream not in reading.upstreams:
            raise Mistake(f"the upstream `{upstream}` is not in the capture; there are: {names}")
    if not reading.dialogues():
        what = "of a client" if side == "client" else f"to the upstream `{upstream or '?'}`"
        reasons = f" ({counts_text(reading.left_out.items())})" if reading.left_out else ""
        raise Mistake(f"{where}: there is no request {what} in this capture{reasons}")
    return reading


def list_reasons(reasons: Counter[Any]) -> str:
    """Return each reason with its count, the most frequent first."""
    return "; ".join(f"{count:,}: {reason}" for reason, count in reasons.most_common())


# The result of a replay, for people.

REQUESTS_SHOWN = 20
DIFFERENCES_SHOWN = 5  # of one request
REASONS_SHOWN = 10
VALUE_LENGTH = 60  # characters of a value in a difference
NOT_COMPARED: tuple[Status, ...] = ("skipped", "unchecked", "failed")
_RARE: tuple[Status, ...] = ("unasked", "unchecked")
_STYLES = {"different": "red", "failed": "red", "same": "green"}


def show_report(report: Report) -> None:
    """Print the results by method, and the differences."""
    total = report.counts()
    columns = [status for status in STATUSES if status not in _RARE or total[status]]
    headings = [status.upper() for status in columns]
    rows: list[list[Any]] = []
    for method, counts in report.by_method().items():
        rows.append([method, *((counts[s], _STYLES.get(s, "")) if counts[s] else None for s in columns)])
    show_table(["METHOD", *headings], rows, right_aligned=headings)
    if latency := report.latency():
        headings = [f"P{percent} {when}" for percent in PERCENTILES for when in ("THEN", "NOW")]
        rows = []
        for method, both in latency.items():
            pairs = zip(*(histogram.percentiles(PERCENTILES) for histogram in both), strict=True)
            rows.append([method, *map(time_text, chain.from_iterable(pairs))])
        click.echo()
        show_line("Latency")
        show_table(["METHOD", *headings], rows, right_aligned=headings)
    for status in NOT_COMPARED:
        reasons = report.reasons(status).most_common()
        for reason, count in reasons[:REASONS_SHOWN]:
            tell(f"{status}: {count}: {reason}")
        if len(reasons) > REASONS_SHOWN:
            tell(f"{status}: {len(reasons) - REASONS_SHOWN} more reasons; --json has them all")
    for (kind, method), count in report.questions.items():
        tell(f"question of the server: {count}: {method}: {KINDS[kind]}")
    if report.left_out:
        tell(f"not part of any request: {counts_text(report.left_out.items())}")
    _show_differences(report.having("different"))
    click.echo()
    click.echo(counts_text((status, total[status]) for status in STATUSES if total[status]))


def _show_differences(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes[:REQUESTS_SHOWN]:
        turn = outcome.captured
        click.echo()
        where = f"exchange {turn.exchange}, {outcome.client}" if turn.exchange else outcome.client
        show_line(f"{turn.method} {turn.target or ''}".rstrip() + f" ({where})")
        for difference in outcome.differences[:DIFFERENCES_SHOWN]:
            values = (difference.captured, difference.now)
            then, now = (cut(json.dumps(value, ensure_ascii=False), VALUE_LENGTH) for value in values)
            words = {"added": f"new: {now}", "removed": f"gone: {then}", "moved": f"order: {then} → {now}"}
            text = words.get(difference.kind, f"{then} → {now}")
            click.echo(printable(f"  {show_path(difference.path)}: {text}"))
        if len(outcome.differences) > DIFFERENCES_SHOWN:
            click.echo(f"  … {len(outcome.differences) - DIFFERENCES_SHOWN} more; --json has them all")
    if len(outcomes) > REQUESTS_SHOWN:
        click.echo(f"\n… {len(outcomes) - REQUESTS_SHOWN} more requests; --json has them all")


DIFFERENT = 1  # exit code
TOLD_SECONDS = 30  # a longer replay is announced with its duration


def read_speed(text: str) -> float:
    """Return a factor, or `max`, which is infinite. Raises InvalidValue."""
    if text == "max":
        return math.inf
    with suppress(ValueError):
        if 0.001 <= (speed := float(text.removesuffix("x"))) <= 1_000_000:
            return speed
    raise InvalidValue("expected a factor such as 1, 0.5 or 10, or `max`")


SERVER = Parsed("URL|COMMAND", parse_upstream_argument)


@click.command()
@files_argument
@click.option("--to", "server", required=True, type=SERVER, help="The server to replay to.")
@click.option(
    "--leg",
    type=click.Choice(["client", "upstream"]),
    help="Replay what clients sent to mcpmux, or what mcpmux sent to an upstream.  [default: client]",
)
@click.option("--upstream", metavar="NAME", help="The upstream in the capture. Implies --leg upstream.")
@click.option(
    "--speed",
    type=Parsed("FACTOR", read_speed),
    metavar="FACTOR|max",
    default="1",
    help="How many times as fast as it was captured, or `max` for no waiting.",
)
@click.option("--with-tools", is_flag=True, help="Also call tools and send what may change something.")
@click.option(
    "--ignore",
    multiple=True,
    type=Parsed("PATH", parse_path),
    help="Do not compare this member, such as result.structuredContent.time or ..ttlMs. May be repeated.",
)
@click.option("--allow-remote", is_flag=True, help="Replay to a server on another machine.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=60.0, help="Seconds to wait for a response."
)
@click.option(
    "--sessions",
    type=click.IntRange(1, 1000),
    default=16,
    help="Number of clients at the same time with --speed max.",
)
@json_option(help="Print one JSON object with every difference.")
@redact_option
@quiet_option
def replay(
    files: tuple[Path, ...],
    server: Upstream,
    leg: SideName | None,
    upstream: str | None,
    allow_remote: bool,
    as_json: bool,
    redact: str | None,
    **options: Any,
) -> None:
    """Send captured requests again and compare the responses. The exit code is 1 if they differ.

    The default is the folder mcpmux-capture. Each captured client gets its own session, in its revision.
    Cursors, states and task ids are those of the new run. Questions of a server get the captured answers.
    Lists, reads, prompts, completions and subscriptions are sent. Tools are called with --with-tools only.
    Clients that were in a view are sent to its path below the URL.

    \b
    Examples:
      mcpmux traffic replay mcpmux-capture --to http://127.0.0.1:8484/mcp
      mcpmux traffic replay capture.jsonl --to "uvx mcp-server-time" --upstream time --with-tools
      mcpmux traffic replay capture.jsonl --to http://127.0.0.1:8484/mcp --speed max --ignore ..text
    """
    redactor = read_redactor(redact)
    if not allow_remote and is_remote(server):
        where = server.target.display
        raise Mistake(f"{where} is on another machine: --allow-remote sends the captured requests there")
    side: SideName = leg or ("upstream" if upstream else "client")
    if side == "client" and upstream is not None:
        raise Mistake("--upstream goes with --leg upstream")
    reading = read_capture(files, side, upstream)
    dialogues = reading.dialogues()
    requests = (request for dialogue in dialogues for request in dialogue.requests())
    reasons = Counter(why_not(request, with_tools=options["with_tools"]) for request in requests)
    if None not in reasons:
        raise Mistake(f"nothing in this capture can be replayed ({list_reasons(reasons)})")
    last = max(step.at for dialogue in dialogues for step in dialogue.steps)
    seconds = (last - dialogues[0].at) / options["speed"]
    if seconds > TOLD_SECONDS:
        tell(f"this takes {seconds / 60:.1f} minutes, as it did; --speed max does not wait")
    report = Report(reading.left_out, redactor)
    limits = Limits()
    opener = ChannelOpener(limits, STOP_LADDER)
    views = {dialogue.view for dialogue in dialogues} - {""}
    if views and not isinstance(server.target, Http | WebSocket):
        names = ", ".join(map(printable, sorted(views)))
        tell(f"clients were in views, which only the URL of a server can choose: {names}")

    def open_channel(hear: Hear, view: str) -> AbstractAsyncContextManager[Channel]:
        return opener.open(attrs.evolve(server, target=at_view(server.target, view)), hear)

    run(partial(run_replay, **options), dialogues, open_channel, report)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        show_report(report)
    if not report.clean:
        raise click.exceptions.Exit(DIFFERENT)


def at_view(target: Target, view: str) -> Target:
    """Return the server at the path of a view, as records name views, if it is not there already."""
    if not view or not isinstance(target, Http | WebSocket):
        return target
    name, _, narrowing = view.partition(NARROWED)
    url = urlsplit(target.url)
    path = url.path.rstrip("/")
    if name and path.rpartition("/")[2] != name:
        path = f"{path}/{name}"
    query = "&".join(filter(None, (url.query, narrowing)))
    return attrs.evolve(target, url=urlunsplit(url._replace(path=path, query=query)))


DRAIN_SECONDS = 2.0  # to finish responses when asked to stop


@click.command()
@files_argument
@click.option(
    "--listen",
    type=ADDRESS,
    default=DEFAULT_ADDRESS,
    help="Listen for HTTP at this address, or at ws:// or tcp://HOST:PORT or unix:PATH.",
)
@stdio_option
@click.option("--upstream", metavar="NAME", help="Act as this upstream, and not as mcpmux itself.")
@click.option("--latency", is_flag=True, help="Answer as slowly as in the capture.")
@click.option("--cycle", is_flag=True, help="Repeat the responses to a request from the first one on.")
@redact_option
@log_level_option("warning")
def mock(
    files: tuple[Path, ...],
    listen: AnyListener,
    stdio: bool,
    upstream: str | None,
    latency: bool,
    cycle: bool,
    redact: str | None,
) -> None:
    """Serve captured responses as if the servers were there.

    The default is the folder mcpmux-capture. Clients of every revision are served. A request gets the
    response to an equal captured request. With other arguments it gets that of another call of the same tool,
    prompt or completion. Several captured responses come in their order, then the last one again. A request
    that is not in the capture is refused, and logged.

    \b
    Examples:
      mcpmux traffic mock
      mcpmux traffic mock capture.jsonl --upstream docs --listen 127.0.0.1:9000
      mcpmux traffic mock capture.jsonl --stdio       for a host app that starts its servers itself
    """
    read_redactor(redact)  # the log is redacted by it from now on
    listeners = choose_listeners(Listeners(), stdio, [] if stdio else [listen])
    reading = read_capture(files, "upstream" if upstream else "client", upstream)
    answers = CapturedAnswers(reading.dialogues(), cycle=cycle)
    reasons = counts_text(answers.unusable.items())
    if not answers.requests:
        raise Mistake(f"nothing in this capture can be served: {reasons}")
    if answers.unusable:
        tell(f"not served: {reasons}")
    if answers.redacted:
        tell(f"{answers.redacted} answers are served with redacted values in them")
    trio.run(_serve_mock, listeners, open_mock(answers, latency=latency))


async def _serve_mock(listeners: Listeners, opening: AbstractAsyncContextManager[Mock]) -> None:
    stopping = trio.Event()
    announce = partial(click.echo, err=listeners.stdio)  # stdout then belongs to the protocol
    async with opening as server, trio.open_nursery() as signals:
        serving = Serving(Limits(), server, stopping, announce)
        signals.start_soon(watch_signals, stopping, signals.cancel_scope)
        async with trio.open_nursery() as clients:
            for listener in listeners.bound:
                await clients.start(serve_listener, listener, serving)
            if listeners.stdio:
                clients.start_soon(serve_stdio, serving)
            await stopping.wait()
            server.close()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        signals.cancel_scope.cancel()
