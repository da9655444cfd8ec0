"""`mcpmux traffic replay`: captured requests sent again, and what is different now."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click

from mcpmux.app.mux import STOP_LADDER
from mcpmux.cli.console import tell
from mcpmux.cli.options import quiet_option
from mcpmux.cli.running import run
from mcpmux.cli.traffic_dialogue import files_argument, read_capture, read_redactor, redact_option
from mcpmux.cli.traffic_differences import show_report
from mcpmux.cli.wall import Mistake
from mcpmux.config import Http, Limits, Target, Tcp, WebSocket, parse_upstream_argument
from mcpmux.config.listener import is_loopback
from mcpmux.config.report import Unfit
from mcpmux.config.traffic import parse_path
from mcpmux.errors import ConfigError
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.traffic.reading.dialogue import Dialogue, SideName
from mcpmux.traffic.replay.difference import Pattern
from mcpmux.traffic.replay.replay import run_replay
from mcpmux.traffic.replay.report import Outcome, Report
from mcpmux.traffic.replay.settings import Settings, replayable, why_not

DIFFERENT = 1  # exit code


def read_speed(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """A factor, or `max`. Raises click.BadParameter."""
    if text == "max":
        return math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0.001 <= speed <= 1_000_000:
        raise click.BadParameter("expected a factor such as 1, 0.5 or 10, or `max`")
    return speed


@click.command()
@files_argument
@click.option("--to", "target", required=True, metavar="URL|COMMAND", help="The server to replay to.")
@click.option(
    "--leg",
    type=click.Choice(["client", "upstream"]),
    help="What clients sent to mcpmux, or what mcpmux sent to an upstream.  [default: client]",
)
@click.option(
    "--upstream", metavar="NAME", help="Which of the upstreams in the capture. Implies --leg upstream."
)
@click.option(
    "--speed",
    metavar="FACTOR|max",
    callback=read_speed,
    default="1",
    show_default=True,
    help="How many times as fast as it was, or `max`.",
)
@click.option("--with-tools", is_flag=True, help="Call tools, too, and send what may change something.")
@click.option(
    "--ignore",
    multiple=True,
    metavar="PATH",
    help="Do not compare this, such as result.structuredContent.time or ..ttlMs. May be repeated.",
)
@click.option("--allow-remote", is_flag=True, help="Replay to a server on another machine.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@click.option(
    "--sessions",
    type=click.IntRange(1, 1000),
    default=16,
    show_default=True,
    help="Clients at a time with --speed max.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every difference.")
@redact_option
@quiet_option
def replay(
    files: tuple[Path, ...],
    target: str,
    leg: SideName | None,
    upstream: str | None,
    speed: float,
    with_tools: bool,
    ignore: tuple[str, ...],
    allow_remote: bool,
    timeout: float,
    sessions: int,
    as_json: bool,
    redact: str | None,
) -> None:
    """Send captured requests again and compare the answers. Exit code 1 when they differ.

    The default is the folder mcpmux-capture. Each captured client gets a session of its own, in its revision.
    Cursors, states and ids of tasks are those of the new run; what a server asks is answered as it was then.
    Lists, reads, prompts, completions and subscriptions are sent; tools are called with --with-tools only.

    \b
    Examples:
      mcpmux traffic replay mcpmux-capture --to http://127.0.0.1:8484/mcp
      mcpmux traffic replay capture.jsonl --to "uvx mcp-server-time" --upstream time --with-tools
      mcpmux traffic replay capture.jsonl --to http://127.0.0.1:8484/mcp --speed max --ignore ..text
    """
    redactor = read_redactor(redact)
    settings = Settings(speed, with_tools, timeout, sessions, _read_paths(ignore))
    server = _read_target(target)
    if not allow_remote and not _is_local(server):
        raise Mistake(f"{target} is on another machine: --allow-remote sends the captured requests there")
    side: SideName = leg or ("upstream" if upstream else "client")
    if side == "client" and upstream is not None:
        raise Mistake("--upstream goes with --leg upstream")
    reading = read_capture(files, side, upstream)
    dialogues = reading.dialogues()
    _check_replayable(dialogues, with_tools)
    _tell_duration(dialogues, speed)
    report = Report(reading.left_out, redactor)
    run(_replay, dialogues, target, settings, report)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        show_report(report)
    if not report.clean:
        raise click.exceptions.Exit(DIFFERENT)


async def _replay(dialogues: Sequence[Dialogue], target: str, settings: Settings, report: Report) -> None:
    limits = Limits()
    opener = ChannelOpener(limits.max_message_bytes, limits.max_head_bytes, STOP_LADDER)
    await run_replay(dialogues, partial(opener.open, parse_upstream_argument(target)), settings, report)


def _read_paths(texts: Sequence[str]) -> list[Pattern]:
    try:
        return [parse_path(text) for text in texts]
    except Unfit as error:
        raise Mistake(f"--ignore: {error}") from None


def _read_target(text: str) -> Target:
    try:
        return parse_upstream_argument(text).target
    except ConfigError as error:
        problems = [problem.removeprefix("--upstream: ") for problem in error.problems]
        raise Mistake(f"--to: {'; '.join(problems)}") from None


def _is_local(target: Target) -> bool:
    """Whether it is on this machine: a program, a socket file, or at a loopback address."""
    if isinstance(target, Http | WebSocket):
        return is_loopback(urlsplit(target.url).hostname or "")
    return is_loopback(target.host) if isinstance(target, Tcp) else True


def _check_replayable(dialogues: Sequence[Dialogue], with_tools: bool) -> None:
    if any(replayable(dialogue, with_tools=with_tools) for dialogue in dialogues):
        return
    report = Report(Counter())
    for dialogue in dialogues:
        for turn in dialogue.turns():
            report.add(Outcome(dialogue.name, turn, "skipped", why_not(turn, with_tools=with_tools)))
    reasons = "; ".join(f"{count}: {reason}" for reason, count in report.reasons("skipped").most_common())
    raise Mistake(f"nothing in this capture can be replayed ({reasons})")


def _tell_duration(dialogues: Sequence[Dialogue], speed: float) -> None:
    last = max(step.moment for dialogue in dialogues for step in dialogue.steps)
    seconds = (last - dialogues[0].moment) / speed
    if seconds > 30:
        tell(f"this takes {seconds / 60:.1f} minutes, as it did; --speed max does not wait")
