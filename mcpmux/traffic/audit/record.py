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
from mcpmux.traffic.record import MICROS, cut, listened_uris, micros_of, rfc3339, second_of, target_in
from mcpmux.traffic.redaction.redactor import Redactor

TEXT_LIMIT = 2048  # characters of a target
NAME_LIMIT = 200  # characters of a client's name or a method
TARGETS_LIMIT = 50  # URIs of a listen
FRAGMENT_LIMIT = 4096  # bytes of a torn line; records are rarely longer

Clean = Callable[[str], str]
"""Takes secrets out of a stranger's text."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_UPSTREAM_OUTCOMES = {UPSTREAM_UNAVAILABLE: "unavailable", UPSTREAM_TIMEOUT: "timeout"}


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

encode_audit: Callable[[Any], bytes] = msgspec.json.Encoder().encode
"""The AuditRecord as `chain.seal` takes it."""


def milliseconds(seconds: float) -> float:
    """A duration as the log writes it: to the microsecond."""
    return micros_of(seconds) / 1000


def begin_record(exchange: Exchange, time: str, run: str, clean: Clean) -> Any:
    """An AuditRecord: who asks what, before anything is done."""
    leg, call = exchange.leg, exchange.call
    uris = listened_uris(call.params) if call.method == m.LISTEN else []

    def said(text: str | None, limit: int) -> str | None:
        return None if text is None else cut(clean(text), limit)

    return AuditRecord(
        time=time,
        kind="begin",
        run=run,
        exchange=exchange.number,
        principal=call.principal.name or None,
        peer=leg.peer,
        client=said(leg.name or name_in(call.meta.get(CLIENT_INFO)), NAME_LIMIT),
        transport=leg.transport,
        revision=leg.revision,
        method=said(call.method, NAME_LIMIT),
        target=said(target_in(call.params), TEXT_LIMIT),
        targets=[cut(clean(uri), TEXT_LIMIT) for uri in uris[:TARGETS_LIMIT]] or None,
        more_targets=max(0, len(uris) - TARGETS_LIMIT) or None,
        trace=trace_id(text_of(call.meta.get("traceparent")))
        or trace_id(exchange.headers.get("traceparent")),
        decision="allowed",
    )


def end_record(
    exchange: Exchange, outcome: Fields | BaseException, seconds: float, time: str, run: str, clean: Clean
) -> Any:
    """An AuditRecord: the whole of an exchange that has ended."""
    record = begin_record(exchange, time, run, clean)
    record.kind = "exchange"
    record.upstreams = exchange.upstreams or None
    record.ms = milliseconds(seconds)
    record.asked = params_size(exchange.call)
    record.outcome = "answered"
    if isinstance(outcome, Refused):
        record.decision, record.rule = "refused", outcome.rule
    if isinstance(outcome, RpcError):
        record.code = outcome.code
        record.outcome = _UPSTREAM_OUTCOMES.get(outcome.code, "answered")
        data = {"data": outcome.data} if outcome.data is not None else {}
        record.answered = len(raw({"code": outcome.code, "message": outcome.message, **data}))
    elif isinstance(outcome, trio.Cancelled):
        record.outcome = "cancelled"
    elif isinstance(outcome, BaseException):
        record.outcome, record.error = "broken", type(outcome).__name__
    else:
        record.answered = size(outcome)
        if exchange.call.method == m.TOOLS_CALL and value_of(outcome.get("isError")) is True:
            record.failed = True
        kind = text_of(outcome.get("resultType"))
        if kind is not None and kind != "complete":
            record.result = cut(kind, NAME_LIMIT)
    return record


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
    if not members:
        return 2
    return 1 + len("".join(members).encode()) + sum(map(len, members.values())) + 4 * len(members)


# The bodies of records, as `chain` takes them.
#
# Most exchanges are answered with a result, for a client that is known by name. Their bodies are assembled
# from parts that are the same for many; all others are encoded from an AuditRecord. The records are the same.

KEPT = 256  # callers, and names of upstreams, that are kept as they are written

_COMPLETE = Raw(b'"complete"')
_FALSE = Raw(b"false")
_BEHIND = ',"decision":"allowed"%s,"outcome":"answered","ms":%d.%03d,"asked":%d,"answered":%d}'
_META_BYTES = len(META) + 4  # its name, and what is around it behind another member

UnredactedBody = tuple[str, str, str]
"""A body whose target has not been redacted: what is before it, the target, and what is behind it."""

Body = bytes | UnredactedBody


class RecordBodies:
    """Of the records of one run. `wall` gives seconds since 1970."""

    def __init__(self, run: str, redactor: Redactor, wall: Callable[[], float]) -> None:
        self._run = run
        self._redactor = redactor
        self._rules = redactor.current  # what the callers' texts were redacted by
        self._wall = wall
        self._texts_of = lru_cache(KEPT)(self._encode_caller)
        self._before = f'Z","kind":"exchange","run":{_quote(run)},"exchange":'.replace("%", "%%")
        self._before = '{"time":"%s.%06d' + self._before + '%d,%s"peer":%s,%s'

    def __repr__(self) -> str:
        return f"<RecordBodies of {self._run} {self._texts_of.cache_info().currsize} callers>"

    def now(self) -> str:
        """The time as the log writes it."""
        return rfc3339(micros_of(self._wall()))

    def plain(self, kind: str, **members: Any) -> bytes:
        """A record that is about no exchange."""
        return encode_audit(AuditRecord(time=self.now(), kind=kind, run=self._run, **members))

    def begin(self, exchange: Exchange) -> bytes:
        """Who asks what, before anything is done."""
        return encode_audit(begin_record(exchange, self.now(), self._run, self._redactor.clean))

    def end(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Body:
        """The whole of an exchange that has ended."""
        body = None if isinstance(outcome, BaseException) else self._assemble(exchange, outcome, seconds)
        if body is not None:
            return body
        clean = self._redactor.clean
        return encode_audit(end_record(exchange, outcome, seconds, self.now(), self._run, clean))

    def finish(self, bodies: Sequence[Body]) -> list[bytes]:
        """The same with redacted targets: one look at all of them costs less than one at each."""
        targets = [body[1] for body in bodies if not isinstance(body, bytes)]
        rules = self._redactor.current
        is_clean = rules.leaves_text_unchanged("\n".join(targets))
        finished = []
        for body in bodies:
            if isinstance(body, bytes):
                finished.append(body)
                continue
            before, target, behind = body
            if not is_clean:
                target = cut(rules.clean(target), TEXT_LIMIT)
            finished.append((before + _quote(target) + behind).encode())
        return finished

    def _assemble(self, exchange: Exchange, result: Fields, seconds: float) -> UnredactedBody | None:
        """None when it has other members than these."""
        kind, error = result.get("resultType"), result.get("isError")
        if (kind is not None and kind != _COMPLETE) or (error is not None and error != _FALSE):
            return None
        call, leg = exchange.call, exchange.leg
        params, meta = call.params, call.meta
        asked = len(meta.encoded) + _META_BYTES if type(meta) is Meta else 0
        if (meta and not asked) or "traceparent" in exchange.headers:
            return None
        key = "uri" if "uri" in params else "name"
        about = params.get(key)
        target = text_of(about)
        if about is None or target is None or len(target) > TEXT_LIMIT:
            return None
        rules = self._redactor.current
        if rules is not self._rules:
            self._rules = rules
            self._texts_of.cache_clear()
        known = self._texts_of(call.principal.name, leg.name, leg.transport, leg.revision, call.method)
        if known is None:
            return None
        asked += len(about) + len(key) + 5 if len(params) == 1 else size(params)
        micros, duration = round(self._wall() * MICROS), round(seconds * MICROS)
        second = second_of(micros // MICROS)
        before, behind = known
        return (
            self._before % (second, micros % MICROS, exchange.number, before, _quote(leg.peer), behind),
            target,
            _BEHIND
            % (_upstreams_text(*exchange.upstreams), duration // 1000, duration % 1000, asked, size(result)),
        )

    def _encode_caller(
        self, principal: str, client: str | None, transport: str, revision: str | None, method: str
    ) -> tuple[str, str] | None:
        """What records of a caller have before and behind `peer`.

        None when the client is not known by name, or its records have other members.
        """
        if not client or revision is None or method == m.LISTEN:
            return None
        clean = self._rules.clean
        before = f'"principal":{_quote(principal)},' if principal else ""
        spoken = f'"transport":{_quote(transport)},"revision":{_quote(revision)}'
        client, method = cut(clean(client), NAME_LIMIT), cut(clean(method), NAME_LIMIT)
        return before, f'"client":{_quote(client)},{spoken},"method":{_quote(method)},"target":'


@lru_cache(KEPT)
def _upstreams_text(*names: str) -> str:
    return f',"upstreams":[{",".join(map(_quote, names))}]' if names else ""
