"""What a command is pointed at: a configuration, or one server by its URL or its command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from mcpmux.config import URL_STARTS, Config, parse_upstream_argument, parse_upstream_arguments, read_config
from mcpmux.errors import ConfigError
from mcpmux.logs import redact_logs
from mcpmux.traffic.redaction.redactor import Redactor

STANDARD_INPUT = "-"

EXPECTED = "a configuration file, a URL with http://, https:// or the like, or a command line in quotes"


def load_config(target: str | None, upstreams: Sequence[str] = ()) -> Config:
    """The configuration of `target`, with the servers of `--upstream` added. Raises ConfigError.

    From then on its [redaction] holds for the log.
    """
    added = parse_upstream_arguments(upstreams)
    if target is not None:
        config = _read_target(target)
        redact_logs(Redactor(config.redaction))
        return attrs.evolve(config, upstreams=(*config.upstreams, *added))
    if not added:
        raise ConfigError([f"name what to connect to: CONFIG ({EXPECTED}), or --upstream NAME=URL"])
    return Config(upstreams=added)


def _read_target(target: str) -> Config:
    if _is_server(target):
        try:
            return Config(upstreams=(parse_upstream_argument(target),))
        except ConfigError as error:
            raise ConfigError([text.removeprefix("--upstream: ") for text in error.problems]) from None
    if not target:
        raise ConfigError([f"CONFIG is empty; expected {EXPECTED}"])
    if target != STANDARD_INPUT and not Path(target).exists():
        raise ConfigError([f"{target}: there is no such file; expected {EXPECTED}"])
    return read_config(target, os.environ, _read_stdin)


def is_file(target: str) -> bool:
    """Whether `target` is a file, which can be read again."""
    return target != STANDARD_INPUT and not _is_server(target) and Path(target).is_file()


def _is_server(target: str) -> bool:
    """Whether `target` is one server itself; a file whose name has blanks in it is none."""
    if target.startswith(URL_STARTS):
        return True
    return " " in target and not Path(target).exists()


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError([f"standard input: expected UTF-8 text, byte {error.start + 1} is none"]) from None
