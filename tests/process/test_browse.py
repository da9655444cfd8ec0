from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke
from tests.process.running import demo_command, demo_entry

COUNTS = {"resources": 36, "templates": 1, "tools": 4, "prompts": 1}


def test_all_kinds_are_listed_under_headings(invoke: Invoke, demo_url: str) -> None:
    result = invoke("ls", demo_url)
    assert (result.exit_code, result.stderr) == (0, "")
    headings = [line for line in result.stdout.splitlines() if line.endswith(")") and line[0].isupper()]
    assert headings == ["Resources (36)", "Resource templates (1)", "Tools (4)", "Prompts (1)"]
    assert "\x1b" not in result.stdout


def test_one_kind_is_a_bare_table_of_one_line_an_item(invoke: Invoke, demo_url: str) -> None:
    lines = invoke("ls", demo_url, "resources").stdout.splitlines()
    assert len(lines) == 1 + COUNTS["resources"]
    assert lines[0].split() == ["URI", "TITLE", "TYPE", "DESCRIPTION"]
    assert lines[1].split()[:3] == ["notes+note:///welcome", "Welcome", "text/markdown"]
    starts = {line.index("text/") for line in lines if "text/" in line}
    assert starts == {lines[0].index("TYPE")}


def test_arguments_of_tools_and_prompts_are_shown(invoke: Invoke, demo_url: str) -> None:
    shown = invoke("ls", demo_url, "tools", "prompts").stdout
    assert "notes__add_note         name text " in shown
    assert "clock__now              [zone] " in shown
    assert "notes__explain  name " in shown


@pytest.mark.parametrize(("kind", "count"), COUNTS.items())
def test_json_lines_are_the_items_of_all_pages(invoke: Invoke, demo_url: str, kind: str, count: int) -> None:
    result = invoke("ls", demo_url, kind, "--json")
    items = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(items) == count
    assert all("name" in item and item["kind"] == kind for item in items)


def test_kind_that_is_not_offered_is_said_to_be_missing(invoke: Invoke) -> None:
    result = invoke("ls", demo_command("clock"), "prompts", "templates")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no prompts or templates found\n"


def test_upstream_that_is_missing_is_named_on_stderr(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {"clock": demo_entry("clock"), "gone": {"command": "no-such-program"}}
    file.write_text(json.dumps({"mcpServers": servers}))
    result = invoke("ls", str(file), "tools")
    assert result.exit_code == 0
    assert "clock__now" in result.stdout
    assert result.stderr.startswith("left out: gone: ")
    assert len(result.stderr.splitlines()) == 1


def test_list_that_never_ends_is_the_servers_fault(invoke: Invoke, tmp_path: Path) -> None:
    program = tmp_path / "endless.py"
    endless = """
from mcpmux.demo import clock, server

class Endless(server.DemoServer):
    def _page(self, method, params):
        return {"tools": about["tools"], "nextCursor": "again"}

about = server.describe("clock")
server.run_server(Endless("endless", about, clock.read, {"now": clock.tell_time}))
"""
    program.write_text(endless)
    result = invoke("ls", shlex.join([sys.executable, str(program)]), "tools")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tools/list never ends" in result.stderr


def test_text_is_read_as_it_is(invoke: Invoke, demo_url: str) -> None:
    result = invoke("read", demo_url, "library+book:///chapter/2")
    assert result.stdout_bytes.startswith(b"The interpreter\n\nHalf of the callers")
    assert result.stdout_bytes.endswith(b"nobody noticed.\n")
    assert result.stderr == ""


def test_blob_goes_as_bytes_into_a_pipe_or_a_file(invoke: Invoke, demo_url: str, tmp_path: Path) -> None:
    piped = invoke("read", demo_url, "library+book:///cover").stdout_bytes
    file = tmp_path / "cover.png"
    assert invoke("read", demo_url, "library+book:///cover", "-o", str(file)).stdout == ""
    assert piped == file.read_bytes()
    assert piped.startswith(b"\x89PNG")


def test_several_contents_follow_each_other_in_a_pipe(invoke: Invoke, demo_url: str) -> None:
    data = invoke("read", demo_url, "library+book:///all").stdout_bytes
    assert data.index(b"The switchboard") < data.index(b"The quiet line") < data.index(b"\x89PNG")


def test_whole_result_comes_as_json(invoke: Invoke, demo_url: str) -> None:
    result = json.loads(invoke("read", demo_url, "library+book:///all", "--json").stdout)
    assert [content["uri"] for content in result["contents"]][-1] == "library+book:///cover"


def test_missing_resource_is_a_failure_that_says_where_to_look(invoke: Invoke, demo_url: str) -> None:
    result = invoke("read", demo_url, "notes+note:///none")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: Resource not found: ")
    assert f"`mcpmux ls {demo_url} resources templates` shows what there is" in result.stderr


def test_file_that_cannot_be_written_is_a_failure(invoke: Invoke, demo_url: str) -> None:
    result = invoke("read", demo_url, "library+book:///cover", "-o", "/dev/full")
    assert result.exit_code == 1
    assert "cannot write: no space left on device" in result.stderr
