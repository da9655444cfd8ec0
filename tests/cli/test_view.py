"""`mcpmux view` with the bundled servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke
from tests.process.running import demo_table

pytestmark = pytest.mark.process

CONFIG = f"""
{demo_table("notes")}
{demo_table("clock")}
[views.time]
include = [{{ kind = "prompts" }}, {{ upstream = "clock" }}]
[views.reading]
include = [{{ kind = "resources" }}]
exclude = [{{ name = "note:///w*" }}]
principals = ["alice"]
[[access]]
effect = "allow"
principals = ["alice"]
upstreams = ["clock"]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mcpmux.toml"
    path.write_text(CONFIG)
    return str(path)


def test_what_a_client_sees_is_shown_with_its_rule_and_its_tokens(invoke: Invoke, file: str) -> None:
    result = invoke("view", file, "time")
    assert result.exit_code == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines() if line]
    assert ["Tools", "(1)"] in lines and ["Prompts", "(1)"] in lines
    (tool,) = (line for line in lines if line[0] == "clock__now")
    assert (tool[1], tool[3]) == ("clock", "views.time.include[1]")
    (prompt,) = (line for line in lines if line[1] == "notes")
    assert prompt[3] == "views.time.include[0]"
    seen = [json.loads(line) for line in invoke("view", file, "time", "--json").stdout.splitlines()]
    listed = json.loads(invoke("ls", file, "tools", "--json").stdout.splitlines()[-1])
    assert listed["name"] == "clock__now"
    (tokens,) = (item["tokens"] for item in seen if item["name"] == "clock__now")
    assert abs(tokens - len(json.dumps(listed, separators=(",", ":"))) / 4) < 20  # unprefixed there
    assert f"about {sum(item['tokens'] for item in seen):,} tokens; with everything" in result.stderr


def test_a_selector_of_annotations_is_named_too(invoke: Invoke, file: str) -> None:
    path = Path(file)
    path.write_text(CONFIG + "[views.harmless]\ninclude = [{ readOnlyHint = true }]\n")
    (line,) = invoke("view", file, "harmless", "--json").stdout.splitlines()
    seen = json.loads(line)
    assert (seen["name"], seen["rule"]) == ("clock__now", "views.harmless.include[0]")


def test_tools_that_are_searched_take_no_tokens(invoke: Invoke, file: str) -> None:
    path = Path(file)
    path.write_text(CONFIG + '[views.assistant]\ntools = "search"\n')
    seen = [json.loads(line) for line in invoke("view", file, "assistant", "--json").stdout.splitlines()]
    tools = {item["name"]: item for item in seen if item["kind"] == "tools"}
    assert list(tools)[:2] == ["find_tools", "call_tool"]
    assert {tools[name]["rule"] for name in ("find_tools", "call_tool")} == {"views.assistant.tools"}
    assert tools["find_tools"]["tokens"] > 0 and tools["call_tool"]["tokens"] > 0
    assert (tools["clock__now"]["tokens"], tools["clock__now"]["upstream"]) == (0, "clock")
    result = invoke("view", file, "assistant")
    tokens = sum(item["tokens"] for item in seen)
    assert f"{len(tools)} tools" in result.stderr and f"about {tokens:,} tokens; with" in result.stderr


def test_all_views_are_compared(invoke: Invoke, file: str) -> None:
    rows = [json.loads(line) for line in invoke("view", file, "--json").stdout.splitlines()]
    assert [row["view"] for row in rows] == ["", "time", "reading"]
    everything, time, reading = rows
    assert everything["tools"] > time["tools"] == 1
    assert (reading["tools"], reading["prompts"], reading["templates"]) == (0, 0, 0)
    assert 0 < reading["resources"] < everything["resources"]
    assert 0 < time["tokens"] < everything["tokens"]
    assert "(everything)" in invoke("view", file).stdout


def test_two_views_are_told_apart(invoke: Invoke, file: str) -> None:
    result = invoke("view", file, "time", "--diff", "reading", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(row["only"], row["kind"]) for row in rows} == {
        ("-", "tools"),
        ("-", "prompts"),
        ("+", "resources"),
    }
    assert "time: " in result.stderr and "reading: " in result.stderr


def test_a_principal_sees_what_it_may_use(invoke: Invoke, file: str) -> None:
    result = invoke("view", file, "time", "--principal", "alice", "--json")
    assert {json.loads(line)["upstream"] for line in result.stdout.splitlines()} == {"clock"}
    result = invoke("view", file, "reading", "--principal", "bob")
    assert (result.exit_code, "this view does not exist for bob" in result.stderr) == (2, True)


def test_a_query_narrows(invoke: Invoke, file: str) -> None:
    result = invoke("view", file, "time", "--query", "tools=x*&upstreams=clock", "--json")
    assert "tools" not in {json.loads(line)["kind"] for line in result.stdout.splitlines()}
    result = invoke("view", file, "time", "--query", "tool=x*")
    assert result.exit_code != 0 and "did you mean tools?" in result.stderr


def test_mistakes_are_told(invoke: Invoke, file: str) -> None:
    result = invoke("view", file, "tiem")
    assert (result.exit_code, "did you mean `time`?" in result.stderr) == (2, True)
    assert invoke("view", file, "--diff", "time").exit_code == 2


def test_the_default_file_needs_no_name(invoke: Invoke, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(file).parent
    monkeypatch.chdir(folder)
    Path(file).rename(folder / "mcpmux.toml")
    assert invoke("view", "time", "--json").stdout == invoke("view", "mcpmux.toml", "time", "--json").stdout
    assert "(everything)" in invoke("view").stdout
    result = invoke("view", "tiem", "more")
    assert (result.exit_code, result.stderr) == (2, "Error: tiem: there is no such file\n")
    names = [
        json.loads(line)["name"] for line in invoke("ls", "tools", "*__n*", "--json").stdout.splitlines()
    ]
    assert names == ["clock__now"]
    assert "no tools called x* found" in invoke("ls", "tools", "x*").stderr
