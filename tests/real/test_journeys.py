"""The journeys of the README files, word for word: from an empty folder to what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attrs import evolve

from tests.journeys import Place, blocks_of
from tests.real.parts import npm_env, program

INSTALLING = re.compile(r"^python3 -m venv .* && \.venv/bin/|^\. \.venv/bin/activate$", re.MULTILINE)
"""It is installed here already."""

JOURNEYS = [
    ("README.md", "Try it"),
    ("mcpmux/hosts/README.md", "Put five servers behind Claude"),
    ("mcpmux/traffic/README.md", "Find out why a tool is slow"),
    ("mcpmux/traffic/README.md", "Prove who called what"),
    ("mcpmux/interceptors/README.md", "Require approval for destructive tools"),
    ("mcpmux/bench/README.md", "Compare two versions under load"),
]


@pytest.mark.parametrize(("page", "heading"), JOURNEYS)
def test_a_journey_ends_where_it_says(page: str, heading: str, tmp_path: Path) -> None:
    program("openssl")
    (tmp_path / "node_modules").symlink_to(npm_env("servers"))  # where npx looks first
    folder = tmp_path / "folder"
    folder.mkdir()
    blocks = [evolve(block, text=INSTALLING.sub("", block.text)) for block in blocks_of(page, heading)]
    with Place(tmp_path, folder) as place:
        place.follow(blocks)
