"""Read and replace files as a whole: no reader ever sees half of one, and no other change is lost.

A file is replaced by a new one in one step. It keeps its mode, and a link still leads to it. A file that
was changed since it was read is left alone.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from mcpmux.config.file import read_file
from mcpmux.errors import ConfigError

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700


def read_bytes(path: Path) -> bytes | None:
    """Return the contents of a regular file; None if there is none. Raises ConfigError."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise ConfigError([f"cannot read the file: {reason}"], str(path)) from None


def read_text(path: Path) -> str | None:
    """Return the text of the file, with its line ends and its byte order mark; None if there is none.

    Raises ConfigError.
    """
    data = read_bytes(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError([f"not UTF-8 at byte {error.start + 1}"], str(path)) from None


def replace_text(path: Path, text: str, expected: str | None, mode: int = PRIVATE) -> None:
    """Make `text` the contents of the file. `mode`: of a new one. Raises ConfigError.

    `expected`: its contents when it was read, None for no file. A file with other contents is left alone.
    """
    # A link is followed, or the new file would replace the link itself.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            _take_over_mode(target, Path(name), mode)
            # As late as possible: the time in which a change can be lost is shortest here.
            _check(path, expected)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError([f"{path}: cannot write the file: {error.strerror}"]) from None


def _take_over_mode(target: Path, new: Path, mode: int) -> None:
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(target.stat().st_mode)
    new.chmod(mode)


def replace_private(path: Path, text: str) -> None:
    """Make `text` the contents of a file, in a folder, that only we can read. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([f"{path.parent}: cannot make the folder: {error.strerror}"]) from None
    remove_file(path, read_text(path))  # a new file gets our mode
    replace_text(path, text, None)


def remove_file(path: Path, expected: str | None) -> None:
    """Remove the file if it exists. Raises ConfigError. `expected`: as for `replace_text`."""
    _check(path, expected)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError([f"{path}: cannot remove the file: {error.strerror}"]) from None


def _check(path: Path, expected: str | None) -> None:
    if read_text(path) != expected:
        raise ConfigError([f"{path}: the file was changed in the meantime; nothing was written"])
