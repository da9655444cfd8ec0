"""Notifications on the wire, each distinct one encoded once however many clients hear of it.

An event that many are told is one object: its encoding is found by identity, of the latest few. What differs
from client to client, its `_meta`, is put behind the other parameters without encoding them again.
"""

from __future__ import annotations

from mcpmux.protocol.call import META, Event
from mcpmux.protocol.envelope import encode_notification
from mcpmux.protocol.raw_json import Raw

RECENT = 8  # events; those of one update differ only in how its clients spell the URI

_recent: dict[int, tuple[Event, bytes]] = {}
"""By the identity of the event, which is kept with it, so that no other has the same."""


def encode_notice(event: Event) -> bytes:
    """`event` as a JSON-RPC message."""
    found = _recent.get(id(event))
    if found is None:
        if len(_recent) >= RECENT:
            _recent.clear()
        found = _recent[id(event)] = (event, encode_notification(event.method, event.params))
    return found[1]


class Tagged:
    """Encodes notifications for a client that has the same `_meta` in each."""

    __slots__ = ("_alone", "_behind", "_meta")

    def __init__(self, meta: Raw) -> None:
        self._meta = meta
        member = b'"%b":%b' % (META.encode(), bytes(meta))
        self._behind = b",%b}}" % member
        self._alone = b',"params":{%b}}' % member

    def __repr__(self) -> str:
        return f"<Tagged {bytes(self._meta)!r}>"

    def encode(self, event: Event) -> bytes:
        """`event` as a JSON-RPC message with that `_meta`, in place of any other."""
        if META in event.params:
            return encode_notification(event.method, {**event.params, META: self._meta})
        data = encode_notice(event)
        return data[:-2] + self._behind if event.params else data[:-1] + self._alone
