"""Records that must be kept survive the death of the process and failures of the disk."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mcpmux.traffic.audit.chain import verify
from mcpmux.traffic.capture.files import BadLine, find_files, read_files
from tests.chaos.waiting import count_kilobytes
from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.process.audited import kill_under_load
from tests.process.running import COMMAND, WAIT_SECONDS, Running, demo_entry
from tests.real.mux import HttpMux
from tests.traffic.audit_world import read_log
from tests.whole import WHOLE

URI = "note:///welcome"
NOTES = {**demo_entry("notes"), "prefix": ""}
AUDIT_BYTES, CAPTURE_BYTES = 6000, 3000  # of the disk that gets full
READS = 60
RATE, WARM_SECONDS, SECONDS = 200, 30, 30  # of exchanges, which fill the ring and some files first
GROWTH_KILOBYTES = 4000  # of memory; the messages of the exchanges that count take five times as much
CUT = "the file was cut in the middle of this line"
KILLS = 50 if WHOLE else 10  # with eight clients that are answered, and a rotation or two before each
OPENING = ("server/discover out", "its result in")  # what passes before the first read, and for each one
READ = ("request in", "request out", "result in", "result out")


def write_config(directory: Path, **tables: Any) -> Path:
    path = directory / "mcpmux.json"
    path.write_text(json.dumps({"upstreams": {"notes": NOTES}, **tables}))
    return path


def test_after_kills_answers_are_audited_and_captures_are_readable(tmp_path: Path):
    log, folder = tmp_path / "audit", tmp_path / "capture"
    audit = {"directory": str(log), "rotate_size": "16KiB"}
    # Written after a few exchanges; a full queue holds requests back, so that no message is dropped.
    full = {"level": "full", "directory": str(folder), "queue_bytes": "256KiB", "on_full": "wait"}
    config = write_config(tmp_path, audit=audit, capture={**full, "rotate_size": "64KiB"})
    dice = random.Random(KILLS)
    answered: set[str] = set()
    for number in range(KILLS):
        answered |= set(kill_under_load(config, URI, dice))
        assert verify(log, None).fault is None, number
    bad: list[BadLine] = []
    captured: dict[str, list[int]] = {}
    for record in read_files(find_files(folder), bad.append):
        captured.setdefault(record.run, []).append(record.seq)
    messages = [list(filter(None, seqs)) for seqs in captured.values()]
    assert messages == [list(range(1, len(seqs) + 1)) for seqs in messages], "the last messages are lost only"
    assert len(messages) == KILLS
    assert any(messages)
    assert {line.problem for line in bad} <= {CUT}
    assert answered <= {record.get("trace") for record in read_log(log)}
    assert len(answered) >= KILLS
    with Running("serve", str(config), "--http", "127.0.0.1:0", "--log-level", "error") as mux:
        mux.line()
        assert mux.stop(signal.SIGTERM) == 0
    assert verify(log, None).fault is None


@pytest.mark.parametrize("kind", ["capture", "audit"])
def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, kind: str):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    table = {"directory": str(occupied / "log")} | ({"level": "full"} if kind == "capture" else {})
    config = write_config(tmp_path, **{kind: table})
    done = subprocess.run(
        [*COMMAND, "serve", str(config), "--http", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{kind if kind == 'capture' else 'audit log'}" in done.stderr
    assert str(occupied) in done.stderr
    assert "Traceback" not in done.stderr


class Limited(Running):
    """A served mcpmux on a disk that gets full: files cannot grow beyond a few kB."""

    def __init__(self, config: Path, file_bytes: int) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, limits[1]))
        try:  # children inherit both
            super().__init__("serve", str(config), "--http", "127.0.0.1:0")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        self.url = self.line().strip()


def ask(url: str, times: int) -> list[Any]:
    client = HttpClient(url, MODERN)
    return [client.ask("resources/read", {"uri": URI})[-1] for _ in range(times)]


def test_a_full_disk_pauses_the_capture_and_every_answer_comes(tmp_path: Path):
    folder = tmp_path / "capture"
    config = write_config(tmp_path, capture={"level": "full", "directory": str(folder)})
    with Limited(config, CAPTURE_BYTES) as mux:
        answers = ask(mux.url, READS)
        mux.line("stderr", containing="capture pauses")
        assert mux.stop(signal.SIGTERM) == 0
    assert all("result" in answer for answer in answers)
    bad: list[BadLine] = []
    records = list(read_files(find_files(folder), bad.append))
    kept = [record.seq for record in records if record.kind != "start"]
    assert kept == list(range(1, len(kept) + 1))
    assert {line.problem for line in bad} <= {CUT}
    assert kept  # what there was room for
    lost = sum(map(int, re.findall(r"lost=(\d+)", mux.stderr)))
    assert len(kept) + lost >= len(OPENING) + len(READ) * READS  # a busy machine may open a second session


def test_with_a_full_disk_no_answer_lacks_its_audit_record(tmp_path: Path):
    log = tmp_path / "audit"
    with Limited(write_config(tmp_path, audit={"directory": str(log)}), AUDIT_BYTES) as mux:
        answers = ask(mux.url, 40)
        mux.line("stderr", containing="audit")
        mux.stop(signal.SIGTERM)
    answered = [answer for answer in answers if "result" in answer]
    refused = [answer["error"]["message"] for answer in answers if "error" in answer]
    assert answered
    assert refused
    assert all("audit" in message for message in refused), refused
    assert verify(log, None).fault is None
    kept = [record for record in read_log(log) if record["kind"] == "exchange"]
    assert len(kept) >= len(answered)


@pytest.mark.slow
def test_watching_takes_no_more_memory_from_minute_to_minute(tmp_path: Path):
    folder = tmp_path / "capture"
    config = write_config(
        tmp_path,
        capture={"level": "full", "directory": str(folder), "rotate_size": "1MiB", "keep_bytes": "256KiB"},
        audit={"directory": str(tmp_path / "audit")},
        admin={"port": 0, "keep_bytes": "4MiB"},
    )
    with HttpMux(config) as mux:
        put_load(mux.url, WARM_SECONDS)
        kilobytes, oldest = count_kilobytes(mux.pid), find_files(folder)[0]
        put_load(mux.url, SECONDS)
        growth = count_kilobytes(mux.pid) - kilobytes
        assert mux.stop(signal.SIGTERM) == 0
    print(f"{growth:+} kB of {kilobytes}")
    assert growth < GROWTH_KILOBYTES
    assert oldest not in find_files(folder)
    assert sum(path.stat().st_size for path in find_files(folder)) < 2 * 256 * 1024


def put_load(url: str, seconds: int) -> None:
    """Read at RATE for some seconds."""
    model = ["--rate", str(RATE), "--duration", f"{seconds}s", "--warm-up", "0", "--do", f"read {URI}"]
    done = subprocess.run([*COMMAND, "bench", url, *model], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
