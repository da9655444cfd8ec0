"""Read a bounded part of a file, never waiting for a pipe or a device. Replace a file as a whole. Lock one.

No reader ever sees half of a new file, and no change of other programs is lost: a file that was changed since
it was read is left alone. A link still leads to the file. A lock is between processes, and ends with the
process that has it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Final

from mcpmux.errors import ConfigError, TransportError

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
OTHERS: Final = 0o077  # in the mode of a file: the rights of all but its owner
_NAME_CHARACTERS: Final = 100  # of a file that are in the name of its successor, which must not be too long
CONFIG_BYTES: Final = 8 * 1024 * 1024  # Claude Code's file grows with each project, to some MiB at most

_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Opening a pipe waits for no writer. Windows has neither flag, and no pipes in folders."""


def state_folder() -> Path:
    """Return the folder of what mcpmux keeps for a user: $XDG_STATE_HOME/mcpmux or ~/.local/state/mcpmux.

    Raises TransportError for a user without a home folder, as in some containers.
    """
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(home) if home.startswith("/") else Path.home() / ".local" / "state") / "mcpmux"
    except RuntimeError:
        raise TransportError("this user has no home folder: set HOME or XDG_STATE_HOME") from None


def short_path(path: str | Path) -> str:
    """Return a path for people: with ~ in the place of their home folder."""
    with suppress(ValueError, RuntimeError):  # elsewhere; there is no home
        return str("~" / Path(path).relative_to(Path.home()))
    return str(path)


def read_file(path: str | Path, limit: int = CONFIG_BYTES) -> bytes:
    """Return what is in a regular file of at most `limit` bytes. Raises OSError and ValueError.

    For files that are where mcpmux looks for them, or that a file names.
    """
    with open(path, "rb", opener=_open_at_once) as file:  # Path.open has no opener
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return _bounded(file.read(limit + 1), limit)


def read_named_file(path: str | Path, limit: int = CONFIG_BYTES) -> bytes:
    """Do the same with a file that the user names: it may be a pipe, as `<(…)` of a shell is one."""
    with Path(path).open("rb") as file:
        return _bounded(file.read(limit + 1), limit)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | _AT_ONCE)


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return data


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
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(text.encode())
            to_disk(file)
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(target.stat().st_mode)
            Path(file.name).chmod(mode)
            # As late as possible: the time in which a change can be lost is shortest here.
            _check(path, expected)
    except OSError as error:
        raise ConfigError([f"cannot write the file: {error.strerror}"], str(path)) from None


@contextmanager
def replacing(path: Path, buffering: int = -1) -> Iterator[IO[bytes]]:
    """Yield a new file that only we can read, which takes the place of `path` unless the block raises.

    A link is followed, or the new file would replace the link itself. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    prefix = f".{target.name[:_NAME_CHARACTERS]}."
    with NamedTemporaryFile("wb", buffering, prefix=prefix, dir=target.parent, delete=False) as file:
        try:
            yield file
            file.close()  # Windows replaces no open file
            Path(file.name).replace(target)
        except BaseException:
            with suppress(OSError):  # what is left in the buffer does not fit on a full disk either
                file.close()
            Path(file.name).unlink(missing_ok=True)
            raise


def to_disk(file: IO[bytes]) -> None:
    """Wait until what was written is on the disk: after a crash the old file or the new one is whole."""
    file.flush()
    os.fsync(file.fileno())


def replace_private(path: Path, text: str) -> None:
    """Make `text` the contents of a file, in a folder, that only we can read. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([f"cannot make the folder: {error.strerror}"], str(path.parent)) from None
    remove_file(path, read_text(path))  # a new file gets our mode
    replace_text(path, text, None)


def remove_file(path: Path, expected: str | None) -> None:
    """Remove the file if it exists. Raises ConfigError. `expected`: as for `replace_text`."""
    _check(path, expected)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError([f"cannot remove the file: {error.strerror}"], str(path)) from None


def _check(path: Path, expected: str | None) -> None:
    if read_text(path) != expected:
        raise ConfigError(["the file was changed in the meantime; nothing was written"], str(path))


# Locks

BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""A flag for `os.open`. Without it Windows translates line ends."""

OWN_FILE: Final[int] = getattr(os, "O_NOFOLLOW", 0)
"""A flag for `os.open` of a file to write: refuse a link, which may lead to another user's file."""

if sys.platform == "win32":
    import msvcrt

    _FAR: Final = 2**40  # a byte that is locked cannot be read by others, so this is none of the contents

    def lock_file(descriptor: int) -> None:
        """Lock an open file until its descriptor is closed. Raises BlockingIOError when another has it."""
        # `locking` locks at the current position, so that is moved and put back.
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, "another process has the file") from None
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)

else:
    import fcntl

    def lock_file(descriptor: int) -> None:
        """Lock an open file until its descriptor is closed. Raises BlockingIOError when another has it."""
        # Not `lockf`: POSIX locks end as soon as the process closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
