"""The log: events on standard error for people or for machines, safe to print and without secrets.

An event may hold untrusted text, such as the stderr of an upstream or a header of a client, also in lists.
Secrets in it are redacted. Control characters are made visible, so they can neither forge a line nor control
a terminal. Tracebacks are logged at debug level only.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from mcpmux.config import Config
from mcpmux.printable import printable, printable_lines
from mcpmux.traffic.redaction.redactor import Redactor

VALUE_LIMIT = 2000  # characters of one value to log
FULL_SECONDS = 60.0  # between two events about connections that cannot be accepted
NESTING = 4  # levels of lists in a value; what is deeper becomes text


def _mapped(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Return a value with `change` applied to every text in it. Other objects become text first."""
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple) and depth < NESTING:
        return [_mapped(item, change, depth + 1) for item in value]
    if isinstance(value, dict) and depth < NESTING:
        return {change(str(key)): _mapped(item, change, depth + 1) for key, item in value.items()}
    return change(str(value))


def _summarize_exception(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Put one clause in place of a traceback."""
    if event.pop("exc_info", None):
        error = sys.exc_info()[1]
        event["error"] = f"{type(error).__name__}: {error}"
    return event


class _Texts:
    """Redacts every text of an event, and makes it printable if the log is `for_people`."""

    def __init__(self, redactor: Redactor, for_people: bool) -> None:
        self.redactor = redactor
        self._for_people = for_people

    def __call__(self, _logger: Any, _name: str, event: EventDict) -> EventDict:
        for key, value in event.items():
            event[key] = _mapped(value, partial(self._change, key))
        return event

    def _change(self, key: str, text: str) -> str:
        text = self.redactor.redact_text(text)[0]
        if not self._for_people:
            return text
        is_traceback = key == "exception"  # which has several lines
        return printable_lines(text) if is_traceback else printable(text[:VALUE_LIMIT])


class _AcceptErrors(logging.Handler):
    """Logs that no connection can be accepted, which trio says ten times a second, once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        if record.created < self._next:
            return
        self._next = record.created + FULL_SECONDS
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().error(
            "clients wait: no connection can be accepted; raise the limit of open files (ulimit -n) or lower "
            "limits.max_connections",
            reason=error.strerror if isinstance(error, OSError) else record.getMessage(),
        )


_STYLES = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}
"""Levels and their looks on a terminal (parameters of SGR)."""


class _TerminalLines:
    """Renders events for a person: time of day, level, server, event and reason, then the rest."""

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours

    def __call__(self, _logger: Any, _name: str, event: EventDict) -> str:
        time, level, exception = event.pop("timestamp"), event.pop("level"), event.pop("exception", None)
        texts = [event.pop(key, None) for key in ("upstream", "event", "reason", "problem", "note", "line")]
        rest = " ".join(f"{key}={value!r}" for key, value in event.items() if value is not None)
        parts = [
            self._paint(time, "2"),
            self._paint(f"{level:<7}", _STYLES.get(level, "")),
            ": ".join(str(text) for text in texts if text),
            self._paint(rest, "2"),
        ]
        line = "  ".join(filter(None, parts))
        return line if exception is None else f"{line}\n{exception}"

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._has_colours and text and style else text


def configure_logs(level: str, style: str, redactor: Redactor | None = None) -> None:
    """Write events of at least `level` to stderr. `style` is `console` for lines, or `json` for objects.

    On a terminal a line has the local time to the second, elsewhere UTC to the microsecond.

    `redactor` says what to redact. Without one the built-in rules apply.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    for_people, is_terminal = style != "json", sys.stderr.isatty()
    render: Processor
    if not for_people:
        render = structlog.processors.JSONRenderer()
    elif is_terminal:
        render = _TerminalLines(has_colours=not os.environ.get("NO_COLOR"))
    else:
        render = structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )
    is_short = for_people and is_terminal
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_short else "iso", utc=not is_short),
        structlog.processors.format_exc_info if number <= logging.DEBUG else _summarize_exception,
        _Texts(redactor or Redactor(), for_people),
        render,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # In one piece, with the line end: workers write to the same file.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    accepting = logging.getLogger("trio.serve_listeners")
    if not accepting.handlers:
        accepting.addHandler(_AcceptErrors())
        accepting.propagate = False


def tell_notes(config: Config) -> None:
    """Log what the configuration says and mcpmux does not use."""
    for note in config.notes:
        structlog.get_logger().warning("configuration", note=note)


def set_up_logs(config: Config) -> None:
    configure_logs(config.logging.level, config.logging.format, Redactor(config.redaction))


def redact_logs(redactor: Redactor) -> None:
    """Redact with this redactor from now on. Everything else stays as it was configured."""
    for each in structlog.get_config()["processors"]:
        if isinstance(each, _Texts):
            each.redactor = redactor
