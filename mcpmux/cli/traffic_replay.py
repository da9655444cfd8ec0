"""`mcpmux traffic replay`: captured requests sent again, and what is different now."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.text import Text

from mcpmux.app.mux import STOP_LADDER
from mcpmux.cli.console import make_table, show_heading, show_table, tell
from mcpmux.cli.options import load_config, quiet_option
from mcpmux.cli.process import Mistake, run
from mcpmux.cli.traffic_source import FOLDER, TOLD_LIMIT, format_ms, missing, no_files
from mcpmux.config import Http, Limits, Target, Tcp, WebSocket, parse_upstream_argument
from mcpmux.config.listener import is_loopback
from mcpmux.config.report import Unfit
from mcpmux.config.traffic import parse_path
from mcpmux.printable import printable
from mcpmux.runtime.upstreams.channels import ChannelOpener
from mcpmux.traffic.capture.files import BadLine, expand_paths, read_files
from mcpmux.traffic.reading.dialogue import Dialogue, Reading, SideName
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.replay.difference import Difference, Pattern, show_path
from mcpmux.traffic.replay.questions import KINDS
from mcpmux.traffic.replay.replay import run_replay
from mcpmux.traffic.replay.report import PERCENTILES, STATUSES, Outcome, Report, Status, count_text
from mcpmux.traffic.replay.settings import Settings, replayable, why_not

# What `traffic replay` and `traffic mock` have in common: a capture, and whose requests in it are meant.

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

files_argument: Decorator = click.argument(
    "files", nargs=-1, metavar="[FILES|DIR]...", type=click.Path(path_type=Path)
)

redact_option: Decorator = click.option(
    "--redact", metavar="CONFIG", help="Keep what its [redaction] names out of all that is told, too."
)


def read_redactor(config: str | None) -> Redactor:
    """What `--redact` names besides what mcpmux knows as secret. Raises ConfigError."""
    return Redactor(load_config(config).redaction if config is not None else None)


def read_capture(files: tuple[Path, ...], side: SideName, upstream: str | None) -> Reading:
    """The dialogues of a leg, of the usual folder without any `files`.

    What cannot be read is told and the rest is read.
    Raises Mistake: there is nothing to read, or nothing of that leg, or several upstreams could be meant.
    """
    files = files or (Path(FOLDER),)
    bad: list[BadLine] = []
    reading = Reading(side, upstream)
    number = 0
    for record in read_files(_find(files), bad.append):
        number += record.kind != "start"
        reading.add(record)
    for line in bad[:TOLD_LIMIT]:
        tell(f"not read: {line}")
    if len(bad) > TOLD_LIMIT:
        tell(f"not read: {len(bad) - TOLD_LIMIT} more lines")
    where = " ".join(map(str, files))
    if not number:
        raise Mistake(f"{where}: there is no message in this capture")
    if side == "upstream":
        _check_upstream(reading, upstream)
    if not any(True for _ in _all_turns(reading.dialogues())):
        what = "of a client" if side == "client" else f"to the upstream `{upstream or '?'}`"
        reasons = ", ".join(f"{count} {reason}" for reason, count in reading.left_out.items())
        raise Mistake(
            f"{where}: there is no request {what} in this capture" + (f" ({reasons})" if reasons else "")
        )
    return reading


def _find(files: tuple[Path, ...]) -> list[Path]:
    for path in files:
        if not path.exists():
            raise Mistake(missing(path))
    try:
        found = expand_paths(files)
    except OSError as error:
        raise Mistake(f"{error.filename}: {(error.strerror or str(error)).lower()}") from None
    if not found:
        raise Mistake(no_files(files[0]))
    return found


def _check_upstream(reading: Reading, upstream: str | None) -> None:
    names = ", ".join(sorted(reading.upstreams)) or "none"
    if upstream is None and len(reading.upstreams) > 1:
        raise Mistake(f"several upstreams are in the capture; choose one with --upstream: {names}")
    if upstream is not None and upstream not in reading.upstreams:
        raise Mistake(f"the upstream `{upstream}` is not in the capture; there are: {names}")


def _all_turns(dialogues: list[Dialogue]) -> Any:
    return (turn for dialogue in dialogues for turn in dialogue.turns())


# What a replay found, for people.

REQUESTS_SHOWN = 20
DIFFERENCES_SHOWN = 5  # of one request
REASONS_SHOWN = 10
VALUE_LENGTH = 60  # characters of a value in a difference
NOT_COMPARED: tuple[Status, ...] = ("skipped", "unchecked", "failed")
_RARE: tuple[Status, ...] = ("unasked", "unchecked")
_STYLES = {"different": "red", "failed": "red", "same": "green"}


def show_report(report: Report) -> None:
    """The tables, and each difference."""
    total = report.counts()
    columns = [status for status in STATUSES if status not in _RARE or total[status]]
    headings = [status.upper() for status in columns]
    table = make_table(["METHOD", *headings], frozenset(headings))
    for method, counts in report.by_method().items():
        cells = (Text(str(counts[s] or "-"), style=_STYLES.get(s, "") if counts[s] else "") for s in columns)
        table.add_row(printable(method), *cells)
    show_table(table)
    _show_latency(report)
    _show_reasons(report)
    _show_differences(report.different())
    click.echo()
    click.echo(count_text((status, total[status]) for status in STATUSES if total[status]))


def _show_latency(report: Report) -> None:
    latency = report.latency()
    if not latency:
        return
    names = list(PERCENTILES)
    headings = ["METHOD", *(f"{name.upper()} {when}" for name in names for when in ("THEN", "NOW"))]
    table = make_table(headings, frozenset(headings[1:]))
    for method, both in latency.items():
        cells = [
            "-" if (value := histogram.percentile(PERCENTILES[name])) is None else format_ms(value)
            for name in names
            for histogram in both
        ]
        table.add_row(printable(method), *cells)
    click.echo()
    show_heading("Latency")
    show_table(table)


def _show_reasons(report: Report) -> None:
    for status in NOT_COMPARED:
        reasons = report.reasons(status).most_common()
        for reason, count in reasons[:REASONS_SHOWN]:
            tell(f"{status}: {count}: {reason}")
        if len(reasons) > REASONS_SHOWN:
            tell(f"{status}: {len(reasons) - REASONS_SHOWN} more reasons; --json has them all")
    for (kind, method), count in report.questions.items():
        tell(f"question of the server: {count}: {method}: {KINDS[kind]}")
    if report.left_out:
        tell(f"not part of any request: {count_text(report.left_out.items())}")


def _show_differences(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes[:REQUESTS_SHOWN]:
        turn = outcome.turn
        click.echo()
        where = f"exchange {turn.exchange}, {outcome.client}" if turn.exchange else outcome.client
        show_heading(f"{turn.method} {turn.target or ''}".rstrip() + f" ({where})")
        for difference in outcome.differences[:DIFFERENCES_SHOWN]:
            click.echo(printable(f"  {_line(difference)}"))
        if len(outcome.differences) > DIFFERENCES_SHOWN:
            click.echo(f"  … {len(outcome.differences) - DIFFERENCES_SHOWN} more; --json has them all")
    if len(outcomes) > REQUESTS_SHOWN:
        click.echo(f"\n… {len(outcomes) - REQUESTS_SHOWN} more requests; --json has them all")


def _line(difference: Difference) -> str:
    path = show_path(difference.path)
    if difference.kind == "added":
        return f"{path}: new: {_short(difference.now)}"
    if difference.kind == "removed":
        return f"{path}: gone: {_short(difference.captured)}"
    word = "order: " if difference.kind == "moved" else ""
    return f"{path}: {word}{_short(difference.captured)} → {_short(difference.now)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_LENGTH else text[: VALUE_LENGTH - 1] + "…"


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
    except Unfit as mistake:
        raise Mistake(f"--to: {mistake}") from None


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
