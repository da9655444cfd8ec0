"""`mcpmux traffic show`: one exchange over both legs, or one message."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice

import click
import msgspec

from mcpmux.cli.console import tell, wants_colour
from mcpmux.cli.options import quiet_option
from mcpmux.cli.process import Mistake
from mcpmux.cli.traffic_source import (
    Painter,
    Where,
    format_ms,
    format_size,
    json_line,
    message_line,
    show_lines,
    summary_line,
)
from mcpmux.printable import printable
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.traffic.reading.summary import Passage, Summarizer, passages
from mcpmux.traffic.record import Record

MESSAGES_LIMIT = 1000  # of an exchange; a listen may have any number
BYTES_LIMIT = 64 * 2**20  # of their bodies
BODY_LINES = 400  # of a body that is shown or compared, unless all is asked for
CONTEXT_LINES = 2
ENVELOPE = ("jsonrpc", "id", "method", "params", "result", "error")

_CUT = "… more; --full shows it"


@click.command()
@click.argument("number", required=False, metavar="[EXCHANGE]")
@click.argument("where", nargs=-1, metavar="[FILES|DIR]...")
@click.option("--message", "seq", type=click.IntRange(1), metavar="SEQ", help="Only this message, whole.")
@click.option("--run", metavar="RUN", help="Of this run of mcpmux; otherwise of the newest that has it.")
@click.option("--full", is_flag=True, help="Long bodies, too.")
@click.option("--json", "as_json", is_flag=True, help="The messages as they are in the capture, a line each.")
@quiet_option
def show(
    number: str | None,
    where: tuple[str, ...],
    seq: int | None,
    run: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Show one exchange: when each message passed, and what was changed in it.

    Each message that mcpmux sent on is compared with what it had received; lines with - are how it came,
    lines with + how it went on. What is the same is left out. Numbers of exchanges are those that tail and
    grep show; --json prints numbers of messages as `seq`.

    \b
    Examples:
      mcpmux traffic show 17
      mcpmux traffic show 17 captures/ --full
      mcpmux traffic show --message 102 captures/
    """
    if seq is not None and number is not None:
        where = (number, *where)  # with --message, what comes first is a file
    elif seq is None and number is None:
        raise Mistake("name an exchange by its number, or a message by --message SEQ")
    exchange = _read(number) if seq is None else 0
    source = Where(where)
    if source.filter:
        raise Mistake("show takes files and folders only; `mcpmux traffic grep` knows filters")
    found = find_message(source, seq, run) if seq is not None else find_exchange(source, exchange, run)
    if as_json:
        for record in found:
            show_lines([json_line(record)])
    elif seq is not None:
        show_lines(list(message_lines(found[0], Painter(colour=wants_colour()), full=True)))
    else:
        show_lines(list(exchange_lines(found, Painter(colour=wants_colour()), full=full)))
    source.check_read()


def _read(number: str | None) -> int:
    text = (number or "").removeprefix("#")
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Mistake(f"expected the number of an exchange, such as 17, got {printable(number or '')!r}")
    return int(text)


def find_message(source: Where, seq: int, run: str | None) -> list[Record]:
    """The newest message of that number, alone in a list. Raises ClickException."""
    found = None
    for record in source.everything():
        if record.seq == seq and record.kind != "start" and run in (None, record.run):
            found = record
    if found is None:
        raise click.ClickException(f"there is no message {seq}{_of_run(run)} in what was read")
    return [found]


def find_exchange(source: Where, number: int, run: str | None) -> list[Record]:
    """The messages of an exchange, in order, of one run. Raises ClickException."""
    found: list[Record] = []
    others: set[str] = set()
    left_out = size = 0
    for record in source.everything():
        if record.exchange != number or run not in (None, record.run):
            continue
        if found and found[-1].run != record.run:
            others.add(found[-1].run)
            found, left_out, size = [], 0, 0
        if len(found) >= MESSAGES_LIMIT or size > BYTES_LIMIT:
            left_out += 1
            continue
        size += record.size
        found.append(record)
    if not found:
        raise click.ClickException(f"there is no exchange {number}{_of_run(run)} in what was read")
    if left_out:
        tell(f"{left_out} more messages of this exchange are left out; grep exchange={number} shows them")
    if others:
        tell(f"other runs have an exchange {number}, too: --run {', '.join(sorted(others))}")
    return found


def _of_run(run: str | None) -> str:
    return "" if run is None else f" of run {printable(run)}"


def exchange_lines(records: list[Record], paint: Painter, *, full: bool) -> Iterator[str]:
    """The exchange in a line, its timeline, and what was changed."""
    summarizer = Summarizer()
    ended = [summary for record in records for summary in summarizer.add(record)] + summarizer.rest()
    yield from (summary_line(summary, paint) for summary in ended[:1])
    first = records[0]
    yield paint(f"run {printable(first.run)}, {len(records)} messages", dim=True)
    yield ""
    for record in records:
        after = format_ms((record.at - first.at) * 1000)
        line = message_line(record, paint)
        yield f"{'+' + after:>11}  {line}  {paint(f'message {record.seq}', dim=True)}"
    for passage in passages(records):
        yield ""
        yield from passage_lines(passage, paint, full=full)


def passage_lines(passage: Passage, paint: Painter, *, full: bool) -> Iterator[str]:
    """A message that went on, compared with how it came."""
    after = passage.after
    if len(passage.before) > 1:
        seqs = ", ".join(str(record.seq) for record in passage.before)
        peers = ", ".join(printable(record.peer or "?") for record in passage.before)
        yield paint(f"message {after.seq} merges {seqs} of {peers}", bold=True)
        yield f"  --message {after.seq} shows it"
        return
    before = passage.before[0]
    where = f"{printable(before.peer or '?')} → {printable(after.peer or '?')}"
    what = f"{printable(after.method or after.kind)} {_word(after)}"
    yield paint(f"{where}: {what}, messages {before.seq} and {after.seq}", bold=True)
    if before.size == after.size and body_of(before) == body_of(after):
        yield "  not changed" if body_of(before) is not None else "  without bodies"
        return
    came, went = _body_lines(_ordered(before), full), _body_lines(_ordered(after), full)
    lines = difflib.unified_diff(came, went, n=CONTEXT_LINES, lineterm="")
    shown = False
    for line in islice(lines, 2, None):
        if not line.startswith("@@"):
            shown = True
            yield "  " + paint(line, **_diff_style(line))
        elif shown:
            yield "  …"
    if not shown and not full and len(came) > BODY_LINES:
        yield f"  the same in the first {BODY_LINES} lines; --full compares all"
    elif not shown:
        yield f"  the same but for order and spelling ({format_size(before.size)}, {format_size(after.size)})"


def _ordered(record: Record) -> Record:
    """With the members of the envelope in one order: where `jsonrpc` stands is nobody's change."""
    if record.message is None:
        return record
    try:
        members = msgspec.json.decode(record.message, type=Fields)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return record
    others = [name for name in members if name not in ENVELOPE]
    names = [*(name for name in ENVELOPE if name in members), *others]
    message = Raw(msgspec.json.encode({name: members[name] for name in names}))
    return msgspec.structs.replace(record, message=message)


def _word(record: Record) -> str:
    return {"result": "answered", "error": "answered"}.get(record.kind, record.kind)


def _diff_style(line: str) -> dict[str, str]:
    return {"-": {"fg": "red"}, "+": {"fg": "green"}}.get(line[:1], {})


def message_lines(record: Record, paint: Painter, *, full: bool) -> Iterator[str]:
    """One message with its body."""
    yield message_line(record, paint)
    yield paint(f"run {printable(record.run)}, message {record.seq}", dim=True)
    yield ""
    yield from _body_lines(record, full)


def body_of(record: Record) -> bytes | str | None:
    """The body as it was kept."""
    return bytes(record.message) if record.message is not None else record.text


def _body_lines(record: Record, full: bool) -> list[str]:
    """The body with a line for each member, or as text when it is none."""
    if record.message is None and record.text is None:
        return ["(the body was not captured)"]
    if record.message is not None:
        pretty = msgspec.json.format(bytes(record.message), indent=2).decode("utf-8", "replace")
    else:
        pretty = record.text or ""
    lines = [printable(line) for line in pretty.split("\n")]
    if not full and len(lines) > BODY_LINES:
        return [*lines[:BODY_LINES], _CUT]
    return lines
