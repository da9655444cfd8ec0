"""Environments of programs of other people, each its own, installed from public registries on first use.

They lie in `.real/` of the checkout. A later run finds a stamp of what was asked for and starts at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.process import PROJECT

HOME = PROJECT / ".real"
_ADDRESS = re.compile(r"https?://\S+")
INSTALL_SECONDS = 600  # on a slow line, with nothing cached
SHOWN_LINES = 3  # of an installer's complaint

NPM, PIP = "npm", "pip"


class CannotRun(Exception):
    """A peer cannot be installed, started or asked; the text says why, for a person."""


class Environment(NamedTuple):
    """Packages that are installed together. `package` is the one whose version counts."""

    kind: str
    package: str
    requirements: Sequence[str]


class Installed(NamedTuple):
    """An environment that is there."""

    directory: Path
    kind: str

    @property
    def python(self) -> str:
        """The interpreter of a `pip` environment."""
        return str(self.directory / "bin" / "python")

    @property
    def node(self) -> str:
        """The Node that an `npm` environment brings."""
        return str(self.modules / ".bin" / "node")

    @property
    def modules(self) -> Path:
        """Folder in which an `npm` environment keeps its packages."""
        return self.directory / "node_modules"

    def version(self, package: str) -> str:
        """Return the version that the installed program reports. Raises CannotRun."""
        if self.kind == NPM:
            file = self.modules / package / "package.json"
            return str(msgspec.json.decode(file.read_bytes())["version"])
        program = f"from importlib.metadata import version; print(version({package!r}))"
        return run([self.python, "-c", program]).strip()


def install(name: str, wanted: Environment) -> Installed:
    """Return the environment in that folder. Installs it if it is missing or has other requirements.

    Raises CannotRun with the installer's words.
    """
    directory = HOME / name
    stamp, mark = directory / "stamp", stamp_of(wanted.requirements)
    with locked(HOME / f"{name}.lock"):
        if not (stamp.is_file() and stamp.read_text() == mark):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            INSTALLERS[wanted.kind](directory, wanted.requirements)
            stamp.write_text(mark)
    return Installed(directory, wanted.kind)


def stamp_of(requirements: Sequence[str]) -> str:
    """Return the stamp of an environment that has these requirements."""
    return hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Raises CannotRun with its complaint."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
            env={**os.environ, **SILENT, **(environment or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(str(error)) from None
    if done.returncode:
        raise CannotRun(f"`{' '.join(command[-3:])}` failed: {complaint(done.stderr or done.stdout)}")
    return done.stdout


def complaint(output: str) -> str:
    """Return the lines of an installer's or a server's output with errors, in one line."""
    lines = [_ADDRESS.sub("…", line).strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return " / ".join(line[:200] for line in errors[:SHOWN_LINES])


SILENT = {
    "DO_NOT_TRACK": "1",
    "NO_UPDATE_NOTIFIER": "1",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Settings with which tools keep what they see to themselves."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock, so that one process installs and others wait for it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_npm(directory: Path, requirements: Sequence[str]) -> None:
    (directory / "package.json").write_text('{"private": true}\n')  # else a parent directory is taken
    run(["npm", "install", "--prefix", str(directory), "--no-audit", "--no-fund", *requirements])


def _install_pip(directory: Path, requirements: Sequence[str]) -> None:
    run([sys.executable, "-m", "venv", str(directory)])
    run([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])


INSTALLERS: dict[str, Callable[[Path, Sequence[str]], None]] = {NPM: _install_npm, PIP: _install_pip}
