"""`mcpmux audit`: exit codes and messages for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mcpmux.channels.tap import NO_HEADERS
from mcpmux.cli.audit import describe
from mcpmux.config import Audit as AuditSettings
from mcpmux.config import Secret
from mcpmux.errors import Refused, RpcError
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.audit.opening import open_audit
from mcpmux.traffic.observer import Exchange
from tests.cli.invoking import Invoke
from tests.traffic.audit_world import WALL, call_of, fields, leg_of, read_log

KEY = "a key of the tests"
NO_WRITES = Refused(-32600, "no", "no-writes")

DONE: list[tuple[str, dict[str, str], Fields | BaseException]] = [
    ("resources/read", {"uri": "docs+memo:1"}, fields({"contents": []})),
    ("tools/call", {"name": "docs__search"}, fields({"isError": True})),
    ("tools/call", {"name": "docs__write"}, NO_WRITES),
    ("tools/call", {"name": "evil\x1b[31m"}, RpcError(-32602, "no")),
    ("prompts/get", {"name": "x"}, RpcError(-31002, "slow")),
    ("tools/call", {"name": "ask"}, fields({"resultType": "input_required"})),
]


async def write(directory: Path, key: str | None = None) -> None:
    """Log a run with one exchange of each kind."""
    settings = AuditSettings(directory=str(directory), key=Secret(key) if key else None)
    async with open_audit(settings, "run", wall=lambda: WALL) as audit:
        for number, (method, params, outcome) in enumerate(DONE, 1):
            call = call_of(method, NO_HEADERS, **params)
            exchange = Exchange(number, leg_of("desk"), call, 0.0, ["docs"], NO_HEADERS)
            await audit.admit(exchange)
            await audit.ended(exchange, outcome, 0.0125)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    trio.run(write, tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCPMUX_AUDIT_KEY", raising=False)


def change(directory: Path, change_lines: Callable[[list[bytes]], object]) -> Path:
    path = directory / "audit-000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    change_lines(lines)
    path.write_bytes(b"".join(lines))
    return path


def test_a_good_log_is_told_with_what_that_does_not_prove(invoke: Invoke, directory: Path) -> None:
    result = invoke("audit", "verify", str(directory))
    head = read_log(directory)[-1]["hash"]
    assert result.exit_code == 0
    assert result.stdout == f"8 records, number 1 to 8, hold, in 1 file; head {head}\n"
    assert result.stderr.splitlines() == [
        "without a key, whoever can write the files could have made all of this anew",
        "records that were cut off at the end are found only with --head",
    ]


def test_a_log_with_key_and_head_leaves_no_doubt(invoke: Invoke, tmp_path: Path) -> None:
    trio.run(write, tmp_path / "log", KEY)
    (tmp_path / "key").write_text(KEY + "\n")
    head = invoke("audit", "head", str(tmp_path / "log")).stdout.rstrip("\n")
    assert head == f"{read_log(tmp_path / 'log')[-1]['hash']} 8"
    result = invoke(
        "audit", "verify", str(tmp_path / "log"), "--key-file", str(tmp_path / "key"), "--head", head
    )
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_key_is_taken_from_the_environment(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.run(write, tmp_path, KEY)
    result = invoke("audit", "verify", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "with that key only: give it with --key-file, or in MCPMUX_AUDIT_KEY" in result.stderr
    monkeypatch.setenv("MCPMUX_AUDIT_KEY", KEY)
    assert invoke("audit", "verify", str(tmp_path)).exit_code == 0
    monkeypatch.setenv("MCPMUX_AUDIT_KEY", "another key of the tests")
    assert invoke("audit", "verify", str(tmp_path)).exit_code == 1


BAD = {
    "changed": (lambda lines: lines.__setitem__(3, lines[3].replace(b"write", b"writ3")), 4, "was changed"),
    "removed": (lambda lines: lines.__delitem__(2), 3, "removed or moved"),
    "inserted": (lambda lines: lines.insert(5, lines[1]), 6, "inserted or moved"),
    "moved": (lambda lines: lines.append(lines.pop(4)), 5, "removed or moved"),
}


@pytest.mark.parametrize(("spoil", "line", "words"), BAD.values(), ids=BAD)
def test_a_bad_log_is_told_with_file_and_line(
    invoke: Invoke, directory: Path, spoil: Callable[[list[bytes]], object], line: int, words: str
) -> None:
    path = change(directory, spoil)
    for target in (directory, path):
        result = invoke("audit", "verify", str(target))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"Error: {path}:{line}: the record ")
        assert words in result.stderr
        assert f"({line - 1} records, number 1 to {line - 1}, hold before it)" in result.stderr


def test_a_cut_off_end_is_found_with_the_head_only(invoke: Invoke, directory: Path) -> None:
    head = invoke("audit", "head", str(directory)).stdout.split()[0]
    change(directory, lambda lines: lines.pop())
    assert invoke("audit", "verify", str(directory)).exit_code == 0
    result = invoke("audit", "verify", str(directory), "--head", head)
    assert result.exit_code == 1
    assert f"no record has the hash {head}, so the end was cut off or" in result.stderr


def test_a_torn_line_is_no_tampering(invoke: Invoke, directory: Path) -> None:
    change(directory, lambda lines: lines.append(lines.pop()[:-10]))
    result = invoke("audit", "verify", str(directory))
    assert result.exit_code == 0
    assert result.stdout.startswith("7 records, number 1 to 7, hold")
    assert "the last line is unfinished (" in result.stderr


def test_a_log_without_records_is_said_to_be_one(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "audit-000001.jsonl").write_bytes(b"")
    assert invoke("audit", "verify", str(tmp_path)).stdout.startswith(
        "there is no record, in 1 file; head 0000"
    )
    assert invoke("audit", "head", str(tmp_path)).stdout == f"{'0' * 64} 0\n"
    (tmp_path / "audit-000001.jsonl").write_bytes(b"hello\n")
    assert "(no record holds before it)" in invoke("audit", "verify", str(tmp_path)).stderr
    assert invoke("audit", "head", str(tmp_path)).exit_code == 2


CANNOT = {
    "nothing there": (["verify", "none"], "none: there is no such file or folder"),
    "no log": (["verify", "."], "there are no audit files"),
    "no key file": (["verify", "none", "--key-file", "no.key"], "--key-file: no.key: no such file"),
    "empty key file": (["verify", "none", "--key-file", "empty.key"], "empty.key is empty"),
    "head of nothing": (["head", "none"], "no such file or folder"),
    "show of nothing": (["show", "none"], "no such file or folder"),
    "no condition": (["show", "none", "tools/call"], "expected key=value; blanks"),
    "no order": (["show", "none", "client>x"], "`client` knows =  !=  ~  !~"),
    "half a hash": (["verify", "none", "--head", "3b1f"], "--head: expected a line of `mcpmux audit head`"),
    "no such key": (["show", "none", "methd=x"], "no such key; did you mean `method`?"),
}


@pytest.mark.parametrize(("args", "words"), CANNOT.values(), ids=CANNOT)
def test_what_cannot_be_done_is_told_with_exit_code_2(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.key").write_text("\n")
    result = invoke("audit", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_records_are_shown_on_a_line_each(invoke: Invoke, directory: Path) -> None:
    result = invoke("audit", "show", str(directory))
    assert (result.exit_code, result.stderr) == (0, "")
    time = "2027-01-15T08:00:00.000000Z"
    first, *middle, last = result.stdout.splitlines()
    assert first.startswith(f"{time}  1  open  run=run  version=")
    assert middle == [
        f"{time}  2  desk  resources/read  docs+memo:1  → docs  ok  12.5 ms",
        f"{time}  3  desk  tools/call  docs__search  → docs  tool_error  12.5 ms",
        f"{time}  4  desk  tools/call  docs__write  → docs  refused by no-writes  12.5 ms",
        f"{time}  5  desk  tools/call  evil\\x1b[31m  → docs  invalid_params -32602  12.5 ms",
        f"{time}  6  desk  prompts/get  x  → docs  timeout -31002  12.5 ms",
        f"{time}  7  desk  tools/call  ask  → docs  input_required  12.5 ms",
    ]
    assert last == f"{time}  8  close  run=run"


def test_who_was_authenticated_stands_before_what_the_client_calls_itself() -> None:
    record = {"kind": "exchange", "principal": "alice", "client": "desk", "method": "ping", "ms": 1}
    assert "  alice (desk)  ping" in describe(record)
    del record["principal"]
    assert "  desk  ping" in describe(record)


def test_what_interceptors_did_stands_at_the_end_of_an_exchange() -> None:
    verdicts = [
        {"name": "guard", "on": "request", "verdict": verdict} for verdict in ("pass", "agreed", "change")
    ]
    record = {"kind": "exchange", "method": "ping", "outcome": "ok", "intercepted": verdicts}
    assert describe(record).endswith("ping  ok  guard: agreed on request  guard: change on request")


CHOSEN = {
    ("method=tools/call", "decision=refused"): [4],
    ("outcome=tool_error",): [3],
    ("code=-32602",): [5],
    ("upstreams=docs", "outcome=timeout"): [6],
    ("trace=x",): [],
    ("trace= kind=exchange",): [2, 3, 4, 5, 6, 7],
    ("target~DOCS",): [2, 3, 4],
    ("status!=ok",): [3, 4, 5, 6, 7],
    ("status=tool_error|refused|input_required",): [3, 4, 7],
    ("duration>=12.5ms duration<0.1s",): [2, 3, 4, 5, 6, 7],
    ("upstream=docs", "tool=ask"): [7],
    ("since=2027-01-15", "until=2027-01-16", "seq<=2"): [1, 2],
    ('client="desk"', "seq=2"): [2],
}
"""By filter: the numbers of the records. The grammar is that of `mcpmux traffic`, the keys are not."""


def test_conditions_choose_records(invoke: Invoke, directory: Path) -> None:
    records = {}
    for conditions in CHOSEN:
        result = invoke("audit", "show", str(directory), *conditions, "--json")
        records[conditions] = [json.loads(line)["seq"] for line in result.stdout.splitlines()]
    assert records == CHOSEN


def test_a_filter_that_fits_no_record_names_the_nearest(invoke: Invoke, directory: Path) -> None:
    stderr = invoke("audit", "show", str(directory), "upstream=doc").stderr
    assert "no record fits the filter: none has `upstream=doc`; did you mean `upstream=docs`?" in stderr


def test_what_is_no_record_is_told_and_the_others_shown(invoke: Invoke, directory: Path) -> None:
    path = change(directory, lambda lines: lines.insert(1, b"hello\n"))
    result = invoke("audit", "show", str(directory), "--json")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 8
    assert f"{path}:2: no record" in result.stderr
    assert "1 line could not be read; see `mcpmux audit verify`" in result.stderr


def test_each_worker_and_each_replica_has_a_chain(invoke: Invoke, tmp_path: Path) -> None:
    names = ["replica-a", "replica-b.2", "worker-2", "worker-10"]
    for name in (*names, "replica-Ä", "replica-"):  # the last ones are none
        trio.run(write, tmp_path / name)
    heads = [line.split() for line in invoke("audit", "head", str(tmp_path)).stdout.splitlines()]
    assert [(seq, name) for _, seq, name in heads] == [("8", name) for name in names]
    lines = invoke("audit", "verify", str(tmp_path)).stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"{name}: 8 records" for name in names]
    unclear = invoke("audit", "verify", str(tmp_path), "--head", heads[0][0])
    assert (unclear.exit_code, unclear.stdout) == (2, "")
    assert "there is a chain of each worker or replica; name one of them, such as" in unclear.stderr
    assert len(invoke("audit", "show", str(tmp_path), "kind=close").stdout.splitlines()) == 4
    change(tmp_path / "replica-b.2", lambda lines: lines.pop(3))
    broken = invoke("audit", "verify", str(tmp_path))
    assert broken.exit_code == 1
    assert broken.stdout.startswith("replica-a: 8 records")
    assert "replica-b.2" in broken.stderr and "records were removed" in broken.stderr
