"""How a message says that things went. Pure.

| status | of |
| --- | --- |
| `ok` | a result |
| `tool-error` | the result of a tool call with `isError` |
| `error` | a JSON-RPC error |
| `invalid` | what is no JSON-RPC message |
| `http-404`, `http-4xx` | what came or went with that HTTP status, of 400 or more; besides another |
| `cancelled`, `open` | an exchange that its client has taken back, or that has no answer in what was read |

Requests and notifications have none, unless they came with such an HTTP status. A result with an HTTP status
of 400 or more is not `ok`.
"""

from __future__ import annotations

from mcpmux.traffic.record import Record

OK, TOOL_ERROR, ERROR, INVALID = "ok", "tool-error", "error", "invalid"
CANCELLED, OPEN = "cancelled", "open"
BAD_HTTP = 400

WORDS = (OK, ERROR, TOOL_ERROR, INVALID, CANCELLED, OPEN)
ANSWERS = frozenset({"result", "error"})


_KNOWN: dict[tuple[str, int | None], tuple[str, ...]] = {
    ("result", None): (OK,),
    ("error", None): (ERROR,),
    ("invalid", None): (INVALID,),
    ("request", None): (),
    ("notification", None): (),
    ("start", None): (),
}


def statuses_of(record: Record) -> tuple[str, ...]:
    """The words of the table for a message; the first says most."""
    if record.failed:
        return (TOOL_ERROR, *http_words(record.status))
    status = record.status if record.status is not None and record.status >= BAD_HTTP else None
    known = _KNOWN.get((record.kind, status))
    if known is not None:
        return known
    words = _KNOWN.get((record.kind, None), ())
    return (*(word for word in words if word != OK), *http_words(status))


def http_words(status: int | None) -> tuple[str, ...]:
    """The words for an HTTP status that says that something is wrong."""
    if status is None or status < BAD_HTTP:
        return ()
    return (f"http-{status}", f"http-{status // 100}xx")


def is_answer(record: Record) -> bool:
    """Whether the message answers a request."""
    return record.kind in ANSWERS
