from __future__ import annotations

import pytest

from mcpmux.cli.client import parse_arguments
from mcpmux.errors import ConfigError


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], {}),
        (["a=b"], {"a": "b"}),
        (["a="], {"a": ""}),
        (["a=1"], {"a": "1"}),
        (["a:=1"], {"a": 1}),
        (["a:=[1, null]"], {"a": [1, None]}),
        (['a:="=:="'], {"a": "=:="}),
        (["a=b=c"], {"a": "b=c"}),
        (["a=x:=1"], {"a": "x:=1"}),
        (["x:y=1"], {"x:y": "1"}),
        (["a=ü", "b:=true"], {"a": "ü", "b": True}),
    ],
)
def test_pairs_become_an_object(pairs: list[str], expected: dict[str, object]) -> None:
    assert parse_arguments(pairs, None) == expected


def test_one_json_object_is_taken_whole() -> None:
    assert parse_arguments([], '{"a": {"b": 1}}') == {"a": {"b": 1}}


@pytest.mark.parametrize("whole", ["", "[]", "7", "null", "{", "{'a': 1}"])
def test_what_is_no_json_object_is_refused(whole: str) -> None:
    with pytest.raises(ConfigError, match="--args: expected a JSON object"):
        parse_arguments([], whole)


def test_pairs_and_a_whole_object_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="not both"):
        parse_arguments(["a=b"], "{}")


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments(["good=1", "bare", "=1", ":=1", "n:=one", "good=2"], None)
    assert caught.value.problems == [
        "argument `bare`: expected key=text or key:=JSON",
        "argument `=1`: expected key=text or key:=JSON",
        "argument `:=1`: expected key=text or key:=JSON",
        "argument `n:=one`: expected JSON after `:=`; for text write `n=one`",
        "argument `good=2`: it is given twice",
    ]
