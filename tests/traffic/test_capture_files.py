"""Capture files: names, writing, tidying up, and reading files that are damaged or cut."""

from __future__ import annotations

import errno
import fcntl
import gzip
import operator
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mcpmux.config import Capture
from mcpmux.traffic.capture import files as capture_files
from mcpmux.traffic.capture.files import (
    BadLine,
    CaptureWriter,
    expand_paths,
    file_name,
    find_files,
    is_being_written,
    read_files,
    remove_surplus,
)
from mcpmux.traffic.record import Record, Run, encode_record

RUN = Run("5f3a9c01", 100.0, 1_795_262_400.0)


def line(seq: int, size: int = 0) -> bytes:
    return encode_record(
        Record(v=1, run=RUN.name, seq=seq, time="t", kind="request", text="x" * size or None)
    )


def writer(
    directory: Path, size: int = 2**20, age: float = 3600.0, *, compress: bool = False
) -> CaptureWriter:
    return CaptureWriter(directory, RUN, size, age, compress=compress)


def write(capture: CaptureWriter, lines: bytes, now: float = 100) -> None:
    capture.add(lines, lines.count(b"\n"), now)
    capture.write()


def read(*paths: Path) -> tuple[list[int], list[BadLine]]:
    bad: list[BadLine] = []
    return [record.seq for record in read_files(expand_paths(paths), bad.append)], bad


def tidy(directory: Path, config: Capture, now: float = 2e9) -> list[str]:
    remove_surplus(directory, config, now)
    return sorted(path.name for path in directory.iterdir())


class Disk:
    """A disk with `room` bytes. Truncating a file frees none."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._system = os.write

    def write(self, fd: int, data: memoryview) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._system(fd, data[: self._room])
        self._room -= written
        return written


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


def test_names_sort_by_time_and_say_whose_they_are():
    assert file_name(1_795_262_400.9, "5f3a9c01", 1) == "mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl"
    assert file_name(1e9, "ff", 2) < file_name(1e9 + 1, "00", 1)


def test_files_stay_in_order_when_the_time_is_set_back(tmp_path: Path):
    run = Run(RUN.name, 100.0, 1e9)
    capture = CaptureWriter(tmp_path, run, 1, 3600.0, compress=False)
    write(capture, line(1), 110)
    run.follow(150, 150, 1e9 - 7200)
    write(capture, line(2), 160)
    assert read(tmp_path) == ([0, 1, 0, 2], []), "with the start of each file"


def test_only_capture_files_are_found(tmp_path: Path):
    first, second = file_name(1e9, "aa", 1), file_name(1e9, "aa", 2)
    for name in (second + ".gz", first, "notes.jsonl", "audit-000001.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in find_files(tmp_path)] == [first, second + ".gz"]


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_file_begins_with_a_start_record_and_is_private(tmp_path: Path):
    directory = tmp_path / "a" / "b"
    capture = writer(directory)
    write(capture, line(1) + line(2), 101.5)
    (path,) = find_files(directory)
    assert path.name == "mcpmux-20261121T120001Z-5f3a9c01-0001.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    start, *_ = read_files([path], lambda bad: pytest.fail(str(bad)))
    assert (start.kind, start.run, start.at, start.time) == (
        "start",
        RUN.name,
        1.5,
        "2026-11-21T12:00:01.500000Z",
    )
    assert start.version
    assert read(path) == ([0, 1, 2], [])


def test_a_new_file_is_begun_by_size_and_by_age(tmp_path: Path):
    capture = writer(tmp_path, size=1000, age=60)
    for number in range(1, 8):
        write(capture, line(number, 300))
    assert [read(path)[0] for path in find_files(tmp_path)] == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 7]]
    assert capture.rotated
    write(capture, line(8), 159)
    write(capture, line(9), 161)
    assert [read(path)[0] for path in find_files(tmp_path)][2:] == [[0, 7, 8], [0, 9]]
    assert read(tmp_path)[0] == [0, 1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 0, 9]


def test_processes_never_share_a_file(tmp_path: Path):
    writers = [writer(tmp_path) for _ in range(3)]  # even with the same name for their runs
    for number, capture in enumerate(writers, 1):
        write(capture, line(number))
    assert [read(path)[0] for path in find_files(tmp_path)] == [[0, 1], [0, 2], [0, 3]]


@pytest.mark.parametrize("compress", [False, True])
def test_a_write_that_fails_anywhere_is_continued(tmp_path: Path, monkeypatch, compress: bool):
    text = b"".join(line(number, number) for number in range(2, 6))
    for room in range(len(text)):
        folder = tmp_path / str(room)
        capture = writer(folder, compress=compress)
        write(capture, line(1))
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", Disk(room).write)
            try:
                write(capture, text)
            except OSError:
                assert capture.waiting == 4
                seqs, bad = read(folder)
                assert seqs == [0, 1, 2, 3, 4, 5][: len(seqs)]
                assert {damage.problem for damage in bad} <= {"the file was cut in the middle of this line"}
        capture.write()
        assert capture.waiting == 0
        assert read(folder) == ([0, 1, 2, 3, 4, 5], [])
        capture.close()


def test_what_is_written_in_pieces_is_whole_in_the_end(tmp_path: Path, monkeypatch):
    capture, system = writer(tmp_path), os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda fd, data: system(fd, data[:7]))
        write(capture, b"".join(map(line, range(1, 6))))
    assert read(tmp_path) == ([0, 1, 2, 3, 4, 5], [])


def test_a_file_that_cannot_be_begun_is_not_left_behind(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "write", Disk(0).write)
    with pytest.raises(OSError, match="No space"):
        write(writer(tmp_path), line(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize("compress", [False, True])
def test_after_kill_9_what_was_written_is_readable(tmp_path: Path, compress: bool):
    """The writer is killed somewhere in its work, five times."""
    code = f"""
import itertools
from pathlib import Path
from secrets import token_hex
from mcpmux.traffic.record import Run
from mcpmux.traffic.capture.files import CaptureWriter
one = CaptureWriter(Path({str(tmp_path)!r}), Run(token_hex(4), 0.0, 1e9), 300_000, 60.0, compress={compress})
start = '{{"v":1,"run":"aa","time":"t","kind":"request"'
for number in itertools.count(1):
    text = "".join(token_hex(25) for _ in range(1000))
    one.add((start + f',"seq":{{number}},"text":"{{text}}"}}}}' + chr(10)).encode(), 1, 0.0)
    one.write()
    print(number, flush=True)
"""
    written = 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            written += 1 + len(child.stdout.read().split())
    seqs, bad = read(tmp_path)
    assert {damage.problem for damage in bad} <= {"the file was cut in the middle of this line"}
    assert len(list(filter(None, seqs))) >= written
    assert all(map(operator.not_, map(is_being_written, find_files(tmp_path))))


# ── Compressing ──────────────────────────────────────────────────────────────────────────────────


def test_lines_are_compressed_as_they_come_and_can_be_read_at_once(tmp_path: Path):
    capture = writer(tmp_path, size=1000, compress=True)
    for number in range(1, 6):
        write(capture, line(number, 300))
        assert read(tmp_path)[1] == []
        assert list(filter(None, read(tmp_path)[0])) == list(range(1, number + 1))
    first, second = find_files(tmp_path)
    assert len(gzip.decompress(first.read_bytes())) > 3 * first.stat().st_size
    assert (is_being_written(first), is_being_written(second)) == (False, True)
    capture.end()
    capture.write()
    capture.close()
    assert gzip.decompress(second.read_bytes()).endswith(line(5, 300))


# ── Tidying up ───────────────────────────────────────────────────────────────────────────────────


def old_files(directory: Path) -> list[str]:
    """Write four files of 1000 bytes, a day apart."""
    names = []
    for day in range(4):
        path = directory / file_name(day * 86400, "aa", 1)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (day * 86400, day * 86400))
        names.append(path.name)
    (directory / "notes.txt").write_text("mine")
    return names


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, 4),
        ({"keep_files": 3}, 3),
        ({"keep_bytes": 2500}, 2),
        ({"keep_age": 86400.0 * 1.5}, 1),
        ({"keep_files": 1, "keep_age": 1e9}, 1),
    ],
)
def test_the_oldest_files_go_first(tmp_path: Path, limits: dict[str, float], kept: int):
    names = old_files(tmp_path)
    left = tidy(tmp_path, Capture(**limits), now=4 * 86400)  # type: ignore[arg-type]
    assert left == [*names[4 - kept :], "notes.txt"]


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path):
    names = old_files(tmp_path)
    with (tmp_path / names[0]).open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        remove_surplus(tmp_path, Capture(keep_files=1), 0)
        assert sorted(path.name for path in find_files(tmp_path)) == [names[0]]
        assert is_being_written(tmp_path / names[0])


def test_a_file_that_another_process_has_removed_meanwhile_is_no_failure(tmp_path: Path):
    names = old_files(tmp_path)
    gone = tmp_path / names[0]
    gone.unlink()
    gone.symlink_to("away")  # is listed, and is not there
    assert tidy(tmp_path, Capture(keep_files=1), 0) == [names[0], names[-1], "notes.txt"]


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def test_damaged_lines_are_reported_with_their_place_and_the_rest_is_read(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        line(1)
        + b"garbage\n"
        + line(2)
        + b'{"v":2,"run":"a","time":"t","kind":"x"}\n\n'
        + b"\xff\n"
        + line(3)[:9]
    )
    seqs, bad = read(path, tmp_path / "missing.jsonl")
    assert seqs == [1, 2]
    assert [(damage.path.name, damage.line) for damage in bad] == [
        ("a.jsonl", 2),
        ("a.jsonl", 4),
        ("a.jsonl", 6),
        ("a.jsonl", 7),
        ("missing.jsonl", 0),
    ]
    assert bad[1].problem == "capture format version 2; this mcpmux reads version 1"
    assert str(bad[3]) == f"{path}:7: the file was cut in the middle of this line"
    assert str(bad[4]).endswith("missing.jsonl: cannot read the file: no such file or directory")


def test_a_compressed_file_is_read_up_to_its_cut_or_damage(tmp_path: Path):
    whole = gzip.compress(b"".join(line(n, 40) for n in range(1, 2001)), mtime=0)
    cut, broken = tmp_path / "cut.jsonl.gz", tmp_path / "broken.jsonl.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    broken.write_bytes(whole[:-8] + b"\x00" * 8)  # its checksum
    for path, problem in ((cut, "the file was cut in the middle of this line"), (broken, "damaged")):
        seqs, bad = read(path)
        assert seqs == list(range(1, len(seqs) + 1))
        assert any(problem in damage.problem for damage in bad)
    assert 100 < len(read(cut)[0]) < 2000
    assert len(read(broken)[0]) == 2000


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(capture_files, "LINE_LIMIT", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(1) + b"x" * 5_000_000 + b"\n" + line(2))
    seqs, bad = read(path)
    assert seqs == [1, 2]
    assert [damage.line for damage in bad] == [2]


def test_a_folder_cannot_be_read_as_a_file(tmp_path: Path):
    bad: list[BadLine] = []
    assert list(read_files([tmp_path], bad.append)) == []
    assert "is a directory" in bad[0].problem
