"""`mcpmux traffic tail`: files in this process, growing files in real ones, and an admin listener."""

from __future__ import annotations

import gzip
import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mcpmux.cli.admin.client import AdminClient, NotDone
from mcpmux.cli.process import Mistake
from mcpmux.cli.traffic.messages import Lines
from mcpmux.cli.traffic.source import read_filter
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.traffic.capture import files
from mcpmux.traffic.record import Record, encode_record
from tests.cli.invoking import Invoke
from tests.process.running import COMMAND, WAIT_SECONDS, Running
from tests.traffic.admin_world import listening
from tests.traffic.made import FILE, Play, write


def append(path: Path, records: list[Record]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(map(encode_record, records)))


def test_the_last_lines_are_shown(invoke: Invoke, tmp_path: Path):
    play = Play()
    for number in range(5):
        play.read(f"file:///{number}.md", error=-32602 if number == 1 else None)
    play.read("file:///open.md", answered=False)
    write(tmp_path, play.records)
    lines = invoke("traffic", "tail", str(tmp_path), "--once", "-n", "3").stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["#5", "#6", "#6"]
    lines = invoke("traffic", "tail", str(tmp_path), "--once", "--by", "exchange").stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["#1", "#2", "#3", "#4", "#5", "#6"]
    assert "open" in lines[-1]
    args = ["traffic", "tail", str(tmp_path), "--once", "status!=ok uri~*1.md leg=upstream"]
    (line,) = invoke(*args).stdout.splitlines()
    assert "error -32602" in line
    assert invoke("traffic", "tail", str(tmp_path), "--once", "-n", "0").stdout == ""


def test_a_filter_searches_all_files_for_the_last_lines(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files, "LOOK_BACK_BYTES", 700)
    play = Play()
    play.read("file:///first.md")
    for _ in range(20):
        play.read()
    write(tmp_path, play.records)
    result = invoke("traffic", "tail", str(tmp_path), "--once", "uri~*first.md leg=client")
    assert (len(result.stdout.splitlines()), result.stderr) == (2, "")


def test_the_last_exchanges_are_those_that_began_last(invoke: Invoke, tmp_path: Path):
    play = Play()
    play.read(answered=False)
    for _ in range(3):
        play.read()
    write(tmp_path, play.records)
    lines = invoke(
        "traffic", "tail", str(tmp_path), "--once", "--by", "exchange", "-n", "2"
    ).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["#3", "#4"]


@pytest.mark.parametrize("command", [["tail", "--once"], ["grep", ""], ["stats"], ["export", "--csv", "-"]])
@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ("upstream=doc", "none has `upstream=doc`; did you mean `upstream=docs`?"),
        ("client=claude", "none has `client=claude`; did you mean `client=claude-ai`?"),
        ("method=resources", "did you mean `method=resources/read`?"),
        ("upstream=mail leg=client", "none has `upstream=mail`; known: docs"),
        ("session=x", "none has `session=x`, nor any session"),
        ("upstream=docs leg=client", "no message fits the filter\n"),
    ],
)
def test_a_filter_that_fits_nothing_names_the_nearest(
    invoke: Invoke, tmp_path: Path, command: list[str], wanted: str, advice: str
):
    play = Play()
    play.read()
    write(tmp_path, play.records)
    stderr = invoke("traffic", *command, str(tmp_path), wanted).stderr
    assert stderr.startswith("no message fits the filter")
    assert advice in stderr


@pytest.mark.parametrize("audit", [False, True])
def test_nothing_to_show_is_told(invoke: Invoke, tmp_path: Path, audit: bool):
    if audit:
        (tmp_path / "audit-000001.jsonl").touch()
    result = invoke("traffic", "tail", str(tmp_path), "--once")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there are no capture files in this folder" in result.stderr
    assert ("but an audit log" in result.stderr) == audit


@pytest.mark.process
def test_the_first_file_is_waited_for_with_a_word(tmp_path: Path):
    with Running("traffic", "tail", str(tmp_path)) as tail:
        assert "no capture files in this folder; waiting for the first one" in tail.line("stderr")
        play = Play()
        play.read("file:///a.md")
        write(tmp_path, play.records)
        assert "docs+file:///a.md" in tail.line()
        assert tail.stop() == 0


def test_a_compressed_file_may_have_any_name(invoke: Invoke, tmp_path: Path):
    play = Play()
    play.read("file:///a.md")
    plain = write(tmp_path / "x.jsonl", play.records)
    plain.write_bytes(gzip.compress(plain.read_bytes()))
    result = invoke("traffic", "tail", str(plain), "--once")
    assert (result.stderr, len(result.stdout.splitlines())) == ("", 4)


@pytest.mark.process
def test_what_is_appended_is_shown_across_rotation_until_interrupted(tmp_path: Path):
    play = Play()
    play.read("file:///a.md")
    first = write(tmp_path, play.records)
    with Running("traffic", "tail", str(tmp_path), "-n", "1") as tail:
        assert "docs+file:///a.md  ok" in tail.line()
        play.read("file:///b.md")
        append(first, play.records[4:6])
        assert "docs+file:///b.md" in tail.line()
        assert "→ docs" in tail.line()
        second = first.with_name(FILE.replace("0001", "0002"))
        append(second, play.records[6:])
        assert "← docs" in tail.line()
        first.unlink()
        assert "docs+file:///b.md  ok" in tail.line()
        assert tail.stop() == 0
        assert (tail.stdout, tail.stderr) == ("", "")


@pytest.mark.process
def test_exchanges_are_shown_when_they_end(tmp_path: Path):
    play = Play()
    play.read("file:///a.md")
    file = write(tmp_path / "x.jsonl", play.records[:3])
    with Running("traffic", "tail", str(file), "--by", "exchange") as tail:
        append(file, play.records[3:])
        assert "docs+file:///a.md  → docs  ok" in tail.line()
        assert tail.stop() == 0


@pytest.mark.process
def test_it_ends_when_nobody_reads_on(tmp_path: Path):
    play = Play()
    play.read()
    write(tmp_path, play.records)
    command = shlex.join([*COMMAND, "traffic", "tail", str(tmp_path)])
    done = subprocess.run(
        ["sh", "-c", f"{command} | head -n 1"], capture_output=True, timeout=WAIT_SECONDS, check=True
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


async def first(source: AsyncIterator[list[Record]], count: int) -> list[Record]:
    first_records: list[Record] = []
    with trio.fail_after(60):
        async for records in source:
            first_records += records
            if len(first_records) >= count:
                return first_records
    raise AssertionError("the stream has ended")


async def test_messages_of_a_running_mcpmux_are_shown():
    lines = Lines(read_filter("upstream=docs"), "exchange", False, own=False)
    async with listening() as here:
        url = f"{here.url}/?token={here.token}"
        async with AdminClient.at(url, None).watch() as source:
            with trio.fail_after(60):
                assert await anext(source) == []
            here.traffic.exchange(upstream="search")
            here.traffic.exchange(upstream="docs")
            records = await first(source, 8)
        assert [record.leg for record in records[:4]] == ["client", "upstream", "upstream", "client"]
        (line,) = lines.of(records)
        assert "example-client  tools/call docs__find  → docs  ok" in line
        async with AdminClient.at(here.url, here.token).watch() as source:
            here.stopping.set()
            with pytest.raises((RemoteProtocolError, TransportError)), trio.fail_after(60):
                async for _ in source:
                    pass


@pytest.mark.parametrize("own", [False, True])
async def test_what_mcpmux_asks_by_itself_is_shown_when_it_is_asked_for(own: bool):
    async with listening() as here:
        docs = here.traffic.upstreams["docs"]
        async with AdminClient.at(here.url, here.token).watch(own=own) as source:
            with trio.fail_after(60):
                assert await anext(source) == []
            here.traffic.message_passed(docs, "out", {"id": 1, "method": "ping"})
            here.traffic.message_passed(docs, "in", {"id": 1, "result": {}})
            here.traffic.exchange()
            records = await first(source, 6 if own else 4)
        assert sorted(record.own for record in records) == [False] * 4 + [True] * 2 * own
        for shown in (False, True):
            lines = Lines(read_filter(""), "message", False, own=shown)
            assert len(list(lines.of(records))) == (len(records) if shown else 4)


async def test_a_wrong_token_or_place_is_told():
    async with listening() as here:
        with pytest.raises(NotDone, match="refused the token"):
            async with AdminClient.at(here.url, "wrong").watch():
                pass
    with pytest.raises(NotDone, match="cannot connect"):
        async with AdminClient.at(here.url, "any").watch():
            pass


@pytest.mark.parametrize("url", ["localhost:1", "ftp://x/", "http://", "http://h:99999/"])
def test_a_url_must_be_one(url: str):
    with pytest.raises(Mistake, match="expected the URL of an admin listener"):
        AdminClient.at(url, None)


@pytest.mark.parametrize("token", ["a\nb", "\u00e9"])
def test_a_token_must_fit_in_a_header(token: str):
    with pytest.raises(Mistake, match="expected the token"):
        AdminClient.at("http://h", token)


def test_a_token_in_the_url_counts():
    assert AdminClient.at("http://h:1/?token=a%2Bb", "other").token == "a+b"
    assert AdminClient.at("http://h:1", "other").token == "other"


def test_the_authorities_of_a_running_mcpmux_are_read_from_a_file(invoke: Invoke):
    done = invoke("traffic", "tail", "--url", "https://127.0.0.1:9", "--token", "x", "--ca", "nowhere.pem")
    assert (done.exit_code, "tls.ca: nowhere.pem: cannot read the file" in done.stderr) == (2, True)
