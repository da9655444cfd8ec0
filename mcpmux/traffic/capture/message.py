"""One message as a capture record: how much of it is kept, what is redacted, what is cut. Pure."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from mcpmux.config.traffic import LEVELS, Capture
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.protocol.framing import CR, LF
from mcpmux.protocol.raw_json import Id, Raw
from mcpmux.traffic.correlation import method_id_target
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import ANSWERS, MICROS, VERSION, Body, Record, Run, micros_of
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet

FINGERPRINT_BYTES = 8
SESSIONS_CACHED = 1024

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def facts_after_redaction(
    observed: Observation, body: bytes, count: int
) -> tuple[str | None, Id | None, str | None]:
    """Method, id and target, which must not repeat a secret of the message.

    `body`: the message without its `count` secrets. The method may still be one, that of a request before.
    """
    if not count:
        return observed.method, observed.id, observed.target
    method, request_id, target = method_id_target(body)
    return method or observed.method, request_id, target


def to_record(
    observed: Observation, run: Run, seq: int, redactor: Redactor, level: str = "full", body_bytes: int = 4096
) -> Record:
    """The record of a message, all of it redacted first. `level` as in `[capture]`, but not `off`.

    `body_bytes`: how much of the redacted body a record of level `truncated` has.
    """
    body, count = redactor.redact(observed.method, observed.data)
    method, request_id, target = facts_after_redaction(observed, body, count)
    message, text = (None, None) if level == "metadata" else body_of(observed.kind, body, level, body_bytes)
    return Record(
        v=VERSION,
        run=run.name,
        seq=seq,
        time=run.time_of(observed.at),
        at=micros_of(observed.at - run.clock) / MICROS,
        kind=observed.kind,
        exchange=observed.exchange or None,
        own=observed.own,
        id=request_id,
        target=target,
        status=observed.status,
        size=len(observed.data),
        code=observed.code,
        failed=observed.failed,
        ms=observed.ms,
        redacted=count or None,
        message=message,
        text=text,
        **leg_members(observed, method, redactor.current),
    )


def leg_members(observed: Observation, method: str | None, rules: RuleSet) -> dict[str, Any]:
    """What many records of a leg have in common. `method`: that of the redacted message."""
    leg, redact = observed.leg, rules.redact_name
    return {
        "leg": leg.side,
        "direction": observed.direction,
        "method": redact(method),
        "peer": leg.peer,
        "upstream": leg.upstream,
        "client": redact(leg.name) if leg.side == "client" else None,
        "session": fingerprint(leg.session) if leg.session is not None else None,
        "transport": leg.transport,
        "revision": redact(leg.revision),
    }


def body_of(kind: str, body: bytes, level: str, limit: int) -> tuple[Raw | None, str | None]:
    """`message` and `text` of a record, of which one is None."""
    if level == "truncated" and len(body) > limit:
        return None, body[:limit].decode("utf-8", "ignore")
    if (kind != "invalid" and body[:1] != b'"') or _is_object(body):
        # On one line: between tokens of JSON a space means the same, and in them no line ends.
        return Raw(body.translate(_LINE_ENDS) if LF in body or CR in body else body), None
    return None, body.decode("utf-8", "replace")


def _is_object(body: bytes) -> bool:
    try:
        return body.lstrip()[:1] == b"{" and isinstance(msgspec.json.decode(body), dict)
    except UNREADABLE:
        return False


@lru_cache(SESSIONS_CACHED)
def fingerprint(session: str) -> str:
    """Equal for equal session ids, and useless for anything else."""
    return blake2b(session.encode("utf-8", "replace"), digest_size=FINGERPRINT_BYTES).hexdigest()


# The shape of a line of a capture file, for encoding.


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """A `Record`, made from values in their order. In `v` and `kind` other members follow, encoded before.

    `v` is followed by `run`; `kind` by `leg`, `direction`, `method`, and the facts of the leg.
    """

    v: Raw
    seq: int
    time: str
    at: float
    kind: Raw
    exchange: int = 0
    own: bool = False
    id: Id | None = None
    target: str | None = None
    status: int | None = None
    size: int = 0
    code: int | None = None
    failed: bool | None = None
    ms: float | None = None
    redacted: int = 0
    message: Body = None
    text: str | None = None


# How much of a message is kept: the user's rules, for both legs. State: whom exchanges have asked.
#
# On the leg of an upstream a rule's `upstream` is that upstream. On a client's leg it is whichever the
# exchange has asked so far, and for a request the one whose prefix its target bears; of several the least
# level counts, so that what one rule leaves out does not come in by the other leg.

REMEMBERED = 4096  # levels by upstream and method, and exchanges; a hostile peer may send new methods all day
OFF = "off"

_ORDER = {level: number for number, level in enumerate(LEVELS)}
_PREFIX = re.compile(r"(?:ui://)?([a-z][a-z0-9.-]{0,31})(?:\+|__|/)")


class Levels:
    """`prefixes`: prefix by name of each upstream."""

    def __init__(self, config: Capture, prefixes: Mapping[str, str]) -> None:
        self._default = config.level
        self._rules = config.rules
        self._by_upstream = any(rule.upstream is not None for rule in config.rules)
        self.adopt(prefixes)
        self._level_of = lru_cache(REMEMBERED)(self._find)
        self._asked: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Levels {self._default}, {len(self._rules)} rules, {len(self._asked)} exchanges>"

    def adopt(self, prefixes: Mapping[str, str]) -> None:
        """The set of upstreams has changed."""
        self._owners = {prefix: name for name, prefix in prefixes.items()}

    @property
    def only(self) -> str | None:
        """The level of all messages, when there are no rules."""
        return None if self._rules else self._default

    def level(self, observed: Observation) -> str:
        """The level for a message. To be called for every message, in order."""
        if not self._by_upstream:
            return self._level_of(None, observed.method)
        upstream = observed.leg.upstream
        if upstream is not None:
            asked = self._asked.get(observed.exchange, ())
            if observed.exchange and upstream not in asked:
                self._asked[observed.exchange] = (*asked, upstream)
                if len(self._asked) > REMEMBERED:
                    self._asked.popitem(last=False)
            return self._level_of(upstream, observed.method)
        names = self._upstreams_of(observed) or (None,)
        return min((self._level_of(name, observed.method) for name in names), key=_ORDER.__getitem__)

    def _upstreams_of(self, observed: Observation) -> tuple[str, ...]:
        """Which upstreams a message on a client's leg has to do with."""
        is_answer = observed.direction == "out" and observed.kind in ANSWERS
        asked = self._asked.get(observed.exchange, ())
        if is_answer:
            self._asked.pop(observed.exchange, None)
        if asked:
            return asked
        match = _PREFIX.match(observed.target) if observed.target is not None else None
        owner = self._owners.get(match[1]) if match is not None else None
        owner = owner or self._owners.get("")
        return (owner,) if owner is not None else ()

    def _find(self, upstream: str | None, method: str | None) -> str:
        for rule in self._rules:
            if _fits(rule.upstream, upstream) and _fits(rule.method, method):
                return rule.level
        return self._default


def _fits(glob: str | None, name: str | None) -> bool:
    return glob is None or (name is not None and fnmatchcase(name, glob))
