"""Which of several workers has what a client names: a session, a parked call, a task.

Whatever lives in one worker's memory is given out with that worker's number in front: `2.rest`. A request
that names something of another worker is handed over to it before anybody looks at anything else in it.

Laws: `owner_of(mark + text)` is the mark's number; `own_part(mark, mark + text) == text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from mcpmux.errors import McpmuxError
from mcpmux.protocol.envelope import decode_fields, text_of

WORKERS_LIMIT: Final = 256  # more processes than any machine has use for

_MARK: Final = re.compile(r"([1-9][0-9]{0,3})\.")
# Members of `params` that name something of a worker.
_STATE: Final = "requestState"
_TASK: Final = "taskId"
_SAYS_STATE: Final = b'"requestState"'
_SAYS_TASK: Final = b'"taskId"'


class ForeignMark(McpmuxError):
    """It was not given out by this worker."""


def mark_of(worker: int) -> str:
    """What stands in front of everything that a worker gives out; workers count from 1."""
    return f"{worker}."


def owner_of(text: object) -> int | None:
    """The number of the worker that gave this out; None for what no worker has marked."""
    found = _MARK.match(text) if isinstance(text, str) else None
    return int(found[1]) if found is not None else None


def own_part(mark: str, text: str) -> str:
    """What stands behind our mark. Raises ForeignMark."""
    if not text.startswith(mark):
        raise ForeignMark("it was given out by another worker, or by none")
    return text[len(mark) :]


def owner_of_request(
    headers: Mapping[str, str], query: str, body: bytes, session_header: str, session_key: str
) -> int | None:
    """The worker that an HTTP request is for; None when any of them can answer it.

    `session_header`: the header that names a session; `session_key`: what names it in a query.
    """
    session = headers.get(session_header)
    if session is not None:
        return owner_of(session)
    if query and session_key in query:
        return owner_of(next(iter(parse_qs(query).get(session_key, ())), None))
    # `find`, for `in` takes bytes for a number first.
    if body.find(_SAYS_STATE) >= 0 or body.find(_SAYS_TASK) >= 0:
        return _owner_in(body)
    return None


def _owner_in(body: bytes) -> int | None:
    try:
        params = decode_fields(decode_fields(body).get("params"))
    except ValueError:
        return None
    found = owner_of(text_of(params.get(_STATE)))
    return found if found is not None else owner_of(text_of(params.get(_TASK)))
