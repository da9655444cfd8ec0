"""`mcpmux traffic show|grep|stats|export` on files, in this process."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoking import Invoke
from tests.traffic.made import FILE, Play, write

SECRET = "Bearer sk-abcdefghijklmnop0123456789"
STEERING = "evil\x1b[2J\n2026-11-21 forged \u202e"


@pytest.fixture
def play() -> Play:
    play = Play()
    play.read("file:///a.md", seconds=0.3, text="a needle in it")
    play.read("file:///b.md", upstream="git", error=-32602)
    play.call(failed=True)
    play.read("file:///c.md", answered=False)
    return play


@pytest.fixture
def folder(tmp_path: Path, play: Play) -> str:
    write(tmp_path, play.records)
    return str(tmp_path)


def test_grep_finds_messages_and_shows_what_it_found(invoke: Invoke, folder: str):
    result = invoke("traffic", "grep", "ne+dle", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    upstream, client = result.stdout.splitlines()
    expected = [
        "2026-11-21T12:00:00.300",
        "#1",
        "←",
        "docs",
        "resources/read",
        "file:///a.md",
        "ok",
        "300",
        "ms",
        "106",
        "B",
        "|",
    ]
    assert upstream.split()[: len(expected)] == expected
    assert "c1 ←" in client
    assert "docs+file:///a.md" in client
    assert '"text": "a needle in it"' in client


def test_grep_takes_a_filter_in_one_word_or_several(invoke: Invoke, folder: str):
    for words in (["status!=ok leg=client"], ["status!=ok", "leg=client"]):
        result = invoke("traffic", "grep", "", folder, *words)
        assert [line.split("  ")[-2] for line in result.stdout.splitlines()] == ["10.0 ms", "20.0 ms"]
        assert "error -32602" in result.stdout
        assert "tool_error" in result.stdout


def test_grep_of_exchanges_is_one_line_each(invoke: Invoke, folder: str):
    args = ["traffic", "grep", "", folder, "--by", "exchange"]
    lines = invoke(*args).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["#1", "#2", "#3", "#4"]
    assert "claude-ai  resources/read git+file:///b.md  → git  error -32602 invalid_params  " in lines[1]
    assert "open" in lines[3]
    assert invoke(*args, "uri=file:///b.md").stdout.splitlines() == [lines[1]]
    args[2] = "needle"
    assert invoke(*args).stdout.splitlines() == [lines[0]]


def test_grep_ends_like_grep(invoke: Invoke, folder: str):
    assert invoke("traffic", "grep", "NEEDLE", folder).exit_code == 1
    assert invoke("traffic", "grep", "-i", "-c", "NEEDLE", folder).stdout == "2\n"
    assert invoke("traffic", "grep", "-F", "a.md", folder, "-c").stdout == "4\n"
    result = invoke("traffic", "grep", "-c", "nothing", folder)
    assert (result.exit_code, result.stdout) == (1, "0\n")


def test_json_is_the_capture_again(invoke: Invoke, folder: str, play: Play):
    result = invoke("traffic", "grep", "", folder, "--json", "exchange=1")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["seq"] for record in records] == [1, 2, 3, 4]
    assert records[0]["message"] == json.loads(bytes(play.records[0].message or b""))


def test_a_stranger_cannot_steer_the_terminal(invoke: Invoke, tmp_path: Path):
    play = Play()
    play.read(STEERING, client=STEERING, upstream=STEERING, text=STEERING)
    play.say(STEERING)
    file = str(write(tmp_path / "x.jsonl", play.records))
    for args in (
        ["grep", "evil", file],
        ["grep", "evil", file, "--by", "exchange"],
        ["show", "1", file],
        ["show", "--message", "1", file],
        ["stats", file],
        ["tail", file, "--once"],
    ):
        result = invoke("traffic", *args)
        assert result.exit_code == 0, result.stderr
        assert "evil" in result.stdout
        assert not set(result.stdout) & {"\x1b", "\u202e"}
        assert not any(line.startswith("2026-11-21 forged") for line in result.stdout.splitlines())


def test_show_tells_when_messages_passed_and_what_was_changed(invoke: Invoke, folder: str):
    result = invoke("traffic", "show", "1", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert "claude-ai  resources/read docs+file:///a.md  → docs  ok  300 ms" in lines[0]
    assert lines[1] == "run 5f3a9c01, 4 messages"
    assert [line.split()[0] for line in lines[3:7]] == ["+0", "+0", "+300", "+300"]
    assert lines[8] == "c1 → docs: resources/read request, messages 1 and 2"
    assert '  -    "uri": "docs+file:///a.md"' in lines
    assert '  +    "uri": "file:///a.md"' in lines
    assert "docs → c1: resources/read answered, messages 3 and 4" in lines
    assert not any("needle" in line and line.startswith(("  -", "  +")) for line in lines)


def test_show_of_a_message_is_its_body(invoke: Invoke, folder: str, play: Play):
    lines = invoke("traffic", "show", "--message", "4", folder).stdout.splitlines()
    assert json.loads("\n".join(lines[3:])) == json.loads(bytes(play.records[3].message or b""))
    assert invoke("traffic", "show", "--message", "99", folder).exit_code == 1


def test_show_takes_the_newest_run_and_tells_of_others(invoke: Invoke, tmp_path: Path):
    old, new = Play("aaaa"), Play("bbbb")
    old.read("file:///old.md")
    new.read("file:///new.md")
    file = str(write(tmp_path / "x.jsonl", [*old.records, *new.records]))
    result = invoke("traffic", "show", "#1", file)
    assert "new.md" in result.stdout
    assert "old.md" not in result.stdout
    assert "--run aaaa" in result.stderr
    assert "old.md" in invoke("traffic", "show", "1", file, "--run", "aaaa").stdout


def test_show_says_what_is_merged_or_was_not_kept(invoke: Invoke, tmp_path: Path):
    play = Play()
    here: dict[str, Any] = {"exchange": 1, "method": "resources/list"}
    play.put(id=1, **here)
    for name in ("docs", "git"):
        play.put(
            {"id": 5, "method": "resources/list"}, leg="upstream", peer=name, direction="out", id=5, **here
        )
    for name in ("docs", "git"):
        play.put({"id": 5, "result": {}}, leg="upstream", peer=name, kind="result", id=5, **here)
    play.put({"id": 1, "result": {}}, kind="result", direction="out", id=1, **here)
    stdout = invoke("traffic", "show", "1", str(write(tmp_path / "x.jsonl", play.records))).stdout
    assert "message 6 merges 4, 5 of docs, git" in stdout
    assert "(the body was not captured)" in stdout


def test_long_bodies_are_cut_unless_all_is_wanted(invoke: Invoke, tmp_path: Path):
    play = Play()
    body: dict[str, Any] = {"id": 1, "method": "tools/call", "params": {"many": list(range(5000))}}
    play.put(body, id=1, method="tools/call", exchange=1)
    changed = {**body, "params": {"many": [*range(4999), 17]}}
    play.put(changed, id=2, method="tools/call", exchange=1, leg="upstream", direction="out")
    file = str(write(tmp_path / "x.jsonl", play.records))
    stdout = invoke("traffic", "show", "1", file).stdout
    assert stdout.endswith("  the same in the first 400 lines; --full compares all\n")
    assert "  +      17" in invoke("traffic", "show", "1", file, "--full").stdout.splitlines()
    changed["params"]["many"][0] = 23
    play.put(changed, id=2, method="tools/call", exchange=1, leg="upstream", direction="out")
    stdout = invoke("traffic", "show", "1", str(write(tmp_path / "x.jsonl", play.records))).stdout
    assert "  +      23," in stdout.splitlines()
    assert len(stdout.splitlines()) < 100
    assert len(invoke("traffic", "show", "--message", "1", file).stdout.splitlines()) > 5000


def test_stats_have_a_row_for_each_leg_and_method(invoke: Invoke, folder: str):
    result = invoke("traffic", "stats", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("12 messages, ")
    assert lines[2].split()[:4] == ["UPSTREAM", "METHOD", "ANSWERS", "ERRORS"]
    assert lines[3].split()[:10] == [
        "(clients)",
        "resources/read",
        "2",
        "1",
        "50.0%",
        "1",
        "10.0",
        "ms",
        "300",
        "ms",
    ]
    assert lines[4].split()[:5] == ["(clients)", "tools/call", "1", "1", "100.0%"]
    assert [line.split()[0] for line in lines[5:7]] == ["docs", "git"]
    assert "Latency as clients saw it" in lines
    assert any("█" in line for line in lines)


def test_stats_by_name_have_rows_of_names_with_their_slowest_exchanges(invoke: Invoke, folder: str):
    lines = invoke("traffic", "stats", "--by", "name", folder).stdout.splitlines()
    assert lines[2].split()[:3] == ["UPSTREAM", "NAME", "ANSWERS"]
    slowest = lines[3].split()
    assert slowest[:2] == ["(clients)", "docs+file:///a.md"]
    (number,) = (word for word in slowest if word.startswith("#"))
    assert "docs+file:///a.md" in invoke("traffic", "show", number, folder).stdout


def test_stats_of_several_runs_name_that_of_the_slowest_exchange(invoke: Invoke, play: Play, tmp_path: Path):
    later = Play("bbbbbbbb")
    for _ in play.records:
        later.read(seconds=0.001)
    write(tmp_path, [*play.records, *later.records])
    lines = invoke("traffic", "stats", str(tmp_path), "method=resources/read").stdout.splitlines()
    words = lines[3].split()
    number, *run = words[(at := words.index("--run")) - 1 : at + 2]
    assert run == ["--run", play.run]
    assert play.run in invoke("traffic", "show", number, *run, str(tmp_path)).stdout


def test_stats_of_one_upstream_are_its_own(invoke: Invoke, folder: str):
    stdout = invoke("traffic", "stats", folder, "upstream=git").stdout
    assert "(clients)" not in stdout
    stats = json.loads(invoke("traffic", "stats", folder, "upstream=git", "--json").stdout)
    (group,) = stats["groups"]
    assert (group["upstream"], group["errors"], group["errorRate"]) == ("git", 1, 1.0)
    assert group["latencyMs"]["max"] == 10


def test_stats_of_nothing(invoke: Invoke, folder: str):
    assert invoke("traffic", "stats", folder, "upstream=none").stdout == "no messages\n"


def test_export_writes_what_is_wanted(invoke: Invoke, folder: str, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    har, csv, jsonl = (str(out / name) for name in ("x.har", "x.csv", "x.jsonl"))
    result = invoke("traffic", "export", folder, "exchange=1", "--har", har, "--csv", csv, "--jsonl", jsonl)
    assert (result.exit_code, result.stdout) == (0, "")
    assert len(json.loads(Path(har).read_text())["log"]["entries"]) == 2
    assert len(Path(csv).read_text().splitlines()) == 5
    assert invoke("traffic", "grep", "", jsonl, "-c").stdout == "4\n"
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    assert len(list(out.iterdir())) == 3


def test_export_of_everything_is_the_capture_itself(invoke: Invoke, folder: str):
    result = invoke("traffic", "export", folder, "--jsonl", "-")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    kept = [json.loads(line) for line in (Path(folder) / FILE).read_text().splitlines()]
    targets = [record.pop("target", None) for record in records]
    for record in kept:
        record.pop("target", None)
    assert records == kept
    assert targets[4] == "docs+file:///a.md"


@pytest.mark.parametrize("form", ["--har", "--csv", "--jsonl"])
def test_export_redacts_again(invoke: Invoke, tmp_path: Path, form: str):
    play = Play()
    uri = "https://user:hunter2secret@host/x?token=tok-123456789"
    play.read(uri, text=SECRET)
    play.put(
        {"id": 7, "method": "tools/call", "params": {"name": "my-ssn-078051120"}}, target="my-ssn-078051120"
    )
    play.put(kind="invalid", text=f"Authorization: {SECRET}")
    play.put({"id": 7, "result": {}}, kind="result", direction="out", method="tools/call")
    config = tmp_path / "mux.toml"
    config.write_text('[upstreams.a]\ncommand = "x"\n\n[redaction]\npaths = ["params.name"]\n')
    file = str(write(tmp_path / "x.jsonl", play.records))
    plain = invoke("traffic", "export", file, form, "-").stdout
    assert "hunter2secret" not in plain
    assert "tok-123456789" not in plain
    assert SECRET not in plain
    assert "078051120" in plain
    with_rules = invoke("traffic", "export", file, form, "-", "--redact", str(config))
    assert with_rules.exit_code == 0, with_rules.stderr
    assert "078051120" not in with_rules.stdout


def test_compressed_and_cut_files_are_read_and_told(invoke: Invoke, tmp_path: Path, play: Play):
    whole = write(tmp_path / "x.jsonl", play.records).read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[:-20])
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(whole))
    result = invoke("traffic", "grep", "", str(cut), str(packed), "-c")
    assert result.stdout == f"{2 * len(play.records) - 1}\n"
    assert result.stderr == f"not read: {cut}:13: the file was cut in the middle of this line\n"


def test_many_bad_lines_are_counted(invoke: Invoke, tmp_path: Path):
    file = tmp_path / "x.jsonl"
    file.write_text("garbage\n" * 50)
    result = invoke("traffic", "stats", str(file))
    assert (result.exit_code, result.stdout) == (1, "no messages\n")
    *complaints, more, failure = result.stderr.splitlines()
    assert (len(complaints), more) == (5, "not read: 45 more lines")
    assert failure == f"Error: nothing could be read of {file}"


def test_a_mistake_in_a_filter_is_marked(invoke: Invoke, folder: str):
    result = invoke("traffic", "stats", folder, "method=x", "upstrem=docs")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: no such key; did you mean `upstream`?\n  method=x upstrem=docs\n           ^^^^^^^\n"
    )
    result = invoke("traffic", "stats", folder, "\x1bx=1")
    assert result.stderr.splitlines()[1:] == ["  \\x1bx=1", "  ^^^^^"]


MISTAKES = {
    "no such file": (["stats", "nowhere.jsonl"], "nowhere.jsonl: there is no such file or folder; name a"),
    "no such folder": (["grep", "x", "captures/"], "captures: there is no such file or folder"),
    "no default": (["stats"], "mcpmux-capture: there is no such file or folder"),
    "typing error": (["stats", "faild"], "did you mean `failed`?"),
    "a folder that is not there": (["stats", "nodir"], "there is no file or folder nodir either"),
    "pattern": (["grep", "a(b", "."], "a(b\n   ^"),
    "number": (["show", "x"], "expected the number of an exchange"),
    "nothing to show": (["show"], "name an exchange by its number"),
    "filter for show": (["show", "1", ".", "status=ok"], "show takes files and folders only"),
    "no format": (["export", "."], "choose at least one of --har"),
    "url": (["tail", "--url", "localhost"], "expected the URL of an admin listener"),
    "json": (["tail", ".", "--json", "--by", "exchange"], "--json shows messages"),
    "live and once": (["tail", "--url", "http://127.0.0.1:1", "--once"], "--once goes with files"),
    "empty folder": (["stats", "."], "there are no capture files in this folder"),
}


@pytest.mark.parametrize(("args", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
):
    monkeypatch.chdir(tmp_path)
    result = invoke("traffic", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("part.jsonl", "name files of other names one by one, such as "),
        ("audit-000001.jsonl", "but an audit log"),
    ],
)
@pytest.mark.parametrize(
    "command", [["stats"], ["replay", "--to", "cat x"], ["mock"]], ids=lambda words: words[0]
)
def test_a_folder_with_other_files_is_told_as_that(
    invoke: Invoke, tmp_path: Path, command: list[str], name: str, words: str
):
    (tmp_path / name).touch()
    result = invoke("traffic", *command, str(tmp_path))
    assert result.exit_code == 2
    assert "there are no capture files in this folder" in result.stderr
    assert words in result.stderr


def test_an_export_of_nothing_says_so(invoke: Invoke, folder: str, tmp_path: Path):
    result = invoke("traffic", "export", folder, "client=nobody", "--har", str(tmp_path / "x.har"))
    assert result.exit_code == 0
    assert "x.har: 0 messages, " in result.stderr
    assert "no message fits the filter: none has `client=nobody`; known: claude-ai" in result.stderr


def test_what_is_read_is_not_written_over(invoke: Invoke, folder: str):
    file = str(Path(folder) / FILE)
    content = Path(file).read_bytes()
    result = invoke("traffic", "export", folder, "--jsonl", file)
    assert result.exit_code == 2
    assert Path(file).read_bytes() == content
    result = invoke("traffic", "export", folder, "--csv", str(Path(folder) / "no" / "x.csv"))
    assert (result.exit_code, "cannot write: no such file" in result.stderr) == (1, True)
