"""Real servers and clients of other people, installed on first use into `.real/` of the checkout.

What is installed stands in `pyproject.toml`, `[tool.mcpmux.real.pip]` and `[tool.mcpmux.real.npm]`. A later
run finds a stamp with a hash of the requirements and starts at once. A part that cannot be installed fails
the test in CI and skips it elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from functools import cache
from pathlib import Path

import pytest

from benchmarks.peers.install import NPM, PIP, CannotRun, Environment, install

ROOT = Path(__file__).resolve().parents[2]


def pip_env(name: str) -> Path:
    """Return the Python of a virtual environment that has the requirements of `name`."""
    return _ensure(PIP, name) / "bin" / "python"


def npm_env(name: str) -> Path:
    """Return the `node_modules` that has the packages of `name`."""
    return _ensure(NPM, name) / "node_modules"


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


def _ensure(kind: str, name: str) -> Path:
    """Return the directory of an environment. Installs it if it is missing or its requirements changed."""
    names = requirements(kind, name)
    try:
        return install(f"{kind}-{name}", Environment(kind, name, names)).directory
    except CannotRun as error:
        _give_up(f"{kind} environment {name!r} ({', '.join(names)}) cannot be installed:\n{error}")
        raise


def _give_up(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
