from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mcpmux.traffic.capture import files as capture_files
from mcpmux.traffic.capture.files import BadLine, Follower
from mcpmux.traffic.record import encode_record
from tests.traffic.made import record


class World:
    """A folder of captures, and its followers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bad: list[BadLine] = []

    def file(self, number: int, run: str = "5f3a9c01") -> Path:
        return self.folder / f"mcpmux-20261121T120000Z-{run}-{number:04}.jsonl"

    def add(self, path: Path, *seqs: int) -> None:
        with path.open("ab") as file:
            for seq in seqs:
                file.write(encode_record(record(seq, method=f"m{seq}")))

    def compress(self, path: Path) -> None:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()

    def follow(self, *paths: Path) -> Follower:
        return Follower(paths or [self.folder], self.bad.append)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def seqs(follower: Follower) -> list[int]:
    """Read until no more records come, and return their numbers."""
    numbers: list[int] = []
    for _ in range(100):
        records = follower.read()
        if not records:
            return numbers
        numbers += [record.seq for record in records]
    raise AssertionError(f"it does not end: {numbers}")


def test_what_is_appended_comes_once(world: World):
    world.add(world.file(1), 1, 2)
    with world.follow() as follower:
        assert [record.seq for record in follower.recent()] == [1, 2]
        assert not follower.left_out
        assert seqs(follower) == []
        world.add(world.file(1), 3)
        assert seqs(follower) == [3]
        assert seqs(follower) == []


def test_a_line_comes_when_it_is_whole(world: World):
    path = world.file(1)
    world.add(path, 1)
    with world.follow() as follower:
        follower.skip()
        line = encode_record(record(2))
        for at in range(len(line) - 1):
            with path.open("ab") as file:
                file.write(line[at : at + 1])
            assert seqs(follower) == []
        with path.open("ab") as file:
            file.write(b"\n")
        assert seqs(follower) == [2]
    assert world.bad == []


def test_a_line_that_is_begun_is_not_skipped(world: World):
    path = world.file(1)
    world.add(path, 1)
    line = encode_record(record(2))
    with path.open("ab") as file:
        file.write(line[:20])
    with world.follow() as follower:
        follower.skip()
        with path.open("ab") as file:
            file.write(line[20:])
        assert seqs(follower) == [2]


def test_files_that_come_and_go_are_followed(world: World):
    with world.follow() as follower:
        assert seqs(follower) == []
        world.add(world.file(1), 1)
        assert seqs(follower) == [1]
        world.add(world.file(1), 2)
        world.add(world.file(2), 3)
        assert seqs(follower) == [2, 3]
        world.file(1).unlink()
        world.add(world.file(2), 4)
        assert seqs(follower) == [4]
        world.file(2).unlink()
        assert seqs(follower) == []
        assert not follower.growing


def test_a_file_that_is_unlinked_while_open_is_read_to_its_end(world: World):
    world.add(world.file(1), 1)
    with world.follow() as follower:
        assert seqs(follower) == [1]
        world.add(world.file(1), 2)
        world.file(1).unlink()
        assert seqs(follower) == [2]


def test_a_file_that_was_compressed_between_two_looks_is_read(world: World):
    with world.follow() as follower:
        world.add(world.file(1), 1, 2)
        world.compress(world.file(1))
        world.add(world.file(2), 3)
        assert seqs(follower) == [1, 2, 3]
        assert seqs(follower) == []


def test_two_runs_in_one_folder_are_followed_at_once(world: World):
    world.add(world.file(1, "aaaa"), 1)
    world.add(world.file(1, "bbbb"), 11)
    with world.follow() as follower:
        follower.skip()
        world.add(world.file(1, "aaaa"), 2)
        world.add(world.file(1, "bbbb"), 12)
        assert sorted(seqs(follower)) == [2, 12]


def test_only_the_ends_of_the_newest_files_are_looked_through(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(capture_files, "LOOK_BACK_BYTES", 700)
    world.add(world.file(1), *range(1, 20))
    world.add(world.file(2), *range(20, 40))
    with world.follow() as follower:
        numbers = [record.seq for record in follower.recent()]
        assert follower.left_out
        assert 2 <= len(numbers) <= 10
        assert numbers == list(range(40 - len(numbers), 40))
        assert seqs(follower) == []


def test_compressed_files_count_among_the_newest(world: World):
    world.add(world.file(1), 1, 2)
    world.compress(world.file(1))
    world.add(world.file(2), 3)
    with world.follow() as follower:
        assert [record.seq for record in follower.recent()] == [1, 2, 3]


def test_a_large_file_comes_in_parts(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(capture_files, "CHUNK_BYTES", 100)
    world.add(world.file(1), 1, 2, 3)
    with world.follow(world.file(1)) as follower:
        assert [record.seq for record in follower.read()] == [1]
        assert seqs(follower) == [2, 3]


def test_what_is_no_record_is_reported_and_the_rest_is_read(world: World):
    with world.follow() as follower:
        world.file(1).write_bytes(b"garbage\n\n" + b'{"v":2,"run":"x","time":"","kind":"request"}\n')
        world.add(world.file(1), 1)
        assert seqs(follower) == [1]
    assert [bad.path for bad in world.bad] == [world.file(1)] * 2
    assert "version 2" in world.bad[1].problem


def test_other_files_in_the_folder_are_none_of_ours(world: World):
    with world.follow() as follower:
        (world.folder / "notes.jsonl").write_text("hello\n")
        assert seqs(follower) == []
    assert world.bad == []


def test_files_that_are_removed_before_they_are_read_are_left_out(world: World):
    world.file(1).symlink_to("away")  # is listed, and is not there
    world.add(world.file(2), 1)
    with world.follow() as follower:
        assert [record.seq for record in follower.recent()] == [1]
        world.file(3).symlink_to("away")
        world.add(world.file(4), 2)
        assert seqs(follower) == [2]
