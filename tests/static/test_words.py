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
    r"\b(?:who|what|which|where)(?:so)?ever\b": (3, 1),
    r"\b(?:[Nn]obody|[Ss]omebody|[Nn]othing)\b(?! (?:to|but|else|is wrong))": (37, 35),
    r"\b(?:(?:is|are|was|be|been) told|hears?|says? (?:so|nothing|what|who|how))\b": (17, 3),
    r"(?:^|[.;:] )(?:What|Who|How) (?!is the|are the|do|does|can|should|if|to)[a-z]": (8, 5),
    r"\b(?:as (?:it|they) (?:is|are)|by (?:itself|themselves)|of (?:its|their) own)\b": (20, 12),
}
NO_VERB = re.compile(
    r"(?:What|Who|Whose|Which|Where|How|The same|Those|Of|From|Nobody|Nothing|Also|As|So|But|And|In|By|For"
    r"|Until|Then|A|An|The|One|Whether|Every|All|Each)\b"
)
NO_NOUN = re.compile(
    "said|told|around|behind|before|each|one|heeding|unheeded|asked|heard|meant|wanted|known|found|given"
)
WORDS_IN_A_NAME = 12
DOCSTRING, VARIABLE, NAME = "docstring without a verb", "variable that is no noun", "long name of a test"
RULES = {DOCSTRING: (0, 0), VARIABLE: (71, 1), NAME: (0, 0)}

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


def stumbles(where: str) -> Iterator[tuple[str, str]]:
    """Yield (what a reader stumbles at, its place and text)."""
    for path in files(where):
        place = path.relative_to(ROOT)
        for line, text in prose_of(path):
            for phrase in PHRASES:
                for match in re.finditer(phrase, text):
                    excerpt = text[max(0, match.start() - 30) : match.end() + 30]
                    yield phrase, f"{place}:{line}: {excerpt!r}"
        for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(node, FUNCTIONS):
                # A property is a noun, and a test says what its subject does.
                is_free = node.name.startswith("test_") or any(
                    "property" in ast.unparse(part) for part in node.decorator_list
                )
                if not is_free and (doc := ast.get_docstring(node)) and NO_VERB.match(doc):
                    yield DOCSTRING, f"{place}:{node.lineno}: {doc.splitlines()[0]}"
                if node.name.startswith("test_") and node.name.count("_") > WORDS_IN_A_NAME:
                    yield NAME, f"{place}:{node.lineno}: {node.name}"
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and NO_NOUN.fullmatch(node.id):
                yield VARIABLE, f"{place}:{node.lineno}: {node.id}"


@pytest.mark.parametrize("where", PLACES)
def test_no_count_rises(where: str) -> None:
    places: dict[str, list[str]] = {}
    for what, place in stumbles(where):
        places.setdefault(what, []).append(place)
    for what, highest in {**PHRASES, **RULES}.items():
        hits, most = places.get(what, []), highest[where == REST]
        assert len(hits) <= most, f"{what}: {len(hits)} places, {most} at most:\n" + "\n".join(hits)
