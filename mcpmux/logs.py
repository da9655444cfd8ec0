"""Events on standard error: for people or for machines, safe to print.

Strangers' text (an upstream's stderr, a client's header) may be in an event: control characters are made
visible, so that they can neither forge a line nor steer a terminal. Tracebacks appear at debug level only.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
VALUE_LIMIT = 2000  # characters of one value that are worth a log line


def printable(text: str) -> str:
    """`text` with control and direction characters made visible."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


def _make_printable(_logger: Any, _name: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and key == "exception":  # a traceback has lines of its own
            event[key] = "\n".join(map(printable, value.splitlines()))
        elif isinstance(value, str):
            event[key] = printable(value[:VALUE_LIMIT])
    return event


def _summarize_exception(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """One clause instead of a traceback."""
    if event.pop("exc_info", None):
        error = sys.exc_info()[1]
        event["error"] = f"{type(error).__name__}: {error}"
    return event


def _cleaned_by(clean: Callable[[str], str]) -> Processor:
    """Every text goes through `clean`, as what strangers say may hold secrets."""

    def process(_logger: Any, _name: str, event: EventDict) -> EventDict:
        for key, value in event.items():
            if isinstance(value, str):
                event[key] = clean(value)
        return event

    return process


def configure_logs(level: str, style: str, clean: Callable[[str], str] | None = None) -> None:
    """Send events of at least `level` to stderr, as `console` lines or as `json` objects.

    `clean` takes what is secret out of a text.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if number > logging.DEBUG:
        processors.append(_summarize_exception)
    else:
        processors.append(structlog.processors.format_exc_info)
    if clean is not None:
        processors.append(_cleaned_by(clean))
    if style == "json":
        processors.append(structlog.processors.JSONRenderer())
    else:
        console = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        processors += [_make_printable, console]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
