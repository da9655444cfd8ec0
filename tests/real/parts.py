"""Real servers and clients of other people, installed on first use into `.real/` of the checkout.

What is installed stands in `pyproject.toml`, `[tool.mcpmux.real.pip]` and `[tool.mcpmux.real.npm]`. A later
run finds a stamp with a hash of the requirements and starts at once. A part that cannot be installed fails
the test in CI and skips it elsewhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".real"
INSTALL_SECONDS = 600  # on a slow line, with an empty cache

Install = Callable[[Path, list[str]], None]


class InstallFailed(Exception):
    """An installer could not be run or ended badly; the text is its output."""


def pip_env(name: str) -> Path:
    """Return the Python of a virtual environment that has the requirements of `name`."""
    return _ensure("pip", name, _install_pip) / "bin" / "python"


def npm_env(name: str) -> Path:
    """Return the `node_modules` that has the packages of `name`."""
    return _ensure("npm", name, _install_npm) / "node_modules"


def program(name: str, package: str | None = None) -> str:
    """Return the path of a program of the system's packages. Its package has the same name by default."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        _give_up(f"{name} is not installed; `apt-get install {package or name}` brings it")
    assert path is not None
    return path


@cache
def requirements(kind: str, name: str) -> tuple[str, ...]:
    """Read the requirements of one environment from `pyproject.toml`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tuple(tomllib.load(file)["tool"]["mcpmux"]["real"][kind][name])


def _ensure(kind: str, name: str, install: Install) -> Path:
    """Return the directory of an environment. Installs it if it is missing or its requirements changed."""
    names = list(requirements(kind, name))
    directory = HOME / f"{kind}-{name}"
    stamp = directory / "stamp"
    digest = hashlib.sha256("\n".join([sys.version, *names]).encode()).hexdigest()
    with _locked(HOME / f"{kind}-{name}.lock"):
        if not (stamp.is_file() and stamp.read_text() == digest):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            try:
                install(directory, names)
            except InstallFailed as error:
                _give_up(f"{kind} environment {name!r} ({', '.join(names)}) cannot be installed:\n{error}")
            stamp.write_text(digest)
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock, so that one process of the test run installs and the others wait for it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_pip(directory: Path, packages: list[str]) -> None:
    _run([sys.executable, "-m", "venv", str(directory)])
    _run(
        [str(directory / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *packages]
    )


def _install_npm(directory: Path, packages: list[str]) -> None:
    (directory / "package.json").write_text(
        '{"private": true}\n'
    )  # else npm installs into a parent directory
    _run(["npm", "install", "--prefix", str(directory), "--no-audit", "--no-fund", *packages])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(str(error)) from error
    if done.returncode != 0:
        raise InstallFailed(f"$ {' '.join(command)}\n{done.stdout}")


def _give_up(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
