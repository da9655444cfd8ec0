"""Print the results of `mcpmux bench`, compared and judged, and write them to files."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import click

from mcpmux.bench.assertion import Assertion, judge_all, judge_operations
from mcpmux.bench.report.compare import compare_reports, compare_targets, unmatched
from mcpmux.bench.report.html import html_of
from mcpmux.bench.report.tables import Part, Table, circumstances, csv_of, headline, parts_of, verdicts_of
from mcpmux.bench.results import (
    TOOL,
    BadResults,
    Report,
    Results,
    by_name,
    decode_report,
    encode_report,
    machine_facts,
    pooled,
)
from mcpmux.bench.tally import REDACTOR
from mcpmux.cli.bench.run import Bench
from mcpmux.cli.console import show_bytes, show_line, show_table, tell
from mcpmux.cli.process import INTERRUPTED, Mistake

STDOUT = Path("-")


def check_writable(paths: Iterable[Path]) -> None:
    """Check before anything is measured that the files can be written. Raises Mistake."""
    paths = list(paths)
    if paths.count(STDOUT) > 1:
        raise Mistake("two formats cannot go to standard output")
    for path in paths:
        if path == STDOUT:
            continue
        if not path.parent.is_dir():
            raise Mistake(f"{path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise Mistake(f"{path}: it cannot be written by this user")


def read_old(path: str | None) -> Report | None:
    """Return the results to compare with. Raises Mistake."""
    if path is None:
        return None
    try:
        return decode_report(Path(path).read_bytes(), path)
    except OSError as error:
        raise Mistake(f"--compare {path}: {error.strerror}") from None
    except BadResults as error:
        raise Mistake(f"--compare: {error}") from None


def report(
    bench: Bench,
    files: Mapping[str, Path],
    old: Report | None,
    assertions: Sequence[Assertion],
    written: Sequence[str],
) -> int:
    """Print what was measured, compared with `old`, and write it to `files` by kind. Returns the exit code.

    `written` are the options of the command line. If one of the files is standard output, everything else is
    printed on stderr. Raises ClickException if a file cannot be written.
    """
    results, held = tuple(bench.results), True
    if results:
        when = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        targets = dict.fromkeys(result.about.target for result in results)
        command, _ = REDACTOR.redact_text(shlex.join(["mcpmux", "bench", *targets, *written]))
        new = Report(tool=TOOL, when=when, command=command, machine=machine_facts(), results=results)
        judgements = [*judge_operations(pooled(results)), *judge_all(assertions, pooled(results))]
        held = all(judgement.held for judgement in judgements)
        comparisons = compare_targets(results)
        if old is not None:
            comparisons += compare_reports(old, new)
        with redirect_stdout(sys.stderr if STDOUT in files.values() else sys.stdout):
            render_results(results)
            render(parts_of(results, bench.knees, comparisons))
            render([verdicts_of(judgements)])
        for name in unmatched(old, new) if old is not None else ():
            tell(f"{name}: not compared, only one of the two has it")
        makers: dict[str, Callable[[], bytes]] = {
            "json": lambda: encode_report(new),
            "csv": lambda: csv_of(new).encode(),
            "html": lambda: html_of(new, comparisons, judgements, bench.knees).encode(),
        }
        for kind, path in files.items():
            try:
                if path == STDOUT:
                    show_bytes(makers[kind]())
                else:
                    path.write_bytes(makers[kind]())
            except OSError as error:
                raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from None
    for name, reason in bench.failures.items():
        tell(f"{name}: cannot be measured: {reason}")
    if bench.interrupted:
        return INTERRUPTED
    return int(not held or bool(bench.failures) or any(result.stopped for result in results))


# Results and comparisons as tables: with colours on a terminal, as plain text elsewhere. Servers name their
# operations, so all texts are untrusted: they are made printable and are never markup.

_STYLES = {"strong": "bold", "dim": "bright_black", "good": "green", "warn": "yellow", "bad": "bold red"}


def render_results(results: Sequence[Results]) -> None:
    """Print what was measured under what load, for every target."""
    for runs in by_name(results).values():
        show_line(headline(runs[0]))
        show_line(f"  {circumstances(runs)}", "bright_black")
    click.echo()


def render(parts: Iterable[Part]) -> None:
    """Print tables and sentences."""
    for part in parts:
        if not isinstance(part, Table):
            for cell in part:
                show_line(cell.text, _STYLES[cell.tone])
            continue
        show_line(part.title)
        numbers = [heading for place, heading in enumerate(part.headings) if place not in part.left]
        rows = ([(cell.text, _STYLES.get(cell.tone, "")) for cell in row] for row in part.rows)
        show_table(part.headings, rows, right_aligned=numbers)
        click.echo()
