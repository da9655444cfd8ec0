from __future__ import annotations

from collections.abc import Mapping

import pytest

from mcpmux.cli.client.arguments import Parameters, parse_arguments
from mcpmux.cli.options import Credentials, load_config, load_targets, pairs_of
from mcpmux.cli.process import Mistake
from mcpmux.config import Config, Secret
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
    assert parse_arguments(pairs, None).unread == expected


def test_one_json_object_is_taken_whole() -> None:
    assert parse_arguments([], '{"a": {"b": 1}}').unread == {"a": {"b": 1}}


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


# The header fields that servers at URLs get.

WEB, LOCAL = "https://mux.example.com/mcp", "http://127.0.0.1:8484/mcp"


def headers_in(config: Config) -> Mapping[str, str]:
    return {name: value.reveal() for name, value in config.upstreams[0].target.headers.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("Authorization: Bearer a=b:c", ("Authorization", "Bearer a=b:c")),
        ("Authorization:Bearer x", ("Authorization", "Bearer x")),
        ("X-Url=http://x:1", ("X-Url", "http://x:1")),
        ("X-Key: a=b", ("X-Key", "a=b")),
        ("X-Key= a", ("X-Key", " a")),
        ("X-Key:", ("X-Key", "")),
    ],
)
def test_a_header_is_read_as_curl_reads_it_too(text: str, header: tuple[str, str]) -> None:
    assert list(pairs_of("--header", [text], is_header=True).items()) == [header]


@pytest.mark.parametrize("texts", [["x"], [": x"], ["=x"], ["A: 1", "A=2"]])
def test_a_header_without_a_name_or_given_twice_is_a_mistake(texts: list[str]) -> None:
    with pytest.raises(Mistake, match="--header: expected NAME=VALUE or 'NAME: VALUE'"):
        pairs_of("--header", texts, is_header=True)


@pytest.mark.parametrize(
    ("address", "target", "is_sent"),
    [
        *((None, LOCAL, True), (None, "127.0.0.1:8484", True), (None, "ws://localhost:1", True)),
        *((None, WEB, False), (None, "http://10.0.0.1:8484/mcp", False)),
        *(("https://mux.example.com", WEB, True), (WEB, "wss://MUX.example.com/x", True)),
        *((WEB, LOCAL, False), (WEB, "http://mux.example.com/mcp", False), (WEB, f"{WEB[:-4]}:444/", False)),
        *(("127.0.0.1:8484", LOCAL, True), ("127.0.0.1:8484", "http://127.0.0.1:8485/mcp", False)),
    ],
)
def test_the_token_of_the_environment_goes_to_its_address_alone(
    address: str | None,
    target: str,
    is_sent: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MCPMUX_TOKEN", "secret")
    monkeypatch.setenv("MCPMUX_TOKEN_FOR", address or "")
    (config,) = load_targets([target], Credentials.of(None, ()))
    assert headers_in(config) == ({"Authorization": "Bearer secret"} if is_sent else {})
    assert ("MCPMUX_TOKEN is not sent to" in capfd.readouterr().err) is (address is None and not is_sent)
    (config,) = load_targets([target], Credentials.of(Secret("Bearer given"), ["X-Key: 1"]))
    assert headers_in(config) == {"Authorization": "Bearer given", "X-Key": "1"}
    (config,) = load_targets([target], Credentials.of(None, ["authorization: Basic x"]))
    assert headers_in(config) == {"authorization": "Basic x"}


def test_a_token_on_the_command_line_is_for_one_host() -> None:
    credentials = Credentials.of(Secret("Bearer x"), ())
    for targets in ([LOCAL, WEB], ["echo x"], ["tcp://127.0.0.1:1"]):
        with pytest.raises(ConfigError, match=r"--token and --header are for (one host|a TARGET)"):
            load_targets(targets, credentials)
    configs = load_targets([LOCAL, "http://127.0.0.1:8484/mcp/view", "echo x"], credentials)
    assert [headers_in(config) for config in configs[:2]] == [{"Authorization": "Bearer x"}] * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("MCPMUX_TOKEN_FOR", "mux example"), ("MCPMUX_TOKEN_FOR", "ftp://x"), ("MCPMUX_TOKEN", "a\nb")],
)
def test_a_variable_that_cannot_be_read_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPMUX_TOKEN", "secret")
    monkeypatch.setenv(name, value)
    with pytest.raises((ConfigError, Mistake), match=name):
        load_targets([LOCAL], Credentials.of(None, ()))


def test_two_tokens_at_once_are_a_mistake() -> None:
    with pytest.raises(Mistake, match="leave out one of --token and --header"):
        Credentials.of(Secret("Bearer x"), ["authorization: y"])


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("localhost:8484", "http://localhost:8484/mcp"),
        ("[::1]:8484", "http://[::1]:8484/mcp"),
        ("10.0.0.1:80/other", "http://10.0.0.1:80/other"),
        ("http://localhost:8484", "http://localhost:8484"),
    ],
)
def test_an_address_is_the_url_of_the_mux_there(target: str, url: str) -> None:
    assert load_config(target).upstreams[0].target.display == url


SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "is_on": {"type": "boolean"},
        "names": {"type": "array"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "text": {"type": ["string", "integer"]},
        "any": {},
    },
    "required": ["count"],
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("share=2", 2),
        ("share=2.5", 2.5),
        ("is_on=true", True),
        ('names=["a"]', ["a"]),
        ("either=null", None),
        ("either=3", 3),
        ("text=3", "3"),
        ("any=3", "3"),
        ("any:=3", 3),
    ],
)
def test_a_text_is_read_as_the_schema_has_it(pair: str, value: object) -> None:
    name = pair.partition("=")[0].removesuffix(":")
    read = parse_arguments(["count=2.0", pair], None).read_by(Parameters.of_schema(SCHEMA))
    assert read == {"count": 2, name: value}
    assert type(read[name]) is type(value)


def test_arguments_that_a_tool_does_not_take_are_named_at_once() -> None:
    arguments = parse_arguments(["cuont=1", "is_on=yes", "share=much", "either=x"], None)
    with pytest.raises(ConfigError) as caught:
        arguments.read_by(Parameters.of_schema(SCHEMA))
    assert caught.value.problems == [
        "argument `is_on`: expected boolean, got `yes`",
        "argument `share`: expected number, got `much`",
        "argument `either`: expected integer or null, got `x`",
        "argument `cuont`: unknown; did you mean `count`?",
        "argument `count`: missing",
    ]


@pytest.mark.parametrize(
    "schema", [{}, {"properties": {"a": {}}, "additionalProperties": True}, {"patternProperties": {"x": {}}}]
)
def test_a_tool_that_takes_any_argument_gets_it(schema: dict[str, object]) -> None:
    assert parse_arguments(["b=1"], None).read_by(Parameters.of_schema(schema)) == {"b": "1"}


def test_one_json_object_is_sent_unread() -> None:
    assert parse_arguments([], '{"b": "two"}').read_by(Parameters.of_schema(SCHEMA)) == {"b": "two"}
