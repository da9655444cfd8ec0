"""Whether a search finds the right tool among hundreds, asked as a model would ask."""

from __future__ import annotations

import pytest

from mcpmux.mux.search import SHOWN, Index
from mcpmux.protocol.envelope import raw
from tests.real.mux import Json
from tests.real.tool_catalog import catalog
from tests.real.tool_questions import QUESTIONS

MOST = 5  # tools that a model is shown for a question
LARGEST_SHARE = 0.05  # of the tokens of the whole list, which are in proportion to its characters
LEAST_FOUND = 90  # questions of a hundred; some ask for what no tool says in these words


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    return catalog(tmp_path_factory.mktemp("catalog"))


def test_the_catalog_is_large_and_has_what_is_asked_for(tools: list[Json]) -> None:
    names = {tool["name"] for tool in tools}
    assert len(names) == len(tools) >= 500
    assert len({question for question, *_ in QUESTIONS}) == len(QUESTIONS) == 100
    assert {name for _, *right in QUESTIONS for name in right} <= names


def test_the_first_list_takes_a_fraction_of_the_whole_one(tools: list[Json]) -> None:
    assert len(SHOWN) <= LARGEST_SHARE * len(raw(tools))


def test_a_right_tool_is_among_the_first_for_nine_questions_in_ten(tools: list[Json]) -> None:
    index = Index(tools)
    missed = []
    for question, *right in QUESTIONS:
        names = [tools[position]["name"] for position in index.find(question, MOST)]
        if not set(right) & set(names[:MOST]):
            missed.append(f"{question!r} wants {' or '.join(right)}, found {', '.join(names) or 'nothing'}")
    hits = len(QUESTIONS) - len(missed)
    assert hits >= LEAST_FOUND, "\n".join(["missed:", *missed])
