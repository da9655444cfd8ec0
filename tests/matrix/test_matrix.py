"""Every pair of revisions, feature by feature; the README states the outcome, and must be right."""

from __future__ import annotations

import pytest
import trio

from tests.matrix.cell import REVISIONS, open_http_cell
from tests.matrix.features import FEATURES
from tests.matrix.notes import AUDIO, ELICITATION, LINK, NOTES, PAGE, STRUCTURED
from tests.matrix.table import CELLS, in_readme, outcomes, parse, render

ANNOTATED = {
    "elicitation": ELICITATION,
    "url_elicitation": PAGE,
    "structured_output": STRUCTURED,
    "resource_link": LINK,
    "audio": AUDIO,
}
"""The features for which something else may come, and the note that says so."""

BY_NATURE = {
    ELICITATION: "2025-06-18",
    PAGE: "2025-11-25",
    STRUCTURED: "2025-06-18",
    LINK: "2025-06-18",
    AUDIO: "2025-03-26",
}
"""The revision that both sides must have for a feature, by its note."""


@pytest.mark.parametrize(("down", "up"), CELLS)
async def test_every_feature_comes_as_the_readme_says(down: str, up: str, autojump_clock):
    claimed = parse(in_readme())[down, up]
    assert await outcomes(down, up) == {
        feature: note if (note := ANNOTATED.get(feature)) in claimed else None for feature in FEATURES
    }


def test_the_readme_has_the_table_as_it_is_generated():
    """`python -m tests.matrix.table` prints what belongs between the markers."""
    assert in_readme() == render(parse(in_readme()))


def test_the_readme_excuses_nothing_but_what_a_revision_lacks():
    assert parse(in_readme()) == {
        (down, up): tuple(note for note in NOTES if min(down, up) < BY_NATURE[note]) for down, up in CELLS
    }


@pytest.mark.parametrize("revision", REVISIONS)
async def test_over_http_it_is_the_same(revision: str):
    with trio.fail_after(60):
        async with open_http_cell(revision, revision) as cell:
            notes = {await feature(cell) for feature in FEATURES.values()}
    assert tuple(note for note in NOTES if note in notes) == parse(in_readme())[revision, revision]


def test_every_note_is_about_a_feature():
    assert set(ANNOTATED.values()) == set(NOTES)
    assert ANNOTATED.keys() <= FEATURES.keys()
