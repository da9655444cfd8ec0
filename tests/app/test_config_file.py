"""When a configuration file counts as changed: the machine by laws, then a real file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.app.control import LOOK_SECONDS, ConfigFile, Look, look_at_file
from mcpmux.config import Config, Stdio, Upstream
from mcpmux.errors import ConfigError

looks = st.none() | st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
KNOWN: Look = (1, 1, 1)
LOADED = Config(upstreams=(Upstream(name="a", target=Stdio(command="x")),))


def file_read_as_known() -> ConfigFile:
    file = ConfigFile("", lambda: LOADED)
    file.known = KNOWN
    file.see(KNOWN)
    return file


@given(st.lists(looks))
def test_a_file_is_read_when_it_changed_and_two_looks_agree(seen: list[Look | None]):
    file = file_read_as_known()
    earlier: Look | None = KNOWN
    for look in seen:
        assert file.see(look) == (look == earlier and look is not None and look != KNOWN)
        earlier = look


@given(st.lists(looks), looks)
def test_what_stays_is_read_sooner_or_later(seen: list[Look | None], last: Look | None):
    file = file_read_as_known()
    for look in seen:
        file.see(look)
    file.see(last)
    assert file.see(last) == (last is not None and last != KNOWN)


async def test_a_rewritten_or_replaced_file_is_new_and_a_removed_one_none(
    tmp_path: Path,
):
    path = tmp_path / "config"
    path.write_text("one")
    seen = [look_at_file(str(path))]
    path.write_text("longer")
    seen.append(look_at_file(str(path)))
    other = tmp_path / "other"
    other.write_text("longer")
    moment = path.stat().st_mtime_ns
    os.utime(other, ns=(moment, moment))  # the same age and size: only the inode tells
    other.replace(path)
    seen.append(look_at_file(str(path)))
    path.unlink()
    seen.append(look_at_file(str(path)))
    assert len(set(seen)) == 4
    assert seen[-1] is None


async def test_a_change_between_reading_and_watching_is_noticed(tmp_path: Path):
    path = tmp_path / "config"
    path.write_text("one")

    def read() -> Config:
        path.write_text("changed while it was read")
        return LOADED

    file = ConfigFile(str(path), read)
    file.load()
    with trio.fail_after(60):
        await file.changed()


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path):
    path = tmp_path / "config"
    os.mkfifo(path)

    def read() -> Config:
        raise AssertionError("nobody writes")

    with pytest.raises(ConfigError, match="this is a pipe"):
        ConfigFile(str(path), read).load()


def test_a_file_that_cannot_be_looked_at_is_reported_by_its_reader():
    def read() -> Config:
        raise ConfigError(["cannot read the file: File name too long"])

    with pytest.raises(ConfigError, match="too long"):
        ConfigFile("x" * 10_000, read).load()


def settings(folder: Path, text: str) -> None:
    """Write a folder as Kubernetes mounts it: its files are links through one link, which is swapped."""
    version = folder / f"..{text}"
    version.mkdir()
    (version / "config").write_text(text)
    following = folder / "..data_tmp"
    following.symlink_to(version.name)
    following.replace(folder / "..data")


@pytest.mark.parametrize("change", ["written in place", "renamed", "behind a link", "swapped", "there later"])
async def test_every_way_to_change_a_file_is_noticed(tmp_path: Path, change: str):
    path = tmp_path / "config"
    if change == "swapped":
        settings(tmp_path, "one")
        path.symlink_to("..data/config")
    elif change == "behind a link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "real").write_text("one")
        path.symlink_to("elsewhere/real")
    elif change != "there later":
        path.write_text("one")
    file = ConfigFile(str(path), lambda: LOADED)
    with suppress(ConfigError):
        file.load()
    if change == "swapped":
        settings(tmp_path, "two, longer")
    elif change == "renamed":
        (tmp_path / "other").write_text("two, longer")
        (tmp_path / "other").replace(path)
    else:
        path.write_text("two, longer")
    with trio.fail_after(60):
        await file.changed()
    file.load()
    with trio.move_on_after(4 * LOOK_SECONDS) as scope:  # it was one change
        await file.changed()
    assert scope.cancelled_caught
