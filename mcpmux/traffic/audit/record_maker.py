"""Make the records of the audit log, of exchanges and of the log itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from mcpmux.channels.tap import name_in
from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_INFO, META, Call, Meta, target_in
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.audit.record import AuditRecord
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.outcome import BROKEN, outcome_of
from mcpmux.traffic.record import MICROS, cut, listened_uris, micros_of, second_of
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet

TEXT_LIMIT: Final = 2048  # characters of a target
NAME_LIMIT: Final = 200  # characters of a client's name or a method
VERDICTS_LIMIT: Final = 50  # of one exchange; each of its notifications may have some
TARGETS_LIMIT: Final = 50  # URIs of a listen
FRAGMENT_LIMIT: Final = 4096  # bytes of a torn line; records are rarely longer
CALLERS_KEPT: Final = 256  # whose members are redacted once: 4 MiB at most, as methods are bounded

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)

_encode: Final = msgspec.json.Encoder().encode


def trace_id(traceparent: str | None) -> str | None:
    """Return the trace id in a `traceparent` (W3C Trace Context), None when it is absent or malformed."""
    match = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    return match[1] if match is not None else None


def params_size(call: Call) -> int:
    """Return the bytes of a call's `params`, `_meta` included."""
    params, meta = call.params, call.meta
    if not meta and not isinstance(meta, Meta):
        return size(params)
    inner = len(meta.encoded) if isinstance(meta, Meta) else size(meta)
    return size(params) + inner + len(META) + 3 + bool(params)


def size(members: Fields) -> int:
    """Return the bytes of an object with these members, without spaces; assumes keys without escapes."""
    total = 1 if members else 2
    for key, value in members.items():
        total += len(value) + 4 + (len(key) if key.isascii() else len(key.encode()))
    return total


class RecordMaker:
    """Makes the records of one run. `wall` returns seconds since 1970."""

    def __init__(self, run: str, redactor: Redactor, wall: Callable[[], float]) -> None:
        self._run = run
        self._redactor = redactor
        self._wall = wall
        self._second = -MICROS  # the last second written, as microseconds since 1970, and its text
        self._second_text = ""

    def now(self) -> str:
        """Return the time in the log's format."""
        micros = micros_of(self._wall())
        if not 0 <= micros - self._second < MICROS:
            self._second = micros - micros % MICROS
            self._second_text = second_of(micros // MICROS)
        return f"{self._second_text}.{str(MICROS + micros - self._second)[1:]}Z"

    def plain(self, kind: str, **members: Any) -> AuditRecord:
        """Return a record of a kind with these members."""
        return AuditRecord(time=self.now(), kind=kind, run=self._run, **members)

    def begin(self, exchange: Exchange) -> AuditRecord:
        """Return the record of a request before it is worked on."""
        leg, call, headers = exchange.leg, exchange.call, exchange.headers
        rules, view = self._redactor.current, call.principal.view
        name = leg.name or name_in(call.meta.get(CLIENT_INFO))
        client, method = _clean_names(rules, name, call.method)
        record = AuditRecord(
            time=self.now(),
            kind="begin",
            run=self._run,
            exchange=exchange.number,
            principal=call.principal.name or None,
            view=cut(rules.clean(view), NAME_LIMIT) if view else None,
            peer=leg.peer,
            client=client,
            transport=leg.transport,
            revision=leg.revision,
            method=method,
            target=target_in(call.params),
            decision="allowed",
        )
        # Redacted before it is cut: half of a secret may not be recognisable. Short ones follow in `encode`.
        if record.target is not None and len(record.target) > TEXT_LIMIT:
            record.target = cut(rules.clean(record.target), TEXT_LIMIT)
        if call.method == m.LISTEN and (uris := listened_uris(call.params)):
            record.targets = [cut(rules.clean(uri), TEXT_LIMIT) for uri in uris[:TARGETS_LIMIT]]
            record.more_targets = max(0, len(uris) - TARGETS_LIMIT) or None
        if "traceparent" in call.meta or "traceparent" in headers:
            trace = trace_id(text_of(call.meta.get("traceparent"))) or trace_id(headers.get("traceparent"))
            record.trace = trace
        return record

    def end(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> AuditRecord:
        """Return the record of an exchange that has ended."""
        record = self.begin(exchange)
        record.kind = "exchange"
        record.upstreams = exchange.upstreams or None
        if exchange.intercepted:
            record.intercepted = []
            for verdict in exchange.intercepted[:VERDICTS_LIMIT]:
                entry = {"name": verdict.name, "on": verdict.on, "verdict": verdict.verdict}
                if verdict.digest_after:
                    entry |= {"before": verdict.digest_before, "after": verdict.digest_after}
                record.intercepted.append(entry)
        record.outcome = outcome_of(exchange.call.method, outcome)
        record.ms = micros_of(seconds) / 1000
        record.asked = params_size(exchange.call)
        if isinstance(outcome, Refused):
            record.decision, record.rule = "refused", outcome.rule
        if isinstance(outcome, RpcError):
            data = {"data": outcome.data} if outcome.data is not None else {}
            record.code = outcome.code
            record.answered = len(raw({"code": outcome.code, "message": outcome.message, **data}))
        elif not isinstance(outcome, BaseException):
            record.answered = size(outcome)
        elif record.outcome == BROKEN:
            record.error = type(outcome).__name__
        return record

    def encode(self, records: Sequence[AuditRecord]) -> list[bytes]:
        """Return redacted records for `chain.seal`."""
        rules = self._redactor.current  # one scan of all targets costs less than one of each
        targets = [record.target for record in records if record.target is not None]
        if not rules.leaves_text_unchanged("\n".join(targets)):
            for record in records:
                if record.target is not None:
                    record.target = cut(rules.clean(record.target), TEXT_LIMIT)
        return [_encode(record) for record in records]


@lru_cache(CALLERS_KEPT)
def _clean_names(rules: RuleSet, client: str | None, method: str) -> tuple[str | None, str]:
    """Return the name of a client and a method, redacted and cut."""
    return client and cut(rules.clean(client), NAME_LIMIT), cut(rules.clean(method), NAME_LIMIT)
