"""What `traffic replay` and `traffic mock` have in common: a capture, and whose requests in it are meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mcpmux.cli.console import tell
from mcpmux.cli.source import load_config
from mcpmux.cli.traffic_source import FOLDER, TOLD_LIMIT, missing, no_files
from mcpmux.cli.wall import Mistake
from mcpmux.traffic.capture.files import BadLine, expand_paths, read_files
from mcpmux.traffic.reading.dialogue import Dialogue, Reading, SideName
from mcpmux.traffic.redaction.redactor import Redactor

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
