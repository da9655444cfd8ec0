"""Files are read up to a bound, and a path that is not a file is refused without a wait."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mcpmux.config.expansion import expand, read_env_file
from mcpmux.config.report import NoValue
from mcpmux.errors import ConfigError
from mcpmux.files import CONFIG_BYTES, read_file, read_named_file, read_text
from mcpmux.hosts.configuration import read_config

UNFIT = pytest.mark.parametrize("kind", ["pipe", "device", "link to a device"])


def unfit(folder: Path, kind: str) -> Path:
    path = folder / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        return Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    return path


@UNFIT
def test_a_file_that_nobody_named_has_to_be_a_regular_one(tmp_path: Path, kind: str) -> None:
    path = unfit(tmp_path, kind)
    with pytest.raises(OSError, match="it is no regular file"):
        read_file(path)
    with pytest.raises(ConfigError, match="cannot read the file: it is no regular file"):
        read_text(path)
    with pytest.raises(NoValue, match="it is no regular file"):
        read_env_file(str(path))
    with pytest.raises(NoValue, match="it is no regular file"):
        expand(f"${{file:{path}}}", {})


@pytest.mark.parametrize("read", [read_file, read_named_file])
def test_a_file_is_read_up_to_its_limit(tmp_path: Path, read: object) -> None:
    assert callable(read)
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read(path, 4) == b"1234"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read(path, 3)


def test_a_configuration_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"/dev/zero: .* more than {CONFIG_BYTES} bytes"):
        read_config("/dev/zero", {}, bytes)
    with pytest.raises(ConfigError, match=f"standard input: it has more than {CONFIG_BYTES} bytes"):
        read_config("-", {}, lambda: b"#" * (CONFIG_BYTES + 1))


def test_a_configuration_that_the_user_names_may_be_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=('[upstreams.a]\ncommand = "x"\n',), daemon=True)
    writer.start()
    assert list(read_config(str(path), {}, bytes).enabled) == ["a"]
    writer.join(5)
