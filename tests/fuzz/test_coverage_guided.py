"""A short, bounded run of each coverage-guided target. Long runs are described in `coverage_guided`."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.seeds import SEEDS
from tests.real.parts import ROOT, pip_env

SECONDS = 20  # of fuzzing
ROOM = 512  # MiB that the fuzzer may take
PATIENCE = 120  # for that, and for starting

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", list(SEEDS))
def test_no_input_breaks_a_law(target: str, tmp_path: Path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS[target]):
        (corpus / str(number)).write_bytes(seed)
    # libFuzzer judges the peak of its process, and a process that Linux starts takes over its parent's peak.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    command = [
        str(pip_env("fuzz")),
        "-m",
        "tests.fuzz.coverage_guided",
        target,
        "-timeout=10",
        f"-rss_limit_mb={peak + ROOM}",
    ]
    done = subprocess.run(
        [*command, f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/", str(corpus)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "DONE" in done.stderr
    assert len(list(corpus.iterdir())) > len(SEEDS[target])  # it found its way further in than the seeds
