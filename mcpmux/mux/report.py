"""Read what an upstream that is itself a mcpmux reports about its own upstreams.

| member | is, by the name of each upstream |
| --- | --- |
| LEFT_OUT, in `_meta` of an incomplete answer or `data` of an error | `{"state": …, "reason": …}` |
| ITEMS, in `_meta` of a list | a list of `{"item": …, "problem": …, "leftOut": …}` |

Upstreams stand in configuration order, removed ones last. Items have the names that clients know; a problem
of the whole list has no `item`.

An upstream `name` of the upstream `inner` is `inner/name` for clients, as its loggers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mcpmux.protocol.envelope import value_of
from mcpmux.protocol.method import OWN as OWN_NAMES
from mcpmux.protocol.raw_json import Raw

LEFT_OUT: Final = f"{OWN_NAMES}upstreams"
ITEMS: Final = f"{OWN_NAMES}items"

_MARK: Final = f'"{OWN_NAMES}'.encode()
_REPORTS_LIMIT: Final = 100  # missing upstreams of one upstream that are passed on
_REASON_LIMIT: Final = 1000  # characters

LeftOut = Mapping[str, Mapping[str, str]]
"""The state and the reason of each missing upstream, by its name."""


def reports_in(members: Raw) -> dict[str, Any]:
    """Return the decoded `_meta` or `data` if it has a report, as nearly none has; else an empty one."""
    content = value_of(members) if _MARK in bytes(members) else None
    return content if isinstance(content, dict) else {}


def expose_upstream(text: str, name: str, upstream: str) -> str:
    """Return a sentence of `upstream` in which its own upstream `name` has the name for clients."""
    return text.replace(f"Upstream {name!r} ", f"Upstream {f'{upstream}/{name}'!r} ")


def left_out_in(members: Mapping[str, Any], upstream: str) -> LeftOut:
    """Return the upstreams that `upstream` has left out, by the names for clients. `members`: decoded."""
    reported = members.get(LEFT_OUT)
    left_out: dict[str, dict[str, str]] = {}
    for name, entry in list(reported.items())[:_REPORTS_LIMIT] if isinstance(reported, dict) else ():
        if isinstance(entry, dict):
            state, reason = (str(entry.get(key))[:_REASON_LIMIT] for key in ("state", "reason"))
            left_out[f"{upstream}/{name}"] = {
                "state": state,
                "reason": expose_upstream(reason, name, upstream),
            }
    return left_out


def problems_in(members: Mapping[str, Any]) -> Iterator[tuple[str | None, str, bool]]:
    """Yield (name, problem, whether it is left out) of each reported item. `members`: decoded."""
    reported = members.get(ITEMS)
    for name, entries in reported.items() if isinstance(reported, dict) else ():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(problem := entry.get("problem"), str):
                item, problem = entry.get("item"), problem[:_REASON_LIMIT]
                is_named = isinstance(item, str)
                yield (
                    item if is_named else None,
                    problem if is_named else f"{name}: {problem}",
                    entry.get("leftOut") is True,
                )
