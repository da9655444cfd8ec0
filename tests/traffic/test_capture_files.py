"""Capture files: names, writing, tidying up, and reading files that are damaged or cut."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import signal
import stat
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from mcpmux.config import Capture
from mcpmux.traffic.capture import files as capture_files
from mcpmux.traffic.capture.files import (
    BadLine,
    CaptureWriter,
    compress,
    expand_paths,
    file_name,
    find_files,
    read_files,
    remove_surplus,
    sweep,
)
from mcpmux.traffic.record import Record, Run, encode_record

RUN = Run("5f3a9c01", 100.0, 1_795_262_400.0)


def line(seq: int, size: int = 0) -> bytes:
    return encode_record(
        Record(v=1, run=RUN.name, seq=seq, time="t", kind="request", text="x" * size or None)
    )


def writer(directory: Path, size: int = 2**20, age: float = 3600.0, run: Run = RUN) -> CaptureWriter:
    return CaptureWriter(directory, run, size, age)


def write_all(capture: CaptureWriter, lines: bytes) -> list[int]:
    """Write the lines, and return the number of bytes of each write."""
    written = []
    while lines:
        written.append(capture.write(lines, 100))
        lines = lines[written[-1] :]
    return written


def read(*paths: Path) -> tuple[list[int], list[BadLine]]:
    bad: list[BadLine] = []
    return [record.seq for record in read_files(expand_paths(paths), bad.append)], bad


def tidy(directory: Path, config: Capture, now: float = 2e9) -> list[str]:
    sweep(directory, config, lambda seconds: None, now)
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


def test_only_capture_files_are_found_and_of_two_forms_the_file_itself(tmp_path: Path):
    first, second = file_name(1e9, "aa", 1), file_name(1e9, "aa", 2)
    for name in (
        second + ".gz",
        first,
        first + ".gz",
        first + ".gz.part",
        "notes.jsonl",
        "audit-000001.jsonl",
    ):
        (tmp_path / name).touch()
    assert [path.name for path in find_files(tmp_path)] == [first, second + ".gz"]


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_file_begins_with_a_start_record_and_is_private(tmp_path: Path):
    directory = tmp_path / "a" / "b"
    capture = writer(directory)
    assert capture.write(line(1) + line(2), 101.5) == len(line(1) + line(2))
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
    size = len(line(1, 300))
    assert write_all(capture, b"".join(line(n, 300) for n in range(1, 8))) == [3 * size, 3 * size, size]
    assert [read(path)[0] for path in find_files(tmp_path)] == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 7]]
    assert capture.rotated
    capture.write(line(8), 159)
    capture.write(line(9), 161)
    assert [read(path)[0] for path in find_files(tmp_path)][2:] == [[0, 7, 8], [0, 9]]
    assert read(tmp_path)[0] == [0, 1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 0, 9]


def test_processes_never_share_a_file(tmp_path: Path):
    writers = [writer(tmp_path) for _ in range(3)]  # even with the same name for their runs
    for number, capture in enumerate(writers, 1):
        capture.write(line(number), 100)
    assert [read(path)[0] for path in find_files(tmp_path)] == [[0, 1], [0, 2], [0, 3]]


def test_a_write_that_fails_halfway_keeps_the_lines_that_are_whole(tmp_path: Path, monkeypatch):
    """The rest can be written again; wherever it stops."""
    lines = [line(number, number) for number in range(2, 6)]
    text = b"".join(lines)
    ends = list(accumulate(map(len, lines), initial=0))
    for room in range(len(text)):
        folder = tmp_path / str(room)
        capture = writer(folder)
        capture.write(line(1), 100)
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", Disk(room).write)
            whole = max(end for end in ends if end <= room)
            if whole:
                assert capture.write(text, 100) == whole
            with pytest.raises(OSError, match="No space"):
                capture.write(text[whole:], 100)
        assert read(folder) == ([0, 1, *range(2, 2 + ends.index(whole))], [])
        assert capture.write(text[whole:], 100) == len(text) - whole
        assert read(folder) == ([0, 1, 2, 3, 4, 5], [])
        capture.close()


def test_what_is_written_in_pieces_is_whole_in_the_end(tmp_path: Path, monkeypatch):
    capture = writer(tmp_path)
    capture.write(line(1), 100)
    lines, system = b"".join(map(line, range(2, 6))), os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda fd, data: system(fd, data[: len(line(2)) + 7]))
        assert capture.write(lines, 100) == len(lines)
    assert read(tmp_path) == ([0, 1, 2, 3, 4, 5], [])


def test_a_broken_line_that_cannot_be_removed_begins_a_new_file(tmp_path: Path, monkeypatch):
    capture = writer(tmp_path)
    capture.write(line(1), 100)
    lines = [line(2), line(3)]

    def unable(fd: int, size: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", Disk(len(lines[0]) + 10).write)
        patched.setattr(os, "ftruncate", unable)
        assert capture.write(b"".join(lines), 100) == len(lines[0])
    capture.write(lines[1], 100)
    seqs, bad = read(tmp_path)
    assert seqs == [0, 1, 2, 0, 3]
    assert [damage.problem for damage in bad] == ["the file was cut in the middle of this line"]


def test_a_file_that_cannot_be_begun_is_not_left_behind(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "write", Disk(20).write)
    with pytest.raises(OSError, match="No space"):
        writer(tmp_path).open(0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_after_kill_9_what_was_written_is_readable(tmp_path: Path):
    """The writer is killed somewhere in its work, five times."""
    code = f"""
from pathlib import Path
from secrets import token_hex
from mcpmux.traffic.record import Run
from mcpmux.traffic.capture.files import CaptureWriter
one = CaptureWriter(Path({str(tmp_path)!r}), Run(token_hex(4), 0.0, 1e9), 300_000, 60.0)
one.open(0.0)
print("ready", flush=True)
line = b'{{"v":1,"run":"aa","time":"t","kind":"request","text":"' + b"x" * 50_000 + b'"}}' + bytes([10])
lines = line * 9
while True:
    one.write(lines, 0.0)
"""
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
    config = Capture(keep_bytes=2**40)
    _, bad = read(tmp_path)
    assert {damage.problem for damage in bad} <= {"the file was cut in the middle of this line"}
    assert all(name.endswith(".gz") for name in tidy(tmp_path, config))
    assert read(tmp_path)[1] == [
        damage._replace(path=damage.path.with_name(damage.path.name + ".gz")) for damage in bad
    ]


# ── Tidying up ───────────────────────────────────────────────────────────────────────────────────


def test_complete_files_are_compressed_and_the_one_being_written_is_not(tmp_path: Path):
    capture = writer(tmp_path, size=1000)
    write_all(capture, b"".join(line(n, 300) for n in range(1, 6)))
    first, second = find_files(tmp_path)
    os.utime(first, (5, 5))
    assert tidy(tmp_path, Capture()) == [first.name + ".gz", second.name]
    whole = first.with_name(first.name + ".gz")
    assert stat.S_IMODE(whole.stat().st_mode) == 0o600
    assert whole.stat().st_mtime == 5
    assert read(tmp_path) == ([0, 1, 2, 3, 0, 4, 5], [])


def test_compressing_can_be_stopped_and_leaves_the_file(tmp_path: Path):
    path = tmp_path / file_name(1e9, "aa", 1)
    path.write_bytes(line(1) * 20_000)

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress(path, stop)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_what_a_killed_process_left_of_its_compressing_is_done_again(tmp_path: Path):
    path = tmp_path / file_name(1e9, "aa", 1)
    path.write_bytes(line(1))
    path.with_name(path.name + ".gz.part").write_bytes(b"half")
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(line(1)))  # killed before it was removed
    assert read(tmp_path) == ([1], [])
    assert tidy(tmp_path, Capture()) == [path.name + ".gz"]
    assert read(tmp_path) == ([1], [])


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
    left = tidy(tmp_path, Capture(compress=False, **limits), now=4 * 86400)  # type: ignore[arg-type]
    assert left == [*names[4 - kept :], "notes.txt"]


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path):
    names = old_files(tmp_path)
    with (tmp_path / names[0]).open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        remove_surplus(tmp_path, Capture(keep_files=1), 0)
        assert sorted(path.name for path in find_files(tmp_path)) == [names[0]]
        assert tidy(tmp_path, Capture()) == [names[0], "notes.txt"]


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
    for path, problem in ((cut, "the compressed file was cut here"), (broken, "damaged")):
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
    assert [(damage.line, damage.problem) for damage in bad] == [(2, "the line is longer than 1000 bytes")]


def test_a_folder_cannot_be_read_as_a_file(tmp_path: Path):
    bad: list[BadLine] = []
    assert list(read_files([tmp_path], bad.append)) == []
    assert "is a directory" in bad[0].problem
