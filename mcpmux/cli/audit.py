"""`mcpmux audit`: verify the audit log, search in it, and print its head."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from mcpmux.cli.console import show_json, tell
from mcpmux.cli.main import Group
from mcpmux.cli.options import PATH, Decorator, Parsed, json_option
from mcpmux.cli.process import Mistake
from mcpmux.cli.traffic.source import read_filter
from mcpmux.config.scalars import Text
from mcpmux.errors import ConfigError
from mcpmux.format import count_text, time_text
from mcpmux.printable import printable
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.audit.chain import KeyNeeded, chains_in, read_head, read_records, verify
from mcpmux.traffic.audit.record import MEMBERS
from mcpmux.traffic.reading.filters import TIME_LENGTH, Key, Sightings
from mcpmux.transports.byte_stream import reason_of

# The keys of filters for records: their members. A member that is a list fits if one of its items does.

_ALIASES = {
    "upstreams": ("upstream", "server"),
    "ms": ("duration", "latency"),
    "target": ("uri", "name", "tool"),
    "principal": ("who", "user"),
    "outcome": ("status",),
}
_SORTS = {
    "exchange": "exchange",
    **dict.fromkeys(("seq", "code", "torn", "refused", "late", "lost"), "number"),
    **dict.fromkeys(("file", "v", "more_targets"), "number"),
    "keyed": "flag",
    **dict.fromkeys(("asked", "answered"), "size"),
    **dict.fromkeys(("since", "until"), "since"),
    "ms": "duration",
    "time": "time",
}
_TIMES = ("since", "until", "time")


def _value(name: str, record: Mapping[str, Any]) -> Any:
    if name in _TIMES:
        return str(record.get("time"))[:TIME_LENGTH]
    member = record.get("targets" if name == "target" and not record.get(name) else name)
    if name in _SORTS or member is None:
        return member
    values = member if isinstance(member, list) else [member]
    return tuple(value if isinstance(value, str) else bytes(raw(value)).decode() for value in values)


KEYS = {
    alias: Key(name, aliases, _SORTS.get(name, "text"), "", partial(_value, name))
    for name in ("v", "seq", "prev", "hash", *MEMBERS, "until")
    for aliases in [_ALIASES.get(name, ())]
    for alias in (name, *aliases)
}

KEY_VARIABLE = "MCPMUX_AUDIT_KEY"
_HEAD = Text("a line of `mcpmux audit head`, or its hash of 64 hexadecimal digits", "[0-9a-f]{64}( .*)?")
HASH = Parsed("HASH", lambda value: _HEAD.read(value).split()[0])
path_argument: Decorator = click.argument("path", type=PATH)


@click.group(cls=Group)
def audit() -> None:
    """Check and read the audit log.

    \b
    Examples:
      mcpmux audit verify /var/log/mcpmux/audit
      mcpmux audit show /var/log/mcpmux/audit method=tools/call decision=refused
      mcpmux audit head /var/log/mcpmux/audit
    """


@audit.command("verify")
@path_argument
@click.option(
    "--key-file", type=PATH, help=f"File with the key. Default: the variable {KEY_VARIABLE}, or no key."
)
@click.option("--head", type=HASH, help="A head from earlier, which must still be in the log.")
@click.option("--after", type=HASH, help="Hash before the first record, if older files are elsewhere.")
def verify_command(path: Path, key_file: Path | None, head: str | None, after: str | None) -> None:
    """Find the first record that was changed, removed, inserted or moved. Nothing is written.

    PATH is the folder, or one file of it. The exit code is 0 if the chain holds. It is 1 if it does not: the
    message then names the file, the line and what is wrong there. It is 2 if it cannot be checked. Only
    --head shows whether records were cut off at the end.

    \b
    Examples:
      mcpmux audit verify /var/log/mcpmux/audit
      mcpmux audit verify /var/log/mcpmux/audit --head "$(cat noted-head)"
      mcpmux audit verify audit-000007.jsonl --key-file audit.key
    """
    key, chains = read_key(key_file), chains_in(path)
    if len(chains) > 1 and (head is not None or after is not None):
        raise Mistake(
            f"{path}: there is a chain of each worker or replica; name one of them, such as {chains[0]}"
        )
    for chain in chains:
        if chain != path:
            click.echo(f"{printable(chain.name)}: ", nl=False)
        try:
            verify_chain(chain, key, after, head)
        except KeyNeeded as error:
            raise Mistake(f"{error}: give it with --key-file, or in {KEY_VARIABLE}") from None


def verify_chain(path: Path, key: bytes | None, after: str | None, head: str | None) -> None:
    """Print whether one chain holds. Raises ClickException if it does not, ConfigError."""
    verdict = verify(path, key, after, head)
    if verdict.records:
        verb = "hold" if verdict.records > 1 else "holds"
        numbers = f"number {verdict.first} to {verdict.head.seq}"
        holds = f"{count_text(verdict.records, 'record')}, {numbers}, {verb}"
    else:
        holds = "no record holds" if verdict.fault is not None else "there is no record"
    if verdict.fault is not None:
        raise click.ClickException(f"{printable(str(verdict.fault))} ({holds} before it)")
    if verdict.anchored is False:
        raise click.ClickException(
            f"{printable(str(path))}: no record has the hash {printable(head or '')}, so the end was cut "
            f"off or the log was replaced ({holds})"
        )
    click.echo(f"{holds}, in {count_text(verdict.files, 'file')}; head {verdict.head.hash}")
    if verdict.torn:
        tell(
            f"the last line is unfinished ({count_text(verdict.torn, 'byte')}): it is being written, mcpmux "
            "was killed while it wrote it, or the end of the file was lost; whether its client had an answer "
            "is not known"
        )
    if verdict.first > 1 and after is None:
        tell(f"what is before record {verdict.first} was not checked; --after or the folder would")
    if key is None:
        tell("without a key, whoever can write the files could have made all of this anew")
    if head is None:
        tell("records that were cut off at the end are found only with --head")


@audit.command()
@path_argument
@click.argument("conditions", nargs=-1, metavar="[FILTER]...")
@json_option(help="Print the records unchanged, one on each line.")
def show(path: Path, conditions: tuple[str, ...], as_json: bool) -> None:
    """Print all records, or those that fit a filter. They are not verified.

    PATH is the folder, or one file of it. A filter is written as for `mcpmux traffic`. Its keys are the
    members of records: kind, principal, view, client, method, target, upstream, decision, rule, outcome,
    code, ms, asked, answered, trace, since, until …

    \b
    Examples:
      mcpmux audit show /var/log/mcpmux/audit
      mcpmux audit show /var/log/mcpmux/audit upstream=docs 'outcome!=ok'
      mcpmux audit show /var/log/mcpmux/audit 'principal=corp:* method=tools/* ms>200' since=1h
      mcpmux audit show /var/log/mcpmux/audit outcome=tool_error --json
    """
    filter_ = read_filter(" ".join(conditions), names=KEYS)
    is_wanted: Callable[[Any], bool] = filter_.matches
    sightings: Any = Sightings(filter_)  # of records of any kind
    unread = shown = 0
    for where, record, line in itertools.chain.from_iterable(map(read_records, chains_in(path))):
        if record is None:
            unread += 1
            tell(f"{where}: no record")
            continue
        sightings.add(record)
        if is_wanted(record):
            shown += 1
            if as_json:
                show_json(Raw(line))
            else:
                click.echo(printable(describe(record)))
    if filter_ and not shown:
        tell(f"no record fits the filter{sightings.advice()}")
    if unread:
        raise click.ClickException(
            f"{count_text(unread, 'line')} could not be read; see `mcpmux audit verify`"
        )


@audit.command()
@path_argument
def head(path: Path) -> None:
    """Print the hash and the number of the last record. Keep them elsewhere for `verify --head`.

    \b
    Example:
      mcpmux audit head /var/log/mcpmux/audit
    """
    for chain in chains_in(path):
        link = read_head(chain)
        click.echo(f"{link.hash} {link.seq}" + (f" {printable(chain.name)}" if chain != path else ""))


def read_key(file: Path | None) -> bytes | None:
    """Return the key from `file` or the environment, None without one. Raises ConfigError."""
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").encode() or None
    try:
        key = file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError([f"--key-file: {file}: {reason_of(error)}"]) from None
    if not key:
        raise ConfigError([f"--key-file: {file} is empty"])
    return key


def describe(record: Mapping[str, Any]) -> str:
    """Return a record on one line, for people."""
    kind = record.get("kind")
    parts = [f"{record.get('time')}", f"{record.get('seq')}"]
    if kind == "exchange" or kind == "begin":
        client = str(record.get("client") or record.get("peer"))
        upstreams = ",".join(map(str, record.get("upstreams") or ()))
        outcome, ms = str(record.get("outcome")), record.get("ms")
        if kind == "begin":
            outcome = "begun"
        elif record.get("decision") == "refused":
            outcome = f"refused by {record.get('rule')}"
        elif record.get("code") is not None:
            outcome = f"{outcome} {record['code']}"
        parts += [
            f"{record['principal']} ({client})" if record.get("principal") else client,
            str(record.get("method")),
            record.get("target") or " ".join(map(str, record.get("targets") or ())),
            f"→ {upstreams}" if upstreams else "",
            outcome,
            time_text(ms / 1000) if isinstance(ms, int | float) else "",
        ]
        verdicts = [entry for entry in record.get("intercepted") or () if isinstance(entry, dict)]
        parts += [
            f"{entry.get('name')}: {entry.get('verdict')} on {entry.get('on')}"
            for entry in verdicts
            if entry.get("verdict") not in ("pass", "refuse")  # a refusal is the outcome already
        ]
    else:
        plain = {"v", "seq", "prev", "hash", "time", "kind", "fragment"}
        parts += [str(kind), *(f"{key}={value}" for key, value in record.items() if key not in plain)]
    return "  ".join(part for part in parts if part)
