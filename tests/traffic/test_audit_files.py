"""The files: torn, full, locked, rotated, and whole again."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from mcpmux.errors import ConfigError
from mcpmux.traffic.audit.chain import LINE_LIMIT, AuditFiles, AuditUnusable, Verdict, read_head, verify
from tests.traffic.audit_world import read_log

KEY = b"a key of the tests"
NEWLINE = b"\n"


def opening(number: int | None, torn: bytes, *, keyed: bool | None = None) -> bytes:
    body = {"kind": "open", "file": number, "keyed": keyed, "torn": torn.decode(errors="replace") or None}
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()


def files_of(directory: Path, key: bytes | None = None, rotate_size: int = 2**20) -> AuditFiles:
    return AuditFiles(directory, key, rotate_size, partial(opening, keyed=True if key else None))


def write(directory: Path, *groups: int, key: bytes | None = None, rotate_size: int = 2**20) -> None:
    """Write a run of groups of so many records."""
    files = files_of(directory, key, rotate_size)
    files.open()
    number = 0
    for count in groups:
        bodies = [b'{"kind":"exchange","n":%d}' % (number + offset) for offset in range(count)]
        number += count
        files.append(bodies)
    files.close()


def check(path: Path, key: bytes | None = None) -> Verdict:
    verdict = verify(path, key)
    assert verdict.fault is None, verdict.fault
    return verdict


def fault_of(path: Path, key: bytes | None = None, after: str | None = None) -> str:
    """Return `file:line: what is wrong`, without the folder."""
    verdict = verify(path, key, after)
    assert verdict.fault is not None
    return f"{verdict.fault.path.name}:{verdict.fault.line}: {verdict.fault.problem}"


def log_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("audit-*.jsonl"))


@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "key"])
def test_a_log_goes_on_over_runs_and_files(tmp_path, key):
    for _ in range(3):
        write(tmp_path, 3, 1, 10, 2, key=key, rotate_size=1000)
    paths = log_files(tmp_path)
    assert len(paths) > 3
    assert check(tmp_path, key) == Verdict(
        records=len(read_log(tmp_path)), files=len(paths), first=1, head=read_head(tmp_path)
    )
    assert [record["seq"] for record in read_log(tmp_path)] == list(range(1, len(read_log(tmp_path)) + 1))
    for number, path in enumerate(paths, 1):
        first = json.loads(path.read_bytes().splitlines()[0])
        assert (first["kind"], first["file"]) == ("open", number)
        assert check(path, key).first == first["seq"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_group_is_never_split_between_files(tmp_path):
    write(tmp_path, 5, 5, 5, rotate_size=500)
    assert [len(path.read_bytes().splitlines()) for path in log_files(tmp_path)] == [1, 6, 6, 6]


def test_a_log_cut_anywhere_holds_and_is_gone_on_with(tmp_path):
    whole = tmp_path / "whole"
    write(whole, 1)
    log = (whole / "audit-000001.jsonl").read_bytes()
    for cut in range(len(log)):
        directory = tmp_path / "cut"
        directory.mkdir(exist_ok=True)
        path = directory / "audit-000001.jsonl"
        path.write_bytes(log[:cut])
        torn = cut - (log[:cut].rfind(b"\n") + 1)
        verdict = check(directory)
        assert (verdict.records, verdict.torn) == (log[:cut].count(b"\n"), torn)
        write(directory, 1)
        assert check(directory).records == verdict.records + 2
        opened = read_log(directory)[verdict.records]
        assert opened["kind"] == "open"
        assert opened.get("torn", "").encode() == log[cut - torn : cut]
        assert opened.get("file") == (None if verdict.records else 1)


def test_a_log_killed_just_after_beginning_a_file_is_continued(tmp_path):
    write(tmp_path, 3)
    (tmp_path / "audit-000002.jsonl").write_bytes(b'{"v":1,"se')
    assert check(tmp_path).torn == 10
    write(tmp_path, 1)
    assert check(tmp_path).records == 6
    assert read_log(tmp_path)[4]["file"] == 2


def test_another_process_is_kept_out(tmp_path):
    files = files_of(tmp_path)
    files.open()
    with pytest.raises(AuditUnusable, match=rf"another mcpmux \(process {os.getpid()}\); stop that one, or"):
        files_of(tmp_path).open()
    files.append([b'{"kind":"exchange"}'])
    files.close()
    write(tmp_path, 1)
    assert check(tmp_path).records == 4


BAD_ENDS = {
    "changed": (lambda log: log.replace(b'"n":2', b'"n":3'), None, "its last record was changed"),
    "no key": (lambda log: log, KEY, "written without a key"),
    "stranger": (lambda log: log + b"hello\n", None, "its last record is none"),
    "endless": (lambda log: b"x" * (2 * LINE_LIMIT + 1), None, "this is no audit log"),
}


@pytest.mark.parametrize(("change", "key", "words"), BAD_ENDS.values(), ids=BAD_ENDS)
def test_a_log_with_a_changed_end_is_not_continued(tmp_path, change, key, words):
    write(tmp_path, 3)
    path = tmp_path / "audit-000001.jsonl"
    path.write_bytes(change(path.read_bytes()))
    content = path.read_bytes()
    with pytest.raises(AuditUnusable, match=words):
        files_of(tmp_path, key).open()
    assert path.read_bytes() == content


def test_a_log_with_an_empty_file_before_the_last_is_not_continued(tmp_path):
    for number in (1, 2):
        (tmp_path / f"audit-00000{number}.jsonl").write_bytes(b"")
    with pytest.raises(AuditUnusable, match=r"audit-000001.jsonl: there is no record in it"):
        files_of(tmp_path).open()


def fail(*_: object) -> int:
    raise OSError(28, "No space left on device")


BROKEN = {"write": ("write",), "write, and no way back": ("write", "ftruncate"), "sync": ("fsync",)}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, broken):
    """The system takes a part and then fails, in a file and where a new one begins."""
    files = files_of(tmp_path, rotate_size=600)
    files.open()
    system = os.write

    def write_some(file: int, data: bytes) -> int:
        taken.append(min(len(data), 30))
        return system(file, bytes(data[:30])) if len(taken) < 3 else fail()

    for bodies in ([b'{"n":1}'] * 2, [b'{"n":2}'] * 3):
        for _ in range(2):
            taken: list[int] = []
            with monkeypatch.context() as patches:
                for name in broken:
                    patches.setattr(os, name, write_some if name == "write" else fail)
                with pytest.raises(OSError, match="No space"):
                    files.append(bodies)
        files.append(bodies)
    files.close()
    assert len(log_files(tmp_path)) == 2
    assert [record.get("n") for record in read_log(tmp_path)] == [None, 1, 1, None, 2, 2, 2]
    check(tmp_path)


def test_a_file_that_is_there_already_is_not_written_over(tmp_path):
    """Refuse to overwrite a file that another program has put there meanwhile."""
    files = files_of(tmp_path, rotate_size=600)
    files.open()
    stranger = tmp_path / "audit-000002.jsonl"
    stranger.write_bytes(b"mine")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            files.append([b'{"n":1}'] * 4)
    assert stranger.read_bytes() == b"mine"
    stranger.unlink()
    files.append([b'{"n":1}'] * 4)
    files.close()
    assert check(tmp_path).records == 6


def test_removed_files_are_missed(tmp_path):
    write(tmp_path, *[3] * 12, rotate_size=1200)
    paths = log_files(tmp_path)
    first = [json.loads(path.read_bytes().splitlines()[0])["seq"] for path in paths]
    third = paths[2].read_bytes()
    paths[2].unlink()
    expected = f"{paths[3].name}:1: the record has number {first[3]}, and {first[2]} has to be here"
    assert fault_of(tmp_path).startswith(expected)
    paths[2].write_bytes(third)
    check(tmp_path)
    hash_ = read_head(paths[0]).hash
    paths[0].unlink()
    assert fault_of(tmp_path).startswith(f"{paths[1].name}:1: the record has number {first[1]}, and 1 has to")
    assert verify(tmp_path, None, hash_).fault is None
    assert "one of the two was replaced" in fault_of(tmp_path, after="0" * 64)


def test_missing_first_records_are_noticed_even_in_a_lone_file(tmp_path):
    write(tmp_path, 3)
    write(tmp_path, 3)
    path = tmp_path / "audit-000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        path.write_bytes(b"".join(lines[count:]))
        assert fault_of(path).startswith("audit-000001.jsonl:1: the record has number")
        assert fault_of(tmp_path).startswith("audit-000001.jsonl:1: the record has number")


def test_a_file_cut_off_before_the_last_one_is_no_torn_one(tmp_path):
    write(tmp_path, *[3] * 5, rotate_size=1200)
    first, second, *_ = log_files(tmp_path)
    log = first.read_bytes()
    first.write_bytes(log[:-5])
    assert fault_of(tmp_path) == (
        f"{first.name}:{log.count(NEWLINE)}: the record is cut off, though the log goes on in another file"
    )
    first.write_bytes(b"")
    assert fault_of(tmp_path).startswith(f"{second.name}:1: the record has number")


NEWLINE = b"\n"


def test_what_stands_behind_the_last_record_and_is_none_is_found(tmp_path):
    write(tmp_path, 2)
    path = tmp_path / "audit-000001.jsonl"
    log = path.read_bytes()
    for rest in (b"hello", b'{"v":1,"seq":5,', b'{"v":1,"seq":4' + b"x" * LINE_LIMIT):
        path.write_bytes(log + rest)
        assert fault_of(tmp_path).startswith("audit-000001.jsonl:4: ")
    path.write_bytes(log + b"x" * (3 * LINE_LIMIT) + b"\n")
    assert fault_of(tmp_path).startswith("audit-000001.jsonl:4: ")


def test_a_cut_off_end_is_missed_with_an_anchor_only(tmp_path):
    write(tmp_path, 5)
    head = read_head(tmp_path)
    path = tmp_path / "audit-000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    check(tmp_path)
    verdict = verify(tmp_path, None, anchor=head.hash)
    assert (verdict.fault, verdict.anchored) == (None, False)


def test_what_cannot_be_checked_is_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        verify(tmp_path / "none", None)
    with pytest.raises(ConfigError, match="there are no audit files"):
        verify(tmp_path, None)
    write(tmp_path, 1, key=KEY)
    with pytest.raises(ConfigError, match="with that key only"):
        verify(tmp_path, None)


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    for name in ("notes.txt", "audit-1.jsonl", "audit-000009.jsonl.bak"):
        (tmp_path / name).write_text("x")
    write(tmp_path, 1)
    assert check(tmp_path).records == 2


@pytest.mark.skipif(sys.platform == "win32", reason="links take a privilege there")
@pytest.mark.parametrize("name", ["audit.lock", "audit-000001.jsonl"])
def test_a_link_in_the_folder_leads_to_no_other_file(tmp_path: Path, name: str):
    other = tmp_path / "other"
    other.write_text("mine")
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / name).symlink_to(other)
    with pytest.raises((OSError, AuditUnusable)):
        files_of(folder).open()
    assert other.read_text() == "mine"
