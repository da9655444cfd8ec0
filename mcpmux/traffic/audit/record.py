"""The audit log's format: the members of a record. Version 1.

A file is lines of JSON, one record each, in the order of their ends; see `chain` for the members `v`, `seq`,
`prev` and `hash` that every record has, and for the files. Members that would be null are left
out. Neither arguments nor results nor messages of errors are in a record.

| member | meaning |
| --- | --- |
| `time` | when the record was made, RFC 3339 in UTC with microseconds |
| `kind` | `exchange`, `begin`, `open`, `close`, `gap` |
| `run` | random hexadecimal name of the run of mcpmux, as in captures; `exchange` counts within it |

`exchange` is one request of a client, written when it has ended, before the client has the answer. `begin` is
the same without the members after `rule`, written before anything is done for it: for `subscriptions/listen`,
which may take days, or for every request (`begin = "all"`). A `begin` without its `exchange` was cut off.

| member | meaning |
| --- | --- |
| `exchange` | number of the exchange |
| `principal` | who was authenticated; absent without authentication |
| `peer` | `c` and the client's number |
| `client` | what the client calls itself, unproven |
| `transport`, `revision` | of the client's leg |
| `method` | what was asked |
| `target` | name or URI that it is about, as the client says it |
| `targets`, `more_targets` | URIs of a listen; how many more there were |
| `trace` | trace id (W3C Trace Context) from `traceparent` in `_meta`, or in the HTTP request's headers |
| `decision` | `allowed` or `refused` |
| `rule` | which rule refused it; `audit` when this log could not be written |
| `upstreams` | configured names of those that were asked for it, in this order |
| `outcome` | `answered`; `unavailable`, `timeout`: an upstream did not answer; `cancelled`; `broken` |
| `code` | JSON-RPC error code of the answer |
| `failed` | true for a tool's result with `isError` |
| `result` | `resultType` of the answer when it is not `complete` |
| `error` | kind of the exception that broke it |
| `ms` | duration in milliseconds |
| `asked`, `answered` | size of `params` and of `result` or `error` in bytes of JSON, without the envelope |

Longer texts than the limits below are cut; a cut one ends with `…`.

`open` begins every file and every run: `version` of mcpmux, `file` (number of the file that it begins; absent
for a run that goes on in one), `keyed` when the hashes have a key, and, when the last run was killed while it
wrote, `torn` (bytes of the unfinished line that was taken out) and `fragment` (its beginning). `close` is the
orderly end of a run. `gap`: the log could not be written from `since` on, for `ms`, for the `reason`;
`refused` exchanges were not worked on, `late` records were written afterwards, `lost` ones never. With
`on_full = "refuse"` the clients of late records had an error in place of the answer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as _quote
from typing import Any

import msgspec
import trio

from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_INFO, META, Call, Meta
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import raw, text_of, value_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.tap import name_in
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.record import MICROS, cut, listened_uris, rfc3339, target_in
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet

TEXT_LIMIT = 2048  # characters of a target
NAME_LIMIT = 200  # characters of a client's name or a method
TARGETS_LIMIT = 50  # URIs of a listen
FRAGMENT_LIMIT = 4096  # bytes of a torn line; records are rarely longer
CALLERS_KEPT = 256  # whose members are encoded once

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_UPSTREAM_OUTCOMES = {UPSTREAM_UNAVAILABLE: "unavailable", UPSTREAM_TIMEOUT: "timeout"}
_COMPLETE = Raw(b'"complete"')

_MEMBERS = (
    "time kind run exchange principal peer client transport revision method target targets more_targets "
    "trace decision rule upstreams outcome code failed result error version file keyed torn fragment since "
    "reason refused late lost ms asked answered"
)
AuditRecord: Any = msgspec.defstruct(
    "AuditRecord",
    [(name, Any, None) for name in map(sys.intern, _MEMBERS.split())],  # found by identity when set
    kw_only=True,
    omit_defaults=True,
    gc=False,
)
"""One record without its place in the chain; see the module for what its members mean."""

_encode = msgspec.json.Encoder().encode


def trace_id(traceparent: str | None) -> str | None:
    """The trace id in a `traceparent` (W3C Trace Context), None when it is absent or malformed."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    return found[1] if found is not None else None


def params_size(call: Call) -> int:
    """Bytes of a call's `params`, `_meta` included."""
    params, meta = call.params, call.meta
    if not meta and type(meta) is not Meta:
        return size(params)
    inner = len(meta.encoded) if type(meta) is Meta else size(meta)
    return size(params) + inner + len(META) + 3 + bool(params)


def size(members: Fields) -> int:
    """Bytes of an object with these members, without spaces; keys are taken to need no escapes."""
    total = 1 if members else 2
    for key, value in members.items():
        total += len(value) + 4 + (len(key) if key.isascii() else len(key.encode()))
    return total


class RecordMaker:
    """Makes the records of one run. `wall` gives seconds since 1970."""

    def __init__(self, run: str, redactor: Redactor, wall: Callable[[], float]) -> None:
        self._run = run
        self._redactor = redactor
        self._wall = wall

    def now(self) -> str:
        """The time as the log writes it."""
        return rfc3339(round(self._wall() * MICROS))

    def plain(self, kind: str, **members: Any) -> Any:
        """An AuditRecord with these members."""
        return AuditRecord(time=self.now(), kind=kind, run=self._run, **members)

    def begin(self, exchange: Exchange, kind: str = "begin") -> Any:
        """An AuditRecord of who asks what, before anything is done. Only its target is not redacted yet."""
        leg, call = exchange.leg, exchange.call
        rules = self._redactor.current
        principal = call.principal.name
        client = leg.name or name_in(call.meta.get(CLIENT_INFO))
        before, behind = _encode_caller(rules, principal, client, leg.transport, leg.revision, call.method)
        target = target_in(call.params)
        if target is not None and len(target) > TEXT_LIMIT:
            target = cut(rules.clean(target), TEXT_LIMIT)
        record = self.plain(kind)
        record.exchange, record.target, record.decision = exchange.number, target, "allowed"
        caller = Raw(f"{before}{_quote(leg.peer)}{behind}".encode())  # and all members up to `target`
        if principal:
            record.principal = caller
        else:
            record.peer = caller
        if "traceparent" in call.meta or "traceparent" in exchange.headers:
            said, sent = text_of(call.meta.get("traceparent")), exchange.headers.get("traceparent")
            record.trace = trace_id(said) or trace_id(sent)
        if call.method == m.LISTEN and (uris := listened_uris(call.params)):
            record.targets = [cut(rules.clean(uri), TEXT_LIMIT) for uri in uris[:TARGETS_LIMIT]]
            record.more_targets = max(0, len(uris) - TARGETS_LIMIT) or None
        return record

    def end(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Any:
        """An AuditRecord of the whole of an exchange that has ended. Only its target is not redacted yet."""
        record = self.begin(exchange, "exchange")
        record.upstreams = exchange.upstreams or None
        record.ms = round(seconds * MICROS) / 1000
        record.asked = params_size(exchange.call)
        record.outcome = "answered"
        if not isinstance(outcome, BaseException):
            record.answered = size(outcome)
            failed, kind = outcome.get("isError"), outcome.get("resultType")
            if failed is not None and exchange.call.method == m.TOOLS_CALL and value_of(failed) is True:
                record.failed = True
            if kind is not None and kind != _COMPLETE and (text := text_of(kind)) is not None:
                record.result = cut(text, NAME_LIMIT)
        elif isinstance(outcome, RpcError):
            if isinstance(outcome, Refused):
                record.decision, record.rule = "refused", outcome.rule
            record.code = outcome.code
            record.outcome = _UPSTREAM_OUTCOMES.get(outcome.code, "answered")
            data = {"data": outcome.data} if outcome.data is not None else {}
            record.answered = len(raw({"code": outcome.code, "message": outcome.message, **data}))
        elif isinstance(outcome, trio.Cancelled):
            record.outcome = "cancelled"
        else:
            record.outcome, record.error = "broken", type(outcome).__name__
        return record

    def encode(self, records: Sequence[Any]) -> list[bytes]:
        """AuditRecords as `chain.seal` takes them, redacted."""
        rules = self._redactor.current  # one look at all targets costs less than one at each
        if not rules.leaves_text_unchanged("\n".join([each.target for each in records if each.target])):
            for record in records:
                if record.target is not None:
                    record.target = cut(rules.clean(record.target), TEXT_LIMIT)
        return list(map(_encode, records))


@lru_cache(CALLERS_KEPT)
def _encode_caller(
    rules: RuleSet, principal: str, client: str | None, transport: str, revision: str | None, method: str
) -> tuple[str, str]:
    """What records of a caller have before and behind `peer`, from the value of `principal` on."""
    before = f'{_quote(principal)},"peer":' if principal else ""
    client, method = client and cut(rules.clean(client), NAME_LIMIT), cut(rules.clean(method), NAME_LIMIT)
    said = {"client": client, "transport": transport, "revision": revision, "method": method}
    behind = _encode({name: text for name, text in said.items() if text is not None})
    return before, f",{behind[1:-1].decode()}"
