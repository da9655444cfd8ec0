"""`[capture]` and `[redaction]`: the values that are read, and the messages about mistakes."""

from __future__ import annotations

import pytest

from mcpmux.config import Capture, CaptureRule, Redaction
from mcpmux.config.traffic import DEEP, ONE, parse_path
from tests.config.documents import problems_of, read

DOCS = '[upstreams.docs]\ncommand = "npx"\n'
NO_PATH = "expected a path such as `params.arguments.ssn`, `result.content[*].text` or `..name`"


def test_every_key_is_read():
    config = read(
        DOCS
        + r"""
        [capture]
        level = "truncated"
        directory = "/var/capture"
        body_bytes = "1KiB"
        queue_bytes = "1MiB"
        on_full = "wait"
        rotate_size = "1MiB"
        rotate_age = "2m"
        compress = false
        keep_bytes = "2GiB"
        keep_files = 7
        keep_age = "24h"
        [[capture.rules]]
        upstream = "docs"
        method = "resources/*"
        level = "full"
        [redaction]
        keys = ["ssn"]
        paths = ["params.arguments.pin"]
        skip = ["token"]
        [redaction.patterns]
        "employee number" = '\bE-[0-9]{6}\b'
        """
    )
    assert config.capture == Capture(
        level="truncated",
        directory="/var/capture",
        body_bytes=1024,
        queue_bytes=2**20,
        on_full="wait",
        rotate_size=2**20,
        rotate_age=120.0,
        compress=False,
        keep_bytes=2 * 2**30,
        keep_files=7,
        keep_age=86400.0,
        rules=(CaptureRule(upstream="docs", method="resources/*", level="full"),),
    )
    assert config.redaction == Redaction(
        keys=("ssn",),
        paths=("params.arguments.pin",),
        skip=("token",),
        patterns={"employee number": r"\bE-[0-9]{6}\b"},
    )


@pytest.mark.parametrize(
    ("name", "hint"), [("dosc", "; did you mean `docs`?"), ("w", "; did you mean `web`?"), ("xyz", "")]
)
def test_a_capture_rule_about_no_upstream_is_a_mistake(name, hint):
    text = DOCS + '[upstreams.web]\ncommand = "x"\nprefix = "w"\n'
    rule = f'[[capture.rules]]\nlevel = "metadata"\nupstream = "{name}"\n'
    assert problems_of(text + rule) == [f"capture.rules[0].upstream: no upstream has the name `{name}`{hint}"]
    assert problems_of(text + rule.replace(name, "docs") + rule.replace(name, "w*")) == []


def test_nothing_is_captured_by_default():
    config = read(DOCS)
    assert (config.capture, config.capture.on, config.redaction) == (Capture(), False, Redaction())
    assert not Capture(rules=(CaptureRule(method="x", level="off"),)).on
    assert Capture(rules=(CaptureRule(method="x", level="metadata"),)).on


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("[capture]\nlevel = 'all'", 'capture.level: expected one of "off", "metadata", "truncated", "full"'),
        (
            "[[capture.rules]]\nlevel = 'off'",
            "capture.rules[0]: expected `upstream` or `method`; for all messages set `level` of `capture`",
        ),
        ("[[capture.rules]]\nmethod = 'x'", "capture.rules[0].level: expected a value, the key is missing"),
        ("[capture]\nqueue_bytes = 1", "capture.queue_bytes: expected 65536 to 1099511627776 bytes, as a"),
        ("[redaction]\nkeys = ['-']", "redaction.keys[0]: expected the name of a member"),
        ("[redaction]\npaths = ['a..']", f"redaction.paths[0]: {NO_PATH}"),
        ("[redaction]\nskip = ['tokens']", 'redaction.skip[0]: expected one of "authorization", "cookie"'),
        (
            "[redaction.patterns]\nx = '('",
            "redaction.patterns.x: expected a regular expression of RE2: missing )",
        ),
        (
            "[redaction.patterns]\nx = 'a*'",
            "redaction.patterns.x: expected a regular expression that does not match empty text",
        ),
        (
            "[redaction.patterns]\nx = 'a(?=b)'",
            "redaction.patterns.x: expected a regular expression of RE2: invalid perl operator",
        ),
        (
            "[redaction.patterns]\nx = 'a\\C'",
            "redaction.patterns.x: expected a regular expression without \\C",
        ),
        ("[redaction.patterns]\n'a]' = 'x'", 'redaction.patterns."a]": expected a name of letters, digits'),
    ],
)
def test_mistakes_are_told_with_their_place(settings: str, problem: str):
    (sentence,) = problems_of(DOCS + settings)
    assert sentence.startswith(problem)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("params.arguments.ssn", ("params", "arguments", "ssn")),
        ("$.result.content[*].text", ("result", "content", ONE, "text")),
        ("result.rows[0].*", ("result", "rows", 0, ONE)),
        ("..name", (DEEP, "name")),
        ("a..b", ("a", DEEP, "b")),
        ('["a.b"]["c\\"d"]', ("a.b", 'c"d')),
        ("$[0]", (0,)),
        ("_meta.io/x-y", ("_meta", "io/x-y")),
    ],
)
def test_paths_have_steps(text: str, steps: tuple[object, ...]):
    assert parse_path(text) == steps


@pytest.mark.parametrize(
    "text", ["", "$", ".", "a.", "a b", "a[", "a[x]", "a]b", "a...b", "a['b']", "x." * 40 + "x"]
)
def test_what_is_no_path_is_rejected(text: str):
    with pytest.raises(ValueError, match="expected a path"):
        parse_path(text)
