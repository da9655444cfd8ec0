from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.cli.invoking import Invoke


def test_text_of_the_answer_is_printed(invoke: Invoke, demo_url: str) -> None:
    result = invoke("call", demo_url, "library__build_index", "seconds:=0")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "5 × the"


def test_every_content_block_begins_on_a_line_of_its_own(invoke: Invoke, demo_url: str) -> None:
    result = invoke("call", demo_url, "library__find_chapters", "word=silent")
    assert result.stdout.splitlines() == [
        "1 of 3 chapters contain “silent”",
        "[link] library+book:///chapter/3 The quiet line",
    ]


def test_whole_result_with_structured_content_comes_as_json(invoke: Invoke, demo_url: str) -> None:
    result = invoke("call", demo_url, "clock__now", "--args", '{"zone": "UTC"}', "--json")
    assert json.loads(result.stdout)["structuredContent"]["zone"] == "UTC"


def test_tool_error_is_shown_and_fails(invoke: Invoke, demo_url: str) -> None:
    result = invoke("call", demo_url, "clock__now", "zone=Nowhere/Never")
    assert result.exit_code == 1
    assert "There is no time zone" in result.stdout
    assert result.stderr == "Error: the tool `clock__now` reported an error\n"


def test_unknown_tool_is_a_failure_that_says_where_to_look(invoke: Invoke, demo_url: str) -> None:
    result = invoke("call", demo_url, "nix")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: Unknown tool: nix; `mcpmux ls {demo_url} tools` shows what there is\n"
    near = invoke("call", demo_url, "clock__nwo").stderr
    assert near.endswith(f"mean `clock__now`? `mcpmux ls {demo_url} tools` shows what there is\n")


def test_an_error_at_a_url_without_a_path_suggests_one(invoke: Invoke, demo_url: str) -> None:
    assert invoke("call", demo_url.removesuffix("/mcp"), "clock__now").exit_code == 0  # mcpmux redirects
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}"
        refused = invoke("call", url, "now")
        other.shutdown()
        thread.join()
    assert (refused.exit_code, f"such as {url}/mcp" in refused.stderr) == (1, True), refused.stderr
