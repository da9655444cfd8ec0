"""The project's English: counts of phrases at which a reader stumbles may not rise.

A count is no verdict on one sentence, which may be better with the phrase. Lower a number when its count has
fallen.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, REST = "the package", "tests, benchmarks and documents"
PLACES = {PACKAGE: ["mcpmux"], REST: ["tests", "benchmarks", "configs", ".github", "README.md"]}

# The highest count of each phrase in docstrings, comments and Markdown: in the package, in the rest.
PHRASES = {
    r"\b(?:who|what|which|where)(?:so)?ever\b": (10, 30),
    r"\b(?:[Nn]obody|[Ss]omebody|[Nn]othing)\b(?! (?:to|but|else|is wrong))": (120, 147),
    r"\b(?:(?:is|are|was|be|been) told|hears?|says? (?:so|nothing|what|who|how))\b": (39, 87),
    r"(?:^|[.;:] )(?:What|Who|How) (?!is the|are the|do|does|can|should|if|to)[a-z]": (26, 148),
    r"\b(?:as (?:it|they) (?:is|are)|by (?:itself|themselves)|of (?:its|their) own)\b": (54, 90),
}
NO_VERB = re.compile(
    r"(?:What|Who|Whose|Which|Where|How|The same|Those|Of|From|Nobody|Nothing|Also|As|So|But|And|In|By|For"
    r"|Until|Then)\b"
)
NO_NOUNS = re.compile(
    "said|told|around|behind|before|each|one|heeding|unheeded|asked|heard|meant|wanted|known|found|given"
)
WORDS_IN_A_NAME = 12
DOCSTRINGS, VARIABLES, NAMES = (3, 101), (71, 637), (0, 0)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def files(where: str) -> Iterator[Path]:
    for name in PLACES[where]:
        path = ROOT / name
        paths = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in paths if file.suffix in {".py", ".md"} and file != Path(__file__))


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring and comment of a module, or each line of Markdown outside code."""
    text = path.read_text()
    if path.suffix == ".md":
        is_code = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code:
                yield number, re.sub("`[^`]*`", "`x`", line)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and (doc := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), doc
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def nodes_of(where: str) -> Iterator[tuple[Path, ast.AST]]:
    for path in files(where):
        if path.suffix == ".py":
            yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())))


def compare(places: list[str], highest: int) -> None:
    assert len(places) <= highest, f"{len(places)} places, {highest} at most:\n" + "\n".join(places)


@pytest.mark.parametrize("where", PLACES)
def test_phrases_become_no_more(where: str) -> None:
    for pattern, highest in PHRASES.items():
        compare(
            [
                f"{path.relative_to(ROOT)}:{line}: {text[max(0, phrase.start() - 30) : phrase.end() + 30]!r}"
                for path in files(where)
                for line, text in prose_of(path)
                for phrase in re.finditer(pattern, text)
            ],
            highest[where == REST],
        )


@pytest.mark.parametrize("where", PLACES)
def test_docstrings_without_a_verb_become_no_more(where: str) -> None:
    compare(
        [
            f"{path.relative_to(ROOT)}:{node.lineno}: {doc.splitlines()[0]}"
            for path, node in nodes_of(where)
            if isinstance(node, FUNCTIONS) and (doc := ast.get_docstring(node)) and NO_VERB.match(doc)
        ],
        DOCSTRINGS[where == REST],
    )


@pytest.mark.parametrize("where", PLACES)
def test_variables_that_are_no_nouns_become_no_more(where: str) -> None:
    compare(
        [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}"
            for path, node in nodes_of(where)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and NO_NOUNS.fullmatch(node.id)
        ],
        VARIABLES[where == REST],
    )


@pytest.mark.parametrize("where", PLACES)
def test_long_names_of_tests_become_no_more(where: str) -> None:
    compare(
        [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
            for path, node in nodes_of(where)
            if isinstance(node, FUNCTIONS)
            and node.name.startswith("test_")
            and node.name.count("_") > WORDS_IN_A_NAME
        ],
        NAMES[where == REST],
    )
