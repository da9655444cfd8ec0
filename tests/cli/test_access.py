"""`[[access]]` from the file to real clients with real tokens, and `mcpmux access test`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpmux.auth.bearer import hash_token
from tests.cli.invoking import Invoke
from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.process.running import Running

TOKENS = {name: f"mcpmux-test-token-of-{name}-0123456789abcdef" for name in ("alice", "bob")}
UPSTREAMS = ("notes", "clock")
RULES = """
[[access]]
effect = "allow"
principals = ["alice"]
upstreams = ["notes"]
methods = ["read", "subscribe"]

[[access]]
effect = "deny"
name = "no-welcome"
principals = ["alice"]
targets = ["note:///welcome"]

[[access]]
effect = "allow"
principals = ["bob"]
"""


def write_config(folder: Path) -> Path:
    lines = [
        '[listeners]\nhttp = ["127.0.0.1:0"]',
        f'[audit]\ndirectory = "{folder / "audit"}"',
    ]
    command = f'command = "{sys.executable}"'
    lines += [f'[upstreams.{name}]\n{command}\nargs = ["-m", "mcpmux.demo.{name}"]' for name in UPSTREAMS]
    lines += [f'[auth.tokens.{name}]\nsha256 = "{hash_token(token)}"' for name, token in TOKENS.items()]
    path = folder / "mux.toml"
    path.write_text("\n".join(lines) + RULES)
    return path


def ask(url: str, who: str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make one modern request with the token of `who`, and return the whole answer."""
    client = HttpClient(url, MODERN, {"Authorization": f"Bearer {TOKENS[who]}"})
    return client.ask(method, params)[-1]


@pytest.mark.process
def test_two_tokens_see_and_read_what_the_rules_say(tmp_path: Path) -> None:
    with Running("serve", str(write_config(tmp_path))) as server:
        url = find_url(server)
        everything = {item["uri"] for item in ask(url, "bob", "resources/list")["result"]["resources"]}
        allowed = {item["uri"] for item in ask(url, "alice", "resources/list")["result"]["resources"]}
        assert {uri.partition("+")[0] for uri in everything} == {"notes", "clock"}
        assert allowed == {uri for uri in everything if uri.startswith("notes+")} - {"notes+note:///welcome"}
        for uri in everything:
            answer = ask(url, "alice", "resources/read", {"uri": uri})
            if uri in allowed:
                assert "result" in answer, answer
            else:
                reason, _, near = answer["error"]["message"].partition("; did you mean ")
                assert reason == f"Resource not found: no upstream owns {uri}"
                assert near.strip("`?") in {"", *allowed}
            assert "result" in ask(url, "bob", "resources/read", {"uri": uri})
        assert ask(url, "alice", "tools/list")["result"]["tools"] == []
        assert ask(url, "bob", "tools/list")["result"]["tools"] != []
        discovery = ask(url, "alice", "server/discover")["result"]
        assert discovery["capabilities"].keys() == {"resources"}
        assert "clock" not in json.dumps(discovery)
        assert server.stop() == 0
    files = sorted((tmp_path / "audit").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    refused = [record for record in records if record.get("decision") == "refused"]
    assert {record["principal"] for record in refused} == {"alice"}
    assert {record["rule"] for record in refused} == {"access", "no-welcome"}
    assert all("upstreams" not in record for record in refused)


def find_url(server: Running) -> str:
    """Wait for the URL that the server prints when it is ready, and return it."""
    words = server.line(containing="http").split()
    return next(word for word in words if word.startswith("http"))


CASES = [
    (["--principal", "alice", "--uri", "notes+note:///a"], 0, "allowed: note:///a of notes, by access[0]"),
    (
        ["--principal", "alice", "--uri", "notes+NOTE:///x/../welcome"],
        1,
        "refused: NOTE:///x/../welcome of notes, by no-welcome",
    ),
    (["--principal", "alice", "--name", "clock__now"], 1, "refused: now of clock, no rule allows it"),
    (["--principal", "bob", "--name", "clock__now"], 0, "allowed: now of clock, by access[2]"),
    (["--uri", "notes+note:///a"], 1, "refused: note:///a of notes, no rule allows it"),
    (
        ["--principal", "alice", "--method", "complete", "--uri", "notes+note:///{x}"],
        1,
        "refused: note:///{x} of notes, no rule allows it",
    ),
]


@pytest.mark.parametrize(("arguments", "code", "first"), CASES)
def test_a_decision_is_explained(
    invoke: Invoke, tmp_path: Path, arguments: list[str], code: int, first: str
) -> None:
    result = invoke("access", "test", str(write_config(tmp_path)), *arguments)
    assert (result.exit_code, result.stderr) == (code, "")
    decision, _, *rules = result.stdout.splitlines()
    assert decision == first
    assert [line.split()[0] for line in rules[:3]] == ["access[0]", "no-welcome", "access[2]"]


def test_a_uri_that_names_nobody_is_judged_for_each_upstream(invoke: Invoke, tmp_path: Path) -> None:
    config = str(write_config(tmp_path))
    result = invoke("access", "test", config, "--principal", "alice", "--uri", "note:///b%20c", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["upstream"], row["allowed"]) for row in rows] == [("notes", True), ("clock", False)]
    assert rows[0]["readings"] == ["note:///b c"]
    assert rows[1]["rules"][0]["misfits"] == ["upstreams"]
    assert result.exit_code == 0


def test_mistakes_in_what_is_asked_are_told(invoke: Invoke, tmp_path: Path) -> None:
    config = str(write_config(tmp_path))
    for arguments, message in (
        ([], "give either --uri or --name"),
        (["--uri", "a:b", "--name", "c"], "give either --uri or --name"),
        (["--name", "web__x"], "no upstream has this prefix"),
        (["--uri", "a:b", "--method", "list"], "--method: expected one of read, subscribe"),
    ):
        result = invoke("access", "test", config, *arguments)
        assert result.exit_code == 2
        assert message in result.stderr


def test_without_rules_everything_is_allowed(invoke: Invoke) -> None:
    text = f'[upstreams.clock]\ncommand = "{sys.executable}"\n'
    result = invoke("access", "test", "-", "--uri", "a:b", stdin=text.encode())
    assert (result.exit_code, result.stdout.split(":")[0]) == (0, "allowed")


@pytest.mark.process
def test_whoever_has_the_file_is_no_client_of_it(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("ls", str(write_config(tmp_path)))
    assert result.exit_code == 0, result.stderr
    assert "notes+note:///welcome" in result.stdout
