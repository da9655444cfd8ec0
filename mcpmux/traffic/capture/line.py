"""Encode messages as lines of a capture file, many at a time.

One scan of many messages shows that none holds a secret.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.protocol.framing import CR, LF
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import MICROS, VERSION, Body, Record, Run, micros_of, second_of
from mcpmux.traffic.recorder import method_id_target
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet

LEGS_CACHED: Final = 1024
TEXTS_LENGTH: Final = 512  # characters of a session and a view; longer ones are not remembered
FINGERPRINT_BYTES: Final = 8
HEAD: Final = 512  # bytes at either end in which messages with the same contents may differ
# Lines that are encoded in one go: msgspec's buffer grows by being copied, within the caches then.
GROUP: Final = 16

_encode_many: Final = msgspec.json.Encoder().encode_lines

data_of = operator.attrgetter("data")  # of an Observation; maps over many without a loop in Python
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_TEXT: Final = b'"text":"'
_NO_SECRETS: Final = itertools.repeat(0)


def encode_lines(
    run: Run, redactor: Redactor, body_bytes: int, level: str, messages: Sequence[Observation]
) -> list[bytes]:
    """Return the lines of messages, each with its newline, in parts. See `records_of`."""
    records = records_of(run, redactor, body_bytes, level, messages)
    return [_encode_many(records[start : start + GROUP]) for start in range(0, len(records), GROUP)]


def records_of(
    run: Run, redactor: Redactor, body_bytes: int, level: str, messages: Sequence[Observation]
) -> list[Record]:
    """Return the records of messages, all of them redacted.

    `level` as in `[capture]`, but not `off`. `body_bytes`: of the body in a record of level `truncated`.
    `messages`: one or more.
    """
    rules = redactor.current
    bodies: Sequence[bytes] = list(map(data_of, messages))
    joined = b"\t".join(without_repeats(bodies))
    counts: Iterable[int] = _NO_SECRETS
    is_clean = rules.leaves_unchanged(bodies, joined)
    are_simple = is_clean and level == "full" and LF not in joined and CR not in joined
    if not is_clean:
        bodies, counts = zip(
            *(rules.redact(message.method, message.data) for message in messages), strict=True
        )
    records = []
    name_of_run, began = run.name, run.clock
    # They passed one right after the other, so the system's time has hardly made a step in between.
    wall = micros_of(run.began(messages[0].at))
    second, second_text = -1, ""  # of the last record
    clean_methods: dict[str | None, str | None] = {}
    for observed, body, count in zip(messages, bodies, counts, strict=False):
        leg, kind, method = observed.leg, observed.kind, observed.method
        request_id, target = observed.id, observed.target
        if count:  # the members must not repeat a secret
            method, request_id, target = method_id_target(body)
            method = method or observed.method  # of the request before it, if this is an answer
        if method not in clean_methods:
            clean_methods[method] = rules.clean(method)
        name = leg.name if leg.side == "client" else None
        is_short = len(leg.session or "") + len(leg.view or "") <= TEXTS_LENGTH
        texts_of = _remembered_texts_of if is_short else _texts_of
        client, view, session, revision = texts_of(rules, name, leg.view, leg.session, leg.revision)
        at = round((observed.at - began) * MICROS)
        micros = wall + at - second * MICROS
        if not 0 <= micros < MICROS:
            second, micros = divmod(wall + at, MICROS)
            second_text = second_of(second)
        message: Body = None
        text: str | None = None
        if are_simple and kind != "invalid":
            message = Raw(body)
        elif level != "metadata":
            message, text = body_of(kind, body, level, body_bytes)
        records.append(
            Record(  # by position: names cost more
                VERSION,
                name_of_run,
                f"{second_text}.{str(MICROS + micros)[1:]}Z",  # a format for six digits costs more
                kind,
                observed.number,
                observed.answers or None,
                at / MICROS,
                leg.side,
                observed.direction,
                observed.exchange or None,
                not observed.exchange and observed.own,
                clean_methods[method],
                request_id,
                target,
                leg.peer,
                leg.upstream,
                client,
                view,
                session,
                leg.transport,
                revision,
                observed.status,
                len(observed.data),
                observed.code,
                observed.failed,
                observed.ms,
                count or None,
                message,
                text,
            )
        )
    return records


def _texts_of(
    rules: RuleSet, name: str | None, view: str | None, session: str | None, revision: str | None
) -> tuple[str | None, str | None, str | None, str | None]:
    """Return the texts of a leg, redacted, with the fingerprint of its session."""
    clean = rules.clean
    return clean(name), clean(view), None if session is None else fingerprint(session), clean(revision)


_remembered_texts_of: Final = lru_cache(LEGS_CACHED)(_texts_of)


def to_record(observed: Observation, run: Run, redactor: Redactor, level: str = "full") -> Record:
    """Return the record of a message, all of it redacted. `level`: full or metadata."""
    return records_of(run, redactor, 0, level, [observed])[0]


def body_of(kind: str, body: bytes, level: str, limit: int) -> tuple[Raw | None, str | None]:
    """Return `message` and `text` of a record, of which one is None."""
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


def fingerprint(session: str) -> str:
    """Return a text that is equal for equal session ids, and useless for anything else."""
    return blake2b(session.encode("utf-8", "replace"), digest_size=FINGERPRINT_BYTES).hexdigest()


def without_repeats(bodies: Iterable[bytes]) -> list[bytes]:
    """Return the bodies, each without the middle that it has in common with the long one before it.

    Most answers pass on both legs with the same contents, one right after the other, between other heads and
    tails. They are cut behind a `"` on either side, as `Redactor.leaves_unchanged` requires it.
    """
    parts = []
    middle = b""
    for body in bodies:
        if len(body) > 2 * HEAD:
            start = body.find(_TEXT, 0, HEAD)
            start = start + len(_TEXT) if start >= 0 else body.rfind(b'"', 0, HEAD) + 1
            if middle and body.startswith(middle, start):
                body = body[:start] + body[start + len(middle) :]
            else:
                end = body.find(b'"', -HEAD) + 1
                middle = body[start:end] if 0 < start < end else b""
        parts.append(body)
    return parts
