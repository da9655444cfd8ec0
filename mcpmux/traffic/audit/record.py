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
which may take days. A `begin` without its `exchange` was cut off.

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
| `intercepted` | verdicts of interceptors: `name`, `on`, `verdict`; of a change, `before` and `after` |
| `outcome` | how it ended, in a word of `traffic/outcome` |
| `code` | JSON-RPC error code of the answer |
| `error` | kind of the exception that broke it |
| `ms` | duration in milliseconds |
| `asked`, `answered` | size of `params` and of `result` or `error` in bytes of JSON, without the envelope |

`before` and `after` are SHA-256 of the `params`, the result or the error, in JSON. Longer texts than the
limits in `record_maker` are cut; a cut one ends with `…`.

`open` begins every file and every run: `version` of mcpmux, `file` (number of the file that it begins; absent
for a run that goes on in one), `keyed` when the hashes have a key, and, when the last run was killed while it
wrote, `torn` (bytes of the unfinished line that was taken out) and `fragment` (its beginning). `close` is the
orderly end of a run. `gap`: the log could not be written from `since` on, for `ms`, for the `reason`;
`refused` exchanges were not worked on, `late` records were written afterwards, `lost` ones never. With
`on_full = "refuse"` the clients of late records had an error in place of the answer.
"""

from __future__ import annotations

from typing import Final

import msgspec


class AuditRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One record, with its members in their order, without its place in the chain."""

    time: str
    kind: str
    run: str
    exchange: int | None = None
    principal: str | None = None
    view: str | None = None
    peer: str | None = None
    client: str | None = None
    transport: str | None = None
    revision: str | None = None
    method: str | None = None
    target: str | None = None
    targets: list[str] | None = None
    more_targets: int | None = None
    trace: str | None = None
    decision: str | None = None
    rule: str | None = None
    upstreams: list[str] | None = None
    intercepted: list[dict[str, str]] | None = None
    outcome: str | None = None
    code: int | None = None
    error: str | None = None
    version: str | None = None
    file: int | None = None
    keyed: bool | None = None
    torn: int | None = None
    fragment: str | None = None
    since: str | None = None
    reason: str | None = None
    refused: int | None = None
    late: int | None = None
    lost: int | None = None
    ms: float | None = None
    asked: int | None = None
    answered: int | None = None


MEMBERS: Final = AuditRecord.__struct_fields__
