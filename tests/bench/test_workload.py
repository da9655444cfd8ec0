"""From words to calls: operations, placeholders, popularity, and the mix of them."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from mcpmux.bench.operation import bind, draw_by, parse_operation
from mcpmux.bench.workload import Flow, bind_mix, parse_flow
from mcpmux.config.report import InvalidValue
from mcpmux.protocol.envelope import decode_any

URIS = ("file:///a.md", "file:///b.txt", "memo:c.md", "file:///dir/d.md")


def call_of(text: str, number: int = 1, seed: int = 1) -> tuple[str, dict[str, Any]]:
    ask = bind(parse_operation(text), URIS)(number, Random(seed))
    return ask.call.method, {key: decode_any(value) for key, value in ask.call.params.items()}


CALLS = {
    "list": ("resources/list", {}),
    "list tools": ("tools/list", {}),
    "list templates": ("resources/templates/list", {}),
    "ping": ("ping", {}),
    "read memo:*": ("resources/read", {"uri": "memo:c.md"}),
    "tool echo": ("tools/call", {"name": "echo", "arguments": {}}),
    'tool echo {"a": [1, "x"], "b": {"c": null}}': (
        "tools/call",
        {"name": "echo", "arguments": {"a": [1, "x"], "b": {"c": None}}},
    ),
    'tool echo {"a": {{n}}, "b": "no {{n}}", "c": "{{n}}", "d": [{"e":{{2..2}}}]}': (
        "tools/call",
        {"name": "echo", "arguments": {"a": 7, "b": "no 7", "c": "7", "d": [{"e": 2}]}},
    ),
    'prompt p {"u": "{{x|x}}"}': ("prompts/get", {"name": "p", "arguments": {"u": "x"}}),
    'prompt p {"u": "{{3..3}}"}': ("prompts/get", {"name": "p", "arguments": {"u": "3"}}),
    "complete prompt:p city Pa": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "city", "value": "Pa"}},
    ),
    "complete note:///{name} name": (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "note:///{name}"}, "argument": {"name": "name", "value": ""}},
    ),
    'template note:///{name}/{+more} {"name": "a", "more": "{{n}}"}': (
        "resources/read",
        {"uri": "note:///a/7"},
    ),
}


@pytest.mark.parametrize(("text", "expected"), CALLS.items(), ids=CALLS)
def test_words_become_a_call(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert call_of(text, number=7) == expected


def test_a_glob_chooses_among_the_resources_of_the_server() -> None:
    make = bind(parse_operation("read file:///*.md"), URIS)
    random = Random(1)
    assert {make(turn, random).subject for turn in range(50)} == {"file:///a.md", "file:///dir/d.md"}


@pytest.mark.parametrize("glob", ["docs+file:///*.md", "file:///*.md"])
@pytest.mark.parametrize("prefix", ["", "docs+"])
def test_a_glob_matches_the_same_with_and_without_a_mux(glob: str, prefix: str) -> None:
    make = bind(parse_operation(f"read {glob}"), [prefix + uri for uri in URIS])
    uris = {make(turn, Random(turn)).subject for turn in range(50)}
    assert uris == {f"{prefix}file:///a.md", f"{prefix}file:///dir/d.md"}


def test_a_uri_as_an_argument_is_one_of_the_server() -> None:
    uris = {call_of('tool t {"u": "{{uri}}"}', seed=seed)[1]["arguments"]["u"] for seed in range(40)}
    assert uris == set(URIS)


MISTAKES = {
    "": "unknown operation",
    "fetch x": "unknown operation `fetch x`; expected one of: read",
    "read a b": "unknown operation",
    "list things": "unknown operation",
    "ping now": "unknown operation",
    "tool": "unknown operation",
    "complete prompt:p": "unknown operation",
    "tool t {": "no JSON",
    "tool t [1]": "have to be a JSON object",
    'tool t {"a": "{{what}}"}': "means nothing here; expected {{n}}",
    'tool t {"a": "{{9..1}}"}': "is empty",
    "template note:///{x}": "needs values",
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.items(), ids=MISTAKES)
def test_what_cannot_be_understood_is_told(text: str, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_operation(text)
    assert words in str(caught.value)


def test_nothing_to_read_is_told() -> None:
    with pytest.raises(InvalidValue, match="lists no resource that matches http"):
        bind(parse_operation("read http:*"), URIS)


@pytest.mark.parametrize(
    ("text", "weight", "operation"),
    [("8 read", 8, "read"), ("0.5x list tools", 0.5, "list tools"), ("ping", 1, "ping")],
)
def test_weights(text: str, weight: float, operation: str) -> None:
    assert parse_flow(text) == Flow((parse_operation(operation),), weight)


def test_a_weight_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue):
        parse_flow("0 ping")


def test_a_mix_keeps_the_weights_and_the_seed() -> None:
    flows = [parse_flow("8 read"), parse_flow("2 list tools")]

    def draw(seed: int) -> list[str]:
        mix = bind_mix(flows, URIS, Random(seed))
        return [mix.next_ask().operation for _ in range(5000)]

    assert Counter(draw(1))["read"] == pytest.approx(4000, rel=0.05)
    assert draw(1) == draw(1) != draw(2)


def test_a_flow_has_its_steps_in_order() -> None:
    steps = tuple(parse_operation(text) for text in ("list tools", "tool echo", "ping"))
    asks, pause = bind_mix([Flow(steps, pause=0.5)], URIS, Random(1)).next()
    assert [ask.operation for ask in asks] == ["list tools", "tool echo", "ping"]
    assert pause == 0.5


class Highest(Random):
    def random(self) -> float:
        return 1 - 2**-53


def test_the_highest_draw_is_the_last_thing() -> None:
    assert draw_by("abcd", [1.0] * 4)(Highest()) == "d"
