"""One message as a capture record: how much of it is kept, what is redacted, what is cut. Pure."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from fnmatch import translate
from functools import lru_cache
from hashlib import blake2b

import msgspec

from mcpmux.config.traffic import LEVELS, Capture
from mcpmux.protocol.framing import CR, LF
from mcpmux.protocol.raw_json import Id, Raw
from mcpmux.traffic.correlation import method_id_target
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import ANSWERS, MICROS, VERSION, Body, Record, Run, micros_of
from mcpmux.traffic.redaction.redactor import Redactor

FINGERPRINT_BYTES = 8
SESSIONS_CACHED = 1024

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def start_record(run: Run, clock: float, version: str) -> Record:
    """What a file begins with."""
    at = round(clock - run.clock, 6)
    return Record(v=VERSION, run=run.name, time=run.time_of(clock), at=at, kind="start", version=version)


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
    leg = observed.leg
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
        leg=leg.side,
        direction=observed.direction,
        exchange=observed.exchange or None,
        own=observed.own,
        method=redactor.redact_name(method),
        id=request_id,
        target=target,
        peer=leg.peer,
        upstream=leg.upstream,
        client=redactor.redact_name(leg.name) if leg.side == "client" else None,
        session=fingerprint(leg.session) if leg.session is not None else None,
        transport=leg.transport,
        revision=redactor.redact_name(leg.revision),
        status=observed.status,
        size=len(observed.data),
        code=observed.code,
        failed=observed.failed,
        ms=observed.ms,
        redacted=count or None,
        message=message,
        text=text,
    )


def body_of(kind: str, body: bytes, level: str, limit: int) -> tuple[Raw | None, str | None]:
    """`message` and `text` of a record, of which one is None."""
    if level == "truncated" and len(body) > limit:
        return None, body[:limit].decode("utf-8", "ignore")
    if kind != "invalid" and body[:1] != b'"':
        return without_line_ends(body), None
    if _is_object(body):
        return without_line_ends(body), None
    return None, body.decode("utf-8", "replace")


def without_line_ends(body: bytes) -> Raw:
    """JSON on one line: between its tokens a space means the same, and in them no line ends."""
    return Raw(body.translate(_LINE_ENDS) if LF in body or CR in body else body)


def _is_object(body: bytes) -> bool:
    try:
        return body.lstrip()[:1] == b"{" and isinstance(msgspec.json.decode(body), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
        self._rules = [(_pattern(rule.upstream), _pattern(rule.method), rule.level) for rule in config.rules]
        self._by_upstream = any(rule.upstream is not None for rule in config.rules)
        self.adopt(prefixes)
        self._known: dict[tuple[str | None, str | None], str] = {}
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
        if not self._rules:
            return self._default
        if not self._by_upstream:
            return self._level_of(None, observed.method)
        upstream = observed.leg.upstream
        if upstream is not None:
            if observed.exchange:
                self._remember(observed.exchange, upstream)
            return self._level_of(upstream, observed.method)
        names = self._upstreams_of(observed)
        if not names:
            return self._level_of(None, observed.method)
        return min((self._level_of(name, observed.method) for name in names), key=_ORDER.__getitem__)

    def _upstreams_of(self, observed: Observation) -> tuple[str, ...]:
        """Which upstreams a message on a client's leg has to do with."""
        is_answer = observed.direction == "out" and observed.kind in ANSWERS
        asked = (
            self._asked.pop(observed.exchange, ()) if is_answer else self._asked.get(observed.exchange, ())
        )
        return asked or self._owner_of(observed.target)

    def _owner_of(self, target: str | None) -> tuple[str, ...]:
        match = _PREFIX.match(target) if target is not None else None
        owner = self._owners.get(match[1]) if match is not None else None
        owner = owner or self._owners.get("")
        return (owner,) if owner is not None else ()

    def _remember(self, exchange: int, upstream: str) -> None:
        asked = self._asked.get(exchange, ())
        if upstream not in asked:
            self._asked[exchange] = (*asked, upstream)
            if len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)

    def _level_of(self, upstream: str | None, method: str | None) -> str:
        key = (upstream, method)
        level = self._known.get(key)
        if level is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            level = self._known[key] = self._find(upstream, method)
        return level

    def _find(self, upstream: str | None, method: str | None) -> str:
        for upstreams, methods, level in self._rules:
            if _fits(upstreams, upstream) and _fits(methods, method):
                return level
        return self._default


def _pattern(glob: str | None) -> re.Pattern[str] | None:
    return re.compile(translate(glob)) if glob is not None else None


def _fits(pattern: re.Pattern[str] | None, name: str | None) -> bool:
    return pattern is None or (name is not None and pattern.match(name) is not None)
