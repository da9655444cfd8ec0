"""A home folder for commands that run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

VARIABLES = ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "CLINE_DIR", "CLINE_DATA_DIR")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty home folder, and a folder `work` in it, where the command runs."""
    for variable in (*VARIABLES, "CLINE_MCP_SETTINGS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path
