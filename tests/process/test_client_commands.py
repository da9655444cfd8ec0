"""`mcpmux call`, `prompt`, `complete`, `subscribe` and `ping`, at a server that asks a person."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.process.running import COMMAND, WAIT_SECONDS, Running

SERVER = """
import json, sys
asking = None
def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
FORM = {"type": "object", "required": ["nights"], "properties": {
    "nights": {"type": "integer", "minimum": 1}, "room": {"type": "string", "enum": ["small", "large"]},
    "quiet": {"type": "boolean"}}}
IMAGE = {"type": "image", "mimeType": "image/png", "data": "AA=="}
ASKED = {
    "book": ("elicitation/create", {"message": "How long?", "requestedSchema": FORM}),
    "visit": ("elicitation/create", {"mode": "url", "message": "Log in.", "url": "https://example.com/login",
        "elicitationId": "e1"}),
    "think": ("sampling/createMessage", {"maxTokens": 9, "messages": [
        {"role": "user", "content": {"type": "text", "text": "What is the answer?"}},
        {"role": "user", "content": IMAGE}]}),
}
for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        capabilities = {"resources": {"subscribe": True}, "tools": {}, "prompts": {}, "completions": {}}
        info = {"name": "inn", "version": "1"}
        say({"id": number, "result": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}})
    elif method == "tools/list":
        add = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in (*ASKED, "look")]
        say({"id": number, "result": {"tools": [*tools, {"name": "add", "inputSchema": add}]}})
    elif method == "prompts/list":
        prompt = {"name": "greet", "arguments": [{"name": "who", "required": True}]}
        say({"id": number, "result": {"prompts": [prompt]}})
    elif method == "prompts/get":
        text = "Greet " + params["arguments"]["who"]
        content = {"type": "text", "text": text}
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": IMAGE}]
        say({"id": number, "result": {"messages": messages}})
    elif method == "completion/complete":
        values = [name for name in ("alice", "albert", "bob") if name.startswith(params["argument"]["value"])]
        say({"id": number, "result": {"completion": {"values": values, "hasMore": True, "total": 7}}})
    elif method == "resources/list":
        say({"id": number, "result": {"resources": [{"uri": "memo:it", "name": "it"}]}})
    elif method == "resources/subscribe":
        say({"id": number, "result": {}})
        say({"method": "notifications/resources/updated", "params": {"uri": params["uri"]}})
    elif method == "tools/call" and params["name"] in ASKED:
        asking = number
        question, asked = ASKED[params["name"]]
        say({"id": "q", "method": question, "params": asked})
    elif method is None and number == "q":
        text = json.dumps(message.get("result", message.get("error")))
        say({"id": asking, "result": {"content": [{"type": "text", "text": text}]}})
    elif method == "tools/call" and params["name"] == "look":
        say({"id": number, "result": {"content": [], "structuredContent": {"free": 3}}})
    elif method == "tools/call":
        text = json.dumps(params["arguments"])
        say({"id": number, "result": {"content": [{"type": "text", "text": text}]}})
    elif number is not None:
        say({"id": number, "result": {}})
"""

INTERRUPT = "Ctrl-C"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("inn") / "inn.py"
    path.write_text(SERVER)
    return f"{sys.executable} {path}"


@pytest.fixture(scope="module")
def url(target: str) -> Iterator[str]:
    """Yield the URL of a mcpmux in front of the server, which speaks 2026-07-28 to its clients."""
    with Running("serve", "--upstream", target, "--http", "127.0.0.1:0") as mux:
        yield mux.line().strip()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False, stdin=subprocess.DEVNULL
    )


def converse(arguments: list[str], replies: list[tuple[str, str]]) -> tuple[int, str, str]:
    """Run a command at a terminal, and type each reply once its question is there, or press Ctrl-C.

    Return the exit code, what the terminal shows, and stdout.
    """
    master, slave = os.openpty()
    with (
        subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stderr=slave, stdout=subprocess.PIPE, start_new_session=True
        ) as process,
        ExitStack() as failed,
    ):
        failed.callback(process.kill)  # else its end would be waited for without a limit
        os.close(slave)
        shown, ends = "", time.monotonic() + WAIT_SECONDS
        for question, reply in replies:
            while question not in shown.rpartition("\0")[2]:
                readable, _, _ = select.select([master], [], [], max(0.0, ends - time.monotonic()))
                assert readable, f"{question!r} was not asked: {shown!r}"
                with suppress(OSError):  # the process has ended
                    shown += os.read(master, 4096).decode()
                    continue
                pytest.fail(f"{question!r} was not asked: {shown!r}")
            shown += "\0"  # the next question comes after this
            if reply == INTERRUPT:
                process.send_signal(signal.SIGINT)
            else:
                os.write(master, f"{reply}\n".encode())
        assert process.stdout is not None
        out = process.stdout.read().decode()
        code = process.wait(WAIT_SECONDS)
        failed.pop_all()
    os.close(master)
    return code, shown, out


BOOKED = [
    ("Answer?", "y"),
    ("nights", "many"),
    ("expected integer", "0"),
    ("less than the minimum", "2"),
    ("room", ""),
    ("quiet: true or false", ""),
    ('Send {"nights":2}?', "y"),
]


@pytest.mark.parametrize("era", ["target", "url"])
def test_a_person_fills_in_a_form_until_it_fits(era: str, request: pytest.FixtureRequest) -> None:
    code, shown, out = converse(["call", request.getfixturevalue(era), "book"], BOOKED)
    assert code == 0, shown
    assert "The server asks: How long?" in shown
    assert json.loads(out) == {"action": "accept", "content": {"nights": 2}}


def test_a_person_who_interrupts_a_question_ends_the_command(target: str) -> None:
    code, shown, out = converse(["call", target, "book"], [("Answer?", INTERRUPT)])
    assert (code, out) == (130, "")
    assert "Fatal" not in shown and "bug" not in shown


@pytest.mark.parametrize(("reply", "code"), [("y", 0), ("n", 1)])
def test_a_person_agrees_to_a_call_at_the_terminal(
    reply: str, code: int, target: str, tmp_path: Path
) -> None:
    file, (command, script) = tmp_path / "mcpmux.toml", target.split()
    file.write_text(
        f'[upstreams.inn]\ncommand = "{command}"\nargs = ["{script}"]\n[[intercept]]\nbuiltin = "approve"\n'
    )
    ended, shown, out = converse(["call", str(file), "inn__add", "a:=1"], [("Do you agree?", reply)])
    assert ended == code, shown
    assert 'Allow tools/call inn__add with {"a":1}?' in shown
    assert ('{"a": 1}' in out) == (reply == "y")


def test_a_person_declines_a_form_and_a_visit(target: str) -> None:
    code, _, out = converse(["call", target, "book"], [("Answer?", "n")])
    assert (code, json.loads(out)) == (0, {"action": "decline"})
    code, shown, out = converse(["call", target, "visit"], [("Have you?", "c")])
    assert (code, json.loads(out)) == (0, {"action": "cancel"})
    assert "https://example.com/login" in shown


def test_a_person_answers_in_place_of_a_model(url: str) -> None:
    code, shown, out = converse(["call", url, "think"], [("Answer", "42")])
    assert code == 0, shown
    assert "user: What is the answer?" in shown and "user: [image, image/png]" in shown
    assert json.loads(out)["content"] == {"type": "text", "text": "42"}


def test_without_a_terminal_a_server_cannot_ask(target: str) -> None:
    done = run("call", target, "book")
    assert "elicitation" in done.stdout + done.stderr


def test_arguments_are_read_by_the_schema_of_the_tool(target: str) -> None:
    done = run("call", target, "add", "a=2")
    assert (json.loads(done.stdout), done.returncode) == ({"a": 2}, 0)
    done = run("call", target, "add", "b=two")
    assert done.returncode == 2
    assert "argument `b`" in done.stderr
    assert "argument `a`: missing" in done.stderr
    assert json.loads(run("call", target, "add", "--args", '{"b": "two"}').stdout) == {"b": "two"}
    assert "integer" in run("call", target, "add", "--help").stdout


def test_contents_go_to_a_file(target: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("call", target, "add", "a=2", "-o", str(out))
    assert (done.stdout, done.returncode) == ("", 0)
    assert out.read_text() == '{"a": 2}\n'
    for place, words in ((tmp_path, "this is a folder"), (tmp_path / "no" / "out", "there is no folder")):
        done = run("call", "no-such-server", "add", "a=2", "-o", str(place))  # found out before it is started
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_structured_content_without_other_content_is_printed(target: str) -> None:
    done = run("call", target, "look")
    assert (json.loads(done.stdout), done.returncode) == ({"free": 3}, 0)


def test_a_prompt_is_printed_with_its_arguments_checked(target: str) -> None:
    shown = "user\nGreet Ann\nassistant\n[image, image/png]\n"
    assert run("prompt", target, "greet", "who=Ann").stdout == shown
    assert "argument `who`: missing" in run("prompt", target, "greet").stderr


def test_values_are_completed(target: str) -> None:
    done = run("complete", target, "greet", "who=al")
    assert done.stdout == "alice\nalbert\n"
    assert "there are more, 7 in all" in done.stderr


@pytest.mark.parametrize("era", ["target", "url"])
def test_changes_are_printed_as_they_come(era: str, request: pytest.FixtureRequest) -> None:
    uri = "memo:it"
    done = run("subscribe", request.getfixturevalue(era), uri, "--once", "--json")
    assert json.loads(done.stdout)["params"]["uri"] == uri, done.stderr


def test_a_server_shows_a_sign_of_life(target: str) -> None:
    done = run("ping", target, "-c", "2", "--interval", "0", "--json")
    assert [json.loads(line).keys() for line in done.stdout.splitlines()] == [{"name", "ms"}] * 2
