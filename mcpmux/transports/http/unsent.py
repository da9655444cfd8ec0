"""Requests that end before any of them was sent: whoever gives up one of these need not tell the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mcpmux.errors import ConnectFailed

_NOTE = "nothing of the request was sent"


@contextmanager
def not_sent_yet() -> Iterator[None]:
    """A request that ends in here, whether it fails or is cancelled, is told from one that was sent."""
    try:
        yield
    except BaseException as end:
        if not isinstance(end, ConnectFailed):  # which says so itself
            end.add_note(_NOTE)
        raise


def was_unsent(error: BaseException) -> bool:
    """Whether a request had not been sent when that was raised."""
    return isinstance(error, ConnectFailed) or _NOTE in getattr(error, "__notes__", ())
