"""`mcpmux traffic grep`: messages that say something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import click

from mcpmux.cli.console import wants_colour
from mcpmux.cli.options import quiet_option
from mcpmux.cli.process import Mistake
from mcpmux.cli.traffic_source import (
    Painter,
    Where,
    by_option,
    filter_help,
    json_line,
    message_line,
    stream_lines,
    summary_line,
    where_argument,
)
from mcpmux.printable import printable
from mcpmux.traffic.reading.filters import body_texts
from mcpmux.traffic.reading.summary import ExchangeSummary, Summarizer
from mcpmux.traffic.record import Record

AROUND = 30  # characters of a body that are shown on both sides of what was found


@click.command(epilog=filter_help())
@click.argument("pattern")
@where_argument
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case are the same.")
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is text, no regular expression.")
@click.option("-c", "--count", is_flag=True, help="Only how many there are.")
@by_option
@click.option("--json", "as_json", is_flag=True, help="The messages as they are in the capture, a line each.")
@quiet_option
def grep(
    pattern: str,
    where: tuple[str, ...],
    ignore_case: bool,
    fixed: bool,
    count: bool,
    by: str,
    as_json: bool,
) -> None:
    """Find messages by a regular expression in their body, method or target.

    An empty PATTERN finds every message that the filter wants. Exit code 1 when there is none.

    \b
    Examples:
      mcpmux traffic grep 'timed? out' captures/ 'upstream=docs'
      mcpmux traffic grep '' 'status!=ok duration>200ms'
      mcpmux traffic grep -F 'file:///a.md' --by exchange
    """
    if as_json and by == "exchange":
        raise Mistake("--json shows messages; leave out --by exchange")
    source = Where(where)
    expression = compile_pattern(pattern, ignore_case=ignore_case, fixed=fixed)
    paint = Painter(colour=wants_colour())
    if by == "exchange":
        lines = _exchange_lines(source, expression, paint)
    elif as_json:
        lines = (json_line(record) for record, _ in _found(source, expression))
    else:
        lines = (
            message_line(record, paint) + excerpt(text, found, paint)
            for record, (text, found) in _found(source, expression)
        )
    if count:
        number = sum(1 for _ in lines)
        click.echo(str(number))
    else:
        number = stream_lines(lines)
    source.check_read()
    if not number:
        raise click.exceptions.Exit(1)


Hit = tuple[str, re.Match[str]]


def compile_pattern(pattern: str, *, ignore_case: bool, fixed: bool) -> re.Pattern[str]:
    """The pattern to look for. Raises Mistake, which shows the place."""
    try:
        return re.compile(re.escape(pattern) if fixed else pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        place = " " * len(printable(pattern[: error.pos or 0])) + "^"
        hint = "-F looks for the text as it is"
        raise Mistake(f"{error.msg}; {hint}\n  {printable(pattern)}\n  {place}") from None


def search(record: Record, expression: re.Pattern[str]) -> Hit | None:
    """Where it is in a message, and what was found."""
    for text in (*body_texts(record), record.method, record.target, ""):
        if text is not None and (found := expression.search(text)) is not None:
            return text, found
    return None


def excerpt(text: str, found: re.Match[str], paint: Painter) -> str:
    """What was found with what is around it, behind a line."""
    start, end = found.span()
    if start == end:
        return ""
    before = text[max(0, start - AROUND) : start]
    after = text[end : end + AROUND]
    middle = paint(printable(text[start : min(end, start + 10 * AROUND)]), fg="red", bold=True)
    return f"  {paint('|', dim=True)} {printable(before)}{middle}{printable(after)}"


def _found(source: Where, expression: re.Pattern[str]) -> Iterator[tuple[Record, Hit]]:
    for record in source.records():
        hit = search(record, expression)
        if hit is not None:
            yield record, hit


def _exchange_lines(source: Where, expression: re.Pattern[str], paint: Painter) -> Iterator[str]:
    """Exchanges of which a message says it."""
    body_tests = source.filter.body_tests
    summarizer = Summarizer([*body_tests, lambda record: search(record, expression) is not None])
    mine = len(body_tests)

    def line_of(ended: Iterable[ExchangeSummary]) -> Iterator[str]:
        for summary in ended:
            if mine in summary.passed_tests and source.filter.matches(summary):
                yield summary_line(summary, paint)

    for record in source.everything():
        yield from line_of(summarizer.add(record))
    yield from line_of(summarizer.rest())
