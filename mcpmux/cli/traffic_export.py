"""`mcpmux traffic export`: captured messages for other programs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from mcpmux import __version__
from mcpmux.cli.console import show_bytes, tell
from mcpmux.cli.options import load_config, quiet_option
from mcpmux.cli.process import Mistake
from mcpmux.cli.traffic_source import Where, filter_help, format_size, where_argument
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.correlation import method_id_target
from mcpmux.traffic.reading.export import to_csv, to_har
from mcpmux.traffic.record import Record, encode_record
from mcpmux.traffic.redaction.redactor import Redactor

# A file for what was asked to be written: whole or not at all, and for its owner alone.
#
# A regular file is made beside its place and put there when it is complete. What is no regular file (a
# pipe, a device, standard output by its path) is written to as it is, and never replaced.

TOGETHER_CHARACTERS = 64 * 1024


def write_file(name: str, pieces: Iterable[str], sources: Sequence[Path]) -> int:
    """How many bytes it got.

    Raises Mistake when it is one of `sources`, ClickException when it cannot be written.
    """
    path = Path(name)
    try:
        if path.exists() and any(path.samefile(source) for source in sources if source.exists()):
            raise Mistake(f"{name}: this is one of the files that are read")
        if path.exists() and not path.is_file():
            return _write_to(path, pieces)
        return _replace(path.resolve(), pieces)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise click.ClickException(f"{name}: cannot write: {reason}") from None


def _write_to(path: Path, pieces: Iterable[str]) -> int:
    with path.open("wb", buffering=0) as file:
        return write_pieces(pieces, lambda text: _write_all(file.fileno(), text))


def _replace(path: Path, pieces: Iterable[str]) -> int:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    part = Path(name)
    try:
        try:
            size = write_pieces(pieces, lambda text: _write_all(descriptor, text))
        finally:
            os.close(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink()
        raise
    return size


def _write_all(descriptor: int, text: str) -> int:
    data = text.encode("utf-8", "replace")
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    return len(data)


def write_pieces(pieces: Iterable[str], write: Callable[[str], int | None]) -> int:
    """Several pieces together, the first at once; the sum of what `write` returns."""
    total = 0
    waiting: list[str] = []
    size = TOGETHER_CHARACTERS
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= TOGETHER_CHARACTERS:
            total += write("".join(waiting)) or 0
            waiting, size = [], 0
    return total + (write("".join(waiting)) or 0)


STDOUT = "-"

Export = Callable[[Iterable[Record]], Iterator[str]]


def to_jsonl(records: Iterable[Record]) -> Iterator[str]:
    """A capture again, of these messages."""
    return (encode_record(record).decode() for record in records)


def _to_har(records: Iterable[Record]) -> Iterator[str]:
    return to_har(records, __version__)


@click.command(epilog=filter_help())
@where_argument
@click.option("--har", metavar="FILE", help="HTTP archive 1.2, as browsers' developer tools open it.")
@click.option("--csv", metavar="FILE", help="A table, without bodies.")
@click.option("--jsonl", metavar="FILE", help="A capture again, of these messages: for replay and mock.")
@click.option("--redact", metavar="CONFIG", help="Apply the [redaction] of this configuration, too.")
@quiet_option
def export(
    where: tuple[str, ...], har: str | None, csv: str | None, jsonl: str | None, redact: str | None
) -> None:
    """Write captured messages for other programs. FILE may be -, for standard output.

    What mcpmux knows as secret is redacted once more on the way. In HAR each request with its answer is one
    entry, on each leg; the host says which leg and which peer. Files can be read by you alone.

    \b
    Examples:
      mcpmux traffic export captures/ 'since=1h' --har session.har
      mcpmux traffic export leg=upstream --csv - | head
      mcpmux traffic export 'client=claude-ai' --jsonl part.jsonl
    """
    wanted = [(har, _to_har), (csv, to_csv), (jsonl, to_jsonl)]
    chosen = [(name, write) for name, write in wanted if name is not None]
    if not chosen:
        raise Mistake("choose at least one of --har FILE, --csv FILE and --jsonl FILE")
    _check_apart([name for name, _ in chosen])
    redactor = Redactor(load_config(redact).redaction if redact is not None else None)
    source = Where(where, change=lambda record: redact_record(record, redactor))
    for name, write in chosen:
        records = source.everything() if write is to_jsonl and not source.filter else source.records()
        counted = _Counted(records)
        if name == STDOUT:
            write_pieces(write(counted), lambda text: show_bytes(text.encode("utf-8", "replace")))
        else:
            size = write_file(name, write(counted), source.files())
            tell(f"{name}: {counted.number} messages, {format_size(size)}")
        if not counted.number:
            tell("there is no message that fits the filter" if source.filter else "there is no message in it")
    source.check_read()


def _check_apart(names: Sequence[str]) -> None:
    """Raises Mistake when two formats would go to one place."""
    places = [name if name == STDOUT else os.path.realpath(name) for name in names]
    for name, place in zip(names, places, strict=True):
        if places.count(place) > 1:
            raise Mistake(f"{name}: two formats cannot go to the same place")


class _Counted:
    """Messages on their way; how many of them there were is known at the end."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.number = 0
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            self.number += record.kind != "start"
            yield record


def redact_record(record: Record, redactor: Redactor) -> Record:
    """The same message without what the redactor knows as secret."""
    changes: dict[str, Any] = {
        "target": redactor.redact_name(record.target),
        "method": redactor.redact_name(record.method),
        "client": redactor.redact_name(record.client),
    }
    if record.message is not None:
        body, count = redactor.redact(record.method, bytes(record.message))
        if count:
            changes |= _changed_body(body, record)
    elif record.text is not None:
        text, count = redactor.redact(record.method, record.text.encode("utf-8", "replace"))
        changes["text"] = text.decode("utf-8", "replace")
    else:
        count = 0
    if count:
        changes["redacted"] = (record.redacted or 0) + count
    if all(getattr(record, name) == value for name, value in changes.items()):
        return record
    return msgspec.structs.replace(record, **changes)


def _changed_body(body: bytes, record: Record) -> dict[str, Any]:
    """What is told beside the body must not tell what has been taken out of it."""
    if body[:1] != b"{":
        return {"message": None, "text": body.decode("utf-8", "replace"), "target": None}
    if record.kind not in ("request", "notification"):
        return {"message": Raw(body)}
    _, _, target = method_id_target(body)
    return {"message": Raw(body), "target": target}
