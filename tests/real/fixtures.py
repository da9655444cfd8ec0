"""Commands of real servers, and Pythons that have a real SDK."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.real.parts import npm_env, pip_env

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def sdk1_python() -> str:
    """Return a Python with the Python SDK 1.x: sessions, up to 2025-11-25."""
    return str(pip_env("sdk1"))


@pytest.fixture(scope="session")
def sdk2_python() -> str:
    """Return a Python with the Python SDK 2.x: both eras."""
    return str(pip_env("sdk2"))


@pytest.fixture(scope="session")
def servers_python() -> str:
    """Return a Python with the reference servers that are written in Python."""
    return str(pip_env("servers"))


@pytest.fixture(scope="session")
def everything_command() -> list[str]:
    """server-everything over stdio. With `streamableHttp` for `stdio` it serves HTTP on `$PORT`."""
    return [_npm_program("mcp-server-everything"), "stdio"]


@pytest.fixture(scope="session")
def filesystem_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """server-filesystem with one small directory."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "hello.txt").write_text("hello\n")
    return [_npm_program("mcp-server-filesystem"), str(directory)]


@pytest.fixture
def memory_command(tmp_path: Path) -> list[str]:
    """server-memory with a new, empty graph."""
    return ["env", f"MEMORY_FILE_PATH={tmp_path / 'memory.jsonl'}", _npm_program("mcp-server-memory")]


@pytest.fixture(scope="session")
def time_command(servers_python: str) -> list[str]:
    """mcp-server-time."""
    return [servers_python, "-m", "mcp_server_time", "--local-timezone", "UTC"]


@pytest.fixture(scope="session")
def git_command(servers_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """mcp-server-git on an empty repository."""
    repository = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    return [servers_python, "-m", "mcp_server_git", "--repository", str(repository)]


@pytest.fixture(scope="session")
def sdk2_command(sdk2_python: str) -> list[str]:
    """Return our server on the Python SDK 2.x over stdio. With `http PORT` for `stdio` it serves HTTP."""
    return [sdk2_python, str(HERE / "sdk2_server.py"), "stdio"]


def _npm_program(name: str) -> str:
    return str(npm_env("servers") / ".bin" / name)
