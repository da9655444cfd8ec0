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
| `principal` | authenticated principal; absent without authentication |
| `view` | name of the view, with its client's narrowing; absent in the one with everything |
| `peer` | `c` and the client's number |
| `client` | the client's name for itself, unproven |
| `transport`, `revision` | of the client's leg |
| `method` | method of the request |
| `target` | name or URI that it is about, in the client's words |
| `targets`, `more_targets` | URIs of a listen; how many more there were |
| `trace` | trace id (W3C Trace Context) from `traceparent` in `_meta`, or in the HTTP request's headers |
| `decision` | `allowed` or `refused` |
| `rule` | rule that refused it; `audit` when this log could not be written |
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
from collections.abc import Callable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as _quote
from typing import Any, Final

import msgspec
import trio

from mcpmux.channels.tap import name_in
from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_INFO, META, Call, Meta, target_in
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import raw, text_of, value_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.record import MICROS, cut, listened_uris, second_of
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet


class AuditRecord:
    """One record without its place in the chain, encoded except for the value of `target`, if it has one.

    `before`: an object with the members before it; `behind`: the members behind it, and the object's end.
    """

    __slots__ = ("before", "behind", "target")

    def __init__(self, before: str, target: str | None, behind: str) -> None:
        self.before, self.target, self.behind = before, target, behind


TEXT_LIMIT: Final = 2048  # characters of a target
NAME_LIMIT: Final = 200  # characters of a client's name or a method
TARGETS_LIMIT: Final = 50  # URIs of a listen
FRAGMENT_LIMIT: Final = 4096  # bytes of a torn line; records are rarely longer
CALLERS_KEPT: Final = 256  # whose members are redacted once: 4 MiB at most, as methods are bounded

_MEMBERS: Final = (
    "time kind run exchange principal view peer client transport revision method target targets more_targets "
    "trace decision rule upstreams outcome code failed result error version file keyed torn fragment since "
    "reason refused late lost ms asked answered"
)
MEMBERS: Final = _MEMBERS.split()

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_UPSTREAM_OUTCOMES: Final = {UPSTREAM_UNAVAILABLE: "unavailable", UPSTREAM_TIMEOUT: "timeout"}
_COMPLETE: Final = Raw(b'"complete"')

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
        micros = _whole(self._wall() * MICROS)
        if not 0 <= micros - self._second < MICROS:
            self._second = micros - micros % MICROS
            self._second_text = second_of(micros // MICROS)
        return f"{self._second_text}.{str(MICROS + micros - self._second)[1:]}Z"

    def _opening(self, kind: str) -> str:
        return f'{{"time":"{self.now()}","kind":"{kind}","run":"{self._run}"'

    def plain(self, kind: str, **members: Any) -> AuditRecord:
        """Return a record with these members, except those that are None."""
        present = {name: value for name, value in members.items() if value is not None}
        return AuditRecord(self._opening(kind) + _members(present), None, "}")

    def begin(self, exchange: Exchange) -> AuditRecord:
        """Return the record of a request before it is worked on."""
        head, target, tail = self._asked(exchange, "begin")
        return AuditRecord(head, target, tail + ',"decision":"allowed"}')

    def _asked(self, exchange: Exchange, kind: str) -> tuple[str, str | None, str]:
        """Return a record's members before its target, that target, and those behind it up to `decision`."""
        leg, call, headers = exchange.leg, exchange.call, exchange.headers
        rules, principal = self._redactor.current, call.principal.name
        client = leg.name or name_in(call.meta.get(CLIENT_INFO))
        who = f',"principal":{_quote(principal)}' if principal else ""
        if call.principal.view:
            who += f',"view":{_quote(cut(rules.clean(call.principal.view), NAME_LIMIT))}'
        caller = _encode_caller(rules, client, leg.transport, leg.revision, call.method)
        head = f'{self._opening(kind)},"exchange":{exchange.number}{who},"peer":{_quote(leg.peer)}{caller}'
        target = target_in(call.params)
        # Redacted before it is cut: half of a secret may not be recognisable.
        if target is not None and len(target) > TEXT_LIMIT:
            target = cut(rules.clean(target), TEXT_LIMIT)
        tail = ""
        if call.method == m.LISTEN and (uris := listened_uris(call.params)):
            targets = [cut(rules.clean(uri), TEXT_LIMIT) for uri in uris[:TARGETS_LIMIT]]
            tail = _members({"targets": targets})
            if len(uris) > TARGETS_LIMIT:
                tail += f',"more_targets":{len(uris) - TARGETS_LIMIT}'
        if "traceparent" in call.meta or "traceparent" in headers:
            trace = trace_id(text_of(call.meta.get("traceparent"))) or trace_id(headers.get("traceparent"))
            tail += f',"trace":"{trace}"' if trace is not None else ""
        return head, target, tail

    def end(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> AuditRecord:
        """Return the record of an exchange that has ended."""
        head, target, tail = self._asked(exchange, "exchange")
        if isinstance(outcome, Refused):
            tail += f',"decision":"refused","rule":{_quote(outcome.rule)}'
        else:
            tail += ',"decision":"allowed"'
        if exchange.upstreams:
            tail += f',"upstreams":[{",".join([_quote(upstream) for upstream in exchange.upstreams])}]'
        answered = ""
        if not isinstance(outcome, BaseException):
            tail += f',"outcome":"answered"{_facts(exchange.call.method, outcome)}'
            answered = f',"answered":{size(outcome)}'
        elif isinstance(outcome, RpcError):
            word = _UPSTREAM_OUTCOMES.get(outcome.code, "answered")
            tail += f',"outcome":"{word}","code":{outcome.code}'
            data = {"data": outcome.data} if outcome.data is not None else {}
            answered = f',"answered":{len(raw({"code": outcome.code, "message": outcome.message, **data}))}'
        elif isinstance(outcome, trio.Cancelled):
            tail += ',"outcome":"cancelled"'
        else:
            tail += f',"outcome":"broken","error":"{type(outcome).__name__}"'
        micros, request_bytes = _whole(seconds * MICROS), params_size(exchange.call)
        ms = f"{micros // 1000}.{str(1000 + micros % 1000)[1:]}"
        return AuditRecord(head, target, f'{tail},"ms":{ms},"asked":{request_bytes}{answered}}}')

    def encode(self, records: Sequence[AuditRecord]) -> list[bytes]:
        """Return redacted records for `chain.seal`."""
        rules = self._redactor.current  # one scan of all targets costs less than one of each
        targets = [record.target for record in records if record.target is not None]
        is_clean = rules.leaves_text_unchanged("\n".join(targets))
        encoded = []
        for record in records:
            target = record.target
            if target is None:
                encoded.append(f"{record.before}{record.behind}".encode())
                continue
            if not is_clean:
                target = cut(rules.clean(target), TEXT_LIMIT)
            encoded.append(f'{record.before},"target":{_quote(target)}{record.behind}'.encode())
        return encoded


def _whole(number: float) -> int:
    """Return the nearest integer to a number that is not negative; `round` costs many times as much here."""
    return int(number + 0.5)


def _facts(method: str, result: Fields) -> str:
    """Return a record's members about a result, if it is an unusual one."""
    failed, kind, facts = result.get("isError"), result.get("resultType"), ""
    if failed is not None and method == m.TOOLS_CALL and value_of(failed) is True:
        facts = ',"failed":true'
    if kind is not None and kind != _COMPLETE and (text := text_of(kind)) is not None:
        facts += f',"result":{_quote(cut(text, NAME_LIMIT))}'
    return facts


def _members(members: dict[str, Any]) -> str:
    """Return the members of an object, each behind a comma."""
    return f",{_encode(members)[1:-1].decode()}" if members else ""


@lru_cache(CALLERS_KEPT)
def _encode_caller(
    rules: RuleSet, client: str | None, transport: str, revision: str | None, method: str
) -> str:
    """Return the members of a caller's records from `client` to `method`."""
    client, method = client and cut(rules.clean(client), NAME_LIMIT), cut(rules.clean(method), NAME_LIMIT)
    facts = {"client": client, "transport": transport, "revision": revision, "method": method}
    return _members({name: text for name, text in facts.items() if text is not None})
