"""A copy of the project in which mcpmux is compiled. `python -m benchmarks.compiled` makes it and says where.

Apart from the project, as an extension module beside a source hides what is edited there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.process import MEASURED, PROJECT, measured_folder

REAL = PROJECT / ".real"
HOME = REAL / "compiled"
COMPILED = ("mcpmux", "pyproject.toml")
BESIDES = ("benchmarks", "configs", "tests", "CHANGELOG.md", "LICENSE", "README.md")
BUILD_SECONDS = 1800  # a minute or two, usually, and the installing of what it takes
SHOWN = 2000  # characters of what a build says that has failed

# What is compiled stays in memory: nothing is exported that nobody asks for, nothing is kept for debuggers,
# what is called is not copied into its callers, and code and constants share pages: each module has a small
# library of its own, too. By the rates of reads it is no slower for that.
COMPILER_FLAGS = (
    "-fvisibility=hidden -fno-asynchronous-unwind-tables"
    " -fno-inline-functions -fno-inline-functions-called-once -fno-inline-small-functions"
    " -fno-align-functions -fno-align-jumps -fno-align-loops"
)
LINKER_FLAGS = "-Wl,-z,noseparate-code"
PACKED = ",-z,pack-relative-relocs"
PACKED_SINCE = (2, 36)  # the C library that can load it

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "build", "dist")


def compiled_copy() -> Path:
    """The folder of a copy of what the project is now. Raises RuntimeError when it cannot be compiled."""
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
    """From now on children of this process that are mcpmux are compiled. Raises as `compiled_copy`."""
    os.environ[MEASURED] = str(compiled_copy())


def is_compiled() -> bool:
    """Whether the mcpmux that is measured is."""
    return _has_compiled(measured_folder())


def _has_compiled(folder: Path) -> bool:
    return any(folder.glob("mcpmux/transports/byte_stream.*.so"))


def _digest() -> str:
    found = hashlib.sha256(repr((sys.version, sorted(_flags().items()), os.environ.get("CC"))).encode())
    for name in COMPILED:
        for path in sorted([PROJECT / name, *(PROJECT / name).rglob("*")]):
            if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts:
                found.update(str(path).encode() + path.read_bytes())
    return found.hexdigest()


def _compile() -> None:
    """The hook leaves what it has compiled in the tree that it builds a wheel of."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", "."],
        cwd=HOME,
        env={**os.environ, **_flags(), "HATCH_BUILD_HOOKS_ENABLE": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode or not _has_compiled(HOME):
        raise RuntimeError(f"mcpmux cannot be compiled: {done.stderr[-SHOWN:] or 'nothing was compiled'}")
    tried = subprocess.run(
        [sys.executable, "-c", "import mcpmux.transports.byte_stream"],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if tried.returncode:
        raise RuntimeError(f"what was compiled cannot be loaded: {tried.stderr[-SHOWN:]}")


def _flags() -> dict[str, str]:
    """For the compiler and the linker, behind those of the environment."""
    library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    can_pack = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= PACKED_SINCE
    flags = {"CFLAGS": COMPILER_FLAGS, "LDFLAGS": LINKER_FLAGS + PACKED * can_pack}
    return {name: f"{os.environ.get(name, '')} {ours}".strip() for name, ours in flags.items()}


@click.command()
def main() -> None:
    """Compile mcpmux, and say where."""
    click.echo(compiled_copy())


if __name__ == "__main__":
    main()
