"""What is said of upstreams whose part of an answer is missing: in the answer, or in its place.

`_meta` of the answer, or `data` of the error, has under `dev.mcpmux/upstreams` for each of them
`{"name": {"state": …, "reason": …}}`, in configuration order; what was removed comes last.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcpmux.errors import RpcError
from mcpmux.protocol.codes import UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import decode_fields, raw
from mcpmux.protocol.meta import META
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.upstreams.fleet import Fleet

LEFT_OUT = "dev.mcpmux/upstreams"
REMOVED = "removed"  # the state of an upstream that is not configured any more

Reasons = Mapping[str, str]
"""A sentence for each upstream that is missing."""


def describe(fleet: Fleet, reasons: Reasons) -> dict[str, dict[str, str]]:
    """The states and reasons of the missing, in order."""
    there = [name for name in fleet if name in reasons]
    names = there + [name for name in reasons if name not in fleet]
    return {
        name: {"state": fleet[name].state if name in fleet else REMOVED, "reason": reasons[name]}
        for name in names
    }


def mention(result: Fields, fleet: Fleet, reasons: Reasons) -> None:
    """Say in an answer what is missing."""
    try:
        meta = decode_fields(result.get(META))
    except ValueError:
        meta = {}
    result[META] = raw({**meta, LEFT_OUT: describe(fleet, reasons)})


def incomplete(what: str, fleet: Fleet, reasons: Reasons, **more: object) -> RpcError:
    """The error in place of an answer; `what` begins its sentence, `more` is for its data."""
    missing = describe(fleet, reasons)
    sentences = "; ".join(each["reason"] for each in missing.values())
    return RpcError(UPSTREAM_UNAVAILABLE, f"{what}: {sentences}", {**more, LEFT_OUT: missing})
