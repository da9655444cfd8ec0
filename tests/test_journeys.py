"""Comparing the output of a command with the text of a README."""

from __future__ import annotations

import pytest

from tests.journeys import pattern_of, squeeze

TABLE = "NAME   STATE  DETAILS\nfiles  ready  tools\nclock  ready  resources, tools\ndone\n"


@pytest.mark.parametrize(
    ("told", "is_so"),
    [
        (TABLE, True),
        ("NAME STATE DETAILS\nfiles ready …\nclock ready …\ndone\n", True),
        ("NAME…\n…\ndone\n", True),
        ("…\nclock  ready  …\n…\n", True),
        ("…\n", True),
        ("NAME…\n…\nnotes  ready  …\n…\n", False),
        ("NAME…\n", False),
        ("…\nclock  ready  tools\n…\n", False),
        ("…\ndone\nclock  ready  …\n", False),
        (TABLE.replace("ready", "re.dy"), False),
    ],
)
def test_output_is_like_the_text_of_a_page(told: str, is_so: bool) -> None:
    assert bool(pattern_of(told).fullmatch(squeeze(TABLE))) is is_so
