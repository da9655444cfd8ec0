"""A copy of the project in which mcpmux is compiled. `python -m benchmarks.compiled` makes it and says where.

Apart from the project, as an extension module beside a source hides what is edited there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click

from benchmarks.peers.install import locked
from benchmarks.process import MEASURED, PROJECT, measured_folder

REAL = PROJECT / ".real"
HOME = REAL / "compiled"
COMPILED = ("mcpmux", "pyproject.toml")
BESIDES = (".github", "benchmarks", "configs", "tests", "CHANGELOG.md", "LICENSE", "README.md")
BUILD_SECONDS = 1800  # a minute or two, usually, and the installing of what it takes
SHOWN = 2000  # characters of what a build says that has failed

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "build", "dist")


def compiled_copy() -> Path:
    """Return the folder of a copy of what the project is now, compiled. Wait for a process that makes it.

    Raises RuntimeError when it cannot be compiled.
    """
    with locked(REAL / f"{HOME.name}.lock"):
        digest = _digest()
        stamp = HOME / "stamp"
        is_new = not (stamp.is_file() and stamp.read_text() == digest)
        stamp.unlink(missing_ok=True)
        for name in (*COMPILED, *BESIDES) if is_new else BESIDES:
            _copy(name)
        if is_new:
            _compile()
        link = HOME / REAL.name  # what tests there have installed is there, too
        link.unlink(missing_ok=True)
        link.symlink_to("..")
        stamp.write_text(digest)
        return HOME


def _copy(name: str) -> None:
    source, copy = PROJECT / name, HOME / name
    HOME.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy, ignore=_LEFT_OUT)
    else:
        shutil.copy(source, copy)


def measure_compiled() -> None:
    """Have children of this process run a compiled mcpmux. Raises RuntimeError."""
    os.environ[MEASURED] = str(compiled_copy())


def is_compiled() -> bool:
    """Return whether the measured mcpmux is compiled."""
    return _has_compiled(measured_folder())


def _has_compiled(folder: Path) -> bool:
    return any(folder.glob("mcpmux/transports/byte_stream.*.so"))


def _digest() -> str:
    digest = hashlib.sha256(
        repr((sys.version, sorted(_environment().items()), os.environ.get("CC"))).encode()
    )
    for name in COMPILED:
        for path in sorted([PROJECT / name, *(PROJECT / name).rglob("*")]):
            if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts:
                digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _compile() -> None:
    """Compile: the hook leaves its results in the tree of which it builds a wheel."""
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".")
    _run_there("mcpmux cannot be compiled", *build)
    if not _has_compiled(HOME):
        raise RuntimeError("mcpmux cannot be compiled: nothing was compiled")
    _run_there("what was compiled cannot be loaded", "-c", "import mcpmux.transports.byte_stream")


def _run_there(problem: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=HOME,
        env={**os.environ, **_environment()},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{problem}: {done.stderr[-SHOWN:]}")


def _environment() -> dict[str, str]:
    """Return the environment in which wheels for Linux are built, added to this one."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wheels: dict[str, str] = project["tool"]["cibuildwheel"]["linux"]["environment"]
    return {name: f"{os.environ.get(name, '')} {value}".strip() for name, value in wheels.items()}


@click.command()
def main() -> None:
    """Compile mcpmux, and say where."""
    click.echo(compiled_copy())


if __name__ == "__main__":
    main()
