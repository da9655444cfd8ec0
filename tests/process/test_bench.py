"""`mcpmux bench` as a command: mistakes, exit codes, files, and ends before the time."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.invoking import Invoke
from tests.process.running import Running, demo_command, demo_entry
from tests.traffic.made import Play, write

URL = "http://127.0.0.1:1/mcp"
QUICK = ["--duration", "200ms", "--warm-up", "0", "--clients", "2"]

SERVER = """
import json, os, signal, sys

reads = 0
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"resources": {}},
                  "serverInfo": {"name": "x", "version": "1"}}
    elif method == "resources/list":
        result = {"resources": [{"uri": "memo:1", "name": "1"}]}
    elif method == "resources/read":
        result = {"contents": [{"uri": "memo:1", "text": "x"}]}
        reads += 1
        if reads == 100:
            END
    else:
        answer = {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def server_that(directory: Path, end: str) -> str:
    """Return the command line of a server that does something at its hundredth read."""
    program = directory / "server.py"
    program.write_text(SERVER.replace("END", end))
    return shlex.join([sys.executable, str(program)])


MISTAKES = {
    "no target": ([], "no target given"),
    "another machine": (["http://example.com/mcp"], "example.com/mcp is not on this machine"),
    "a name": (["ws://elsewhere:1"], "--allow-remote says that you may"),
    "token for two hosts": (
        [URL, "http://127.0.0.1:2", "--token", "x"],
        "--token and --header are for one host, and these are 2: http://127.0.0.1:1, http://127.0.0.1:2",
    ),
    "operation": ([URL, "--do", "fetch x"], "unknown operation `fetch x`; expected one of: read [GLOB]"),
    "mistyped operation": ([URL, "--do", "3 tol echo {}"], "did you mean `tool echo {}`?"),
    "mistyped list": ([URL, "--do", "list prompt"], "did you mean `list prompts`?"),
    "condition on nothing": ([URL, "--assert", "reed.p99<5ms"], "no operation 'reed' in this run"),
    "mistyped condition": (
        [URL, "--do", "tool echo", "--assert", "tool ecco.p99<5ms"],
        "there are connect, delivery, service, tool echo; did you mean 'tool echo'?",
    ),
    "nothing captured": ([URL, "--capture", "nowhere.jsonl"], "nowhere.jsonl: there is no such file"),
    "tools of no capture": ([URL, "--with-tools"], "--with-tools is about a capture"),
    "upstream of no capture": ([URL, "--capture-upstream", "x"], "--capture-upstream is about a capture"),
    "runs of a search": ([URL, "--runs", "5", "--find-max", "p99<5ms"], "leave the runs out"),
    "arguments": ([URL, "--do", "tool t {"], "the arguments are no JSON"),
    "rate": ([URL, "--rate", "fast"], "expected a rate a second such as 200"),
    "two models": ([URL, "--rate", "5", "--clients", "5"], "exclude each other"),
    "two durations": ([URL, "--rate", "5/1s", "--duration", "5s"], "leave the duration out"),
    "think": ([URL, "--rate", "5", "--think", "5s"], "think time belongs to clients"),
    "no time to think": ([URL, "--think", "soon"], "expected 0 or more seconds"),
    "duration": ([URL, "--duration", "soon"], "expected seconds above 0"),
    "no duration": ([URL, "--duration", "0"], "expected seconds above 0"),
    "no time for answers": ([URL, "--timeout", "0s"], "expected seconds above 0"),
    "results nowhere": ([URL, "--json", "nowhere/a.json"], "nowhere/a.json: there is no folder nowhere"),
    "condition": ([URL, "--assert", "p99=5ms"], "is no comparison here"),
    "impossible": ([URL, "--assert", "errors<0%"], "can never hold"),
    "contradiction": ([URL, "--assert", "p99<5ms", "--assert", "p99>6ms"], "cannot both hold"),
    "search": ([URL, "--find-max", "read.p99<5ms"], "all requests together"),
    "search from a ramp": ([URL, "--find-max", "p99<5ms", "--rate", "1..9"], "begins with one rate"),
    "push": ([URL, "--push", "tool t", "--resources", "2"], "put {{uri}} in its arguments"),
    "sessions": ([URL, "--sessions", "9"], "9 sessions need as many requests in flight or clients"),
    "connections": (["ws://127.0.0.1:1", "--connections", "5"], "over websocket a session is a connection"),
    "only": ([URL, "--only", "docs"], "there is no such upstream"),
    "nothing to abort for": ([URL, "--abort-on-fail"], "--abort-on-fail: needs an --assert"),
    "compare": ([URL, "--compare", "nowhere.json"], "--compare nowhere.json: No such file"),
    "scenario": ([URL, "--scenario", "nowhere.toml"], "nowhere.toml: cannot read the file"),
}


@pytest.mark.parametrize(("args", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_told_before_anything_is_asked(invoke: Invoke, args: list[str], words: str) -> None:
    result = invoke("bench", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_every_mistake_in_a_scenario_is_listed(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text(
        'durration = "5s"\nclients = 0\ncount = 2.5\nassert = ["p99=5ms"]\n'
        'flows = [{steps = ["fetch", "list", "raed x"]}, {wait = 1}, 5]\n'
    )
    result = invoke("bench", URL, "--scenario", str(file))
    assert result.exit_code == 2
    for words in (
        "durration: unknown key; did you mean `duration`?",
        "clients: expected a whole number from 1 to 10000",
        "count: expected a whole number from 1 to 1000000000000000",
        "assert[0]: '=' is no comparison here: write <= or >=\n",
        "flows[0].steps[0]: unknown operation `fetch`; expected one of",
        "flows[0].steps[2]: unknown operation `raed x`; did you mean `read x`?",
        "flows[1].wait: unknown key",
        "flows[1].steps: expected a value, the key is missing",
        "flows[2]: expected a table, got a number",
    ):
        assert words in result.stderr


def test_nobody_there_is_told_and_the_others_are_measured(invoke: Invoke) -> None:
    result = invoke("bench", URL, "--upstream", f"notes={demo_command('notes')}", *QUICK)
    assert result.exit_code == 1
    assert "cannot be measured: cannot connect to 127.0.0.1:1: connection refused" in result.stderr
    assert "notes" in result.stdout


def test_conditions_set_the_exit_code(invoke: Invoke, tmp_path: Path) -> None:
    target = demo_command("notes")
    assert invoke("bench", target, *QUICK, "--assert", "p99<10s", "--assert", "errors<1%").exit_code == 0
    result = invoke("bench", target, *QUICK, "--assert", "rate>10000000/s")
    assert result.exit_code == 1
    assert "does not hold" in result.stdout


def test_a_condition_that_does_not_hold_can_end_the_run(invoke: Invoke, demo_url: str) -> None:
    options = ["--do", "tool notes__nothing", "--duration", "1h", "--assert", "errors<1%", "--abort-on-fail"]
    result = invoke("bench", demo_url, *options)
    assert result.exit_code == 1
    assert "ended before its time: errors<1% does not hold: it is 100" in result.stdout + result.stderr


def test_upstreams_of_a_configuration_are_measured_each_for_itself(invoke: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "mcpmux.json"
    command = demo_entry("notes")
    config.write_text(json.dumps({"upstreams": {"a": command, "b": command, "c": command}}))
    file = tmp_path / "results.json"
    args = ["--only", "a", "--only", "c", "--json", str(file)]
    result = invoke("bench", str(config), *QUICK, *args)
    assert result.exit_code == 0, result.stderr
    assert [result["about"]["name"] for result in json.loads(file.read_text())["results"]] == ["a", "c"]


def test_scenario_makes_the_flows_and_the_command_line_has_the_last_word(
    invoke: Invoke, tmp_path: Path
) -> None:
    scenario = tmp_path / "load.toml"
    scenario.write_text(
        'clients = 1\nruns = 1\nduration = "1h"\ncount = 6\nwarm_up = 0\nassert = ["requests>=6"]\n'
        '[[flows]]\nsteps = ["list tools", "read note:///welcome"]\npause = "1ms"\n'
    )
    file = tmp_path / "results.json"
    args = ["--scenario", str(scenario), "--count", "3", "--json", str(file)]
    result = invoke("bench", demo_command("notes"), *args)
    assert result.exit_code == 0, result.stderr
    (results,) = json.loads(file.read_text())["results"]
    counts = {name: part["count"] for name, part in results["operations"].items()}
    assert counts == {"list tools": 3, "read note:///welcome": 3}


def test_results_are_written_and_compared(invoke: Invoke, tmp_path: Path) -> None:
    names = [tmp_path / f"results.{kind}" for kind in ("json", "csv", "html")]
    files = [word for name in names for word in (f"--{name.suffix[1:]}", str(name))]
    assert invoke("bench", demo_command("notes"), *QUICK, *files).exit_code == 0
    assert all(name.stat().st_size > 1000 for name in names)
    result = invoke("bench", demo_command("notes"), *QUICK, "--compare", str(names[0]))
    assert (result.exit_code, result.stderr) == (0, "")  # no live view without a terminal
    assert "compared" in result.stdout


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_a_server_on_a_plain_socket_is_measured(
    invoke: Invoke, tmp_path: Path, kind: str, revision: str
) -> None:
    address = "tcp://127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/mux.sock"
    file = tmp_path / "results.json"
    with Running("serve", "--upstream", f"notes={demo_command('notes')}", "--listen", address) as mux:
        url = mux.line().strip()
        mux.line("stderr", containing="1 of 1 upstreams are ready")  # on a busy machine it starts slowly
        options = ["--sessions", "2", "--revision", revision, "--check", "hash", "--json", str(file)]
        result = invoke("bench", url, *QUICK, *options, "--do", "read", "--do", "list tools")
        assert result.exit_code == 0, result.stderr + result.stdout
        assert mux.stop() == 0, mux.stderr
    (results,) = json.loads(file.read_text())["results"]
    assert (results["about"]["transport"], results["about"]["revision"]) == (kind, revision)
    assert results["connections"]["count"] == 2
    assert {name: part["errors"] for name, part in results["operations"].items()} == {
        "read": {},
        "list tools": {},
    }


def test_an_operation_that_always_fails_is_a_failure_with_the_servers_words(invoke: Invoke) -> None:
    result = invoke(
        "bench", demo_command("notes"), *QUICK, "--do", "read note*", "--do", "tool ecco", "--seed", "7"
    )
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    (errors,) = (line for line in lines if line.startswith("tool ecco") and "rpc" in line)
    assert "ecco" in errors.removeprefix("tool ecco")
    (failure,) = (line for line in lines if line.startswith("✗"))
    assert re.search(r"requests? of `tool ecco` failed: rpc -32602, such as .*ecco", failure)


def test_results_on_standard_output_are_nothing_else(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("bench", demo_command("notes"), *QUICK, "--json", "-")
    assert json.loads(result.stdout)["results"]
    assert "Throughput" in result.stderr
    result = invoke("bench", demo_command("notes"), *QUICK, "--json", "-", "--csv", "-")
    assert (result.exit_code, "two formats" in result.stderr) == (2, True)


def captured(directory: Path) -> Path:
    """Write a capture of six reads of two notes, a tool call, and a read in which a part is redacted."""
    play = Play()
    for name in ("welcome", "shopping", "welcome"):
        play.read(f"note:///{name}", upstream="notes")
    play.read("note:///secret", upstream="notes")
    play.records = [
        msgspec.structs.replace(record, redacted=1) if "secret" in (record.target or "") else record
        for record in play.records
    ]
    play.call()
    return write(directory / "capture.jsonl", play.records)


def test_a_capture_is_replayed_as_load_with_a_count_of_skipped_requests(
    invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    args = ["--capture", str(captured(tmp_path)), "--capture-upstream", "notes", "--json", str(file)]
    result = invoke("bench", demo_command("notes"), *QUICK, *args, "--assert", "read.p99<10s")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith(
        "capture: 3 requests, 2 of them different; left out: 1: the request is redacted"
    )
    (results,) = json.loads(file.read_text())["results"]
    assert set(results["operations"]) == {"read"}


def test_a_capture_with_nothing_to_ask_is_a_mistake(invoke: Invoke, tmp_path: Path) -> None:
    play = Play()
    play.call()
    file = write(tmp_path / "tools.jsonl", play.records)
    result = invoke("bench", demo_command("notes"), "--capture", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing in this capture makes load (1: it calls a tool; --with-tools sends it)" in result.stderr


def test_runs_are_taken_in_turns_and_the_targets_compared(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    targets = [f"--upstream={name}={demo_command('notes')}" for name in ("a", "b")]
    quick = ["--duration", "50ms", "--warm-up", "0", "--clients", "1", "--runs", "5"]
    result = invoke("bench", *targets, *quick, "--json", str(file), "--assert", "errors<1%")
    assert result.exit_code == 0, result.stderr
    results = json.loads(file.read_text())["results"]
    assert [result["about"]["name"] for result in results] == ["a", "b"] * 5
    for words in (
        "Runs of a\n",
        "Runs of b\n",
        "b against a: compared 5 runs of each, in turns, pair by pair",
    ):
        assert words in result.stdout
    again = invoke("bench", *targets, *quick, "--compare", str(file))
    assert "a: compared 5 old and 5 new runs, all with all" in again.stdout
    assert "fewer than" not in again.stdout


def test_a_server_that_dies_again_and_again_leaves_what_was_measured(tmp_path: Path) -> None:
    """It is started again five times in a row, and each time it answers 99 reads."""
    file = tmp_path / "results.json"
    target = server_that(tmp_path, 'sys.exit("out of memory")')
    args = ["--duration", "1h", "--warm-up", "0", "--clients", "1", "--json", str(file)]
    with Running("bench", target, *args) as bench:
        assert bench.wait() == 1
    (results,) = json.loads(file.read_text())["results"]
    assert "the server is gone" in results["stopped"]
    assert "out of memory" in results["stopped"]
    (read,) = results["operations"].values()
    assert read["count"] - sum(read["errors"].values()) == 6 * 99
    assert (results["connections"]["count"], results["connections"]["lost"]) == (6, 6)


def test_interrupting_shows_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    target = server_that(tmp_path, "os.kill(os.getppid(), signal.SIGINT)")
    args = ["--duration", "1h", "--warm-up", "0", "--clients", "1", "--json", str(file)]
    with Running("bench", target, *args) as bench:
        assert bench.wait() == 130
        assert "interrupted" in bench.stdout
    (results,) = json.loads(file.read_text())["results"]
    assert results["stopped"] == "interrupted"
    (read,) = results["operations"].values()
    assert read["count"] >= 99
    assert read["errors"] == {}
