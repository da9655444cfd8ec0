"""The example of configs/deploy, in a folder that its README has made, on ports that are free."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.process import free_port
from tests.config.test_deploy_files import CREDENTIALS, blocks_of_readme, text_of
from tests.journeys import Place, blocks_of
from tests.process.running import WAIT_SECONDS, Running
from tests.real.parts import ROOT, program
from tests.real.web_server import run_web_server
from tests.traffic.test_dashboard import ASKED

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `python3` of mux.toml is this one


class Example(Place):
    """The folder of the README, with the files that the system would give to mcpmux."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, ROOT)
        program("openssl")
        self.run(blocks_of("configs/deploy/README.md", "Make a folder with secrets")[0].text)
        self.folder = home / "mcpmux"
        self.mux = self.folder / "mux.toml"
        text = self.mux.read_text().replace(CREDENTIALS, str(self.secrets))
        self.mux.write_text(self.with_free_ports(text.replace("/var/log/mcpmux", str(self.folder / "log"))))

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text().strip()

    def is_healthy(self) -> bool:
        """Run the health check of the image, and return whether it succeeds."""
        check = re.search(
            r"^HEALTHCHECK .* CMD (\[.*?\])$", text_of("Containerfile"), re.DOTALL | re.MULTILINE
        )
        assert check is not None
        _, *arguments = json.loads(self.with_free_ports(check[1].replace("\\\n", "")))
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, timeout=WAIT_SECONDS, check=False
        )
        return done.returncode == 0

    @contextmanager
    def run_prometheus(self) -> Iterator[str]:
        """Run Prometheus with the files of the example, scraping every second. Yields its URL."""
        path, address = self.folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
        text = path.read_text().replace("/run/secrets", str(self.secrets)).replace("15s", "1s")
        path.write_text(self.with_free_ports(text.replace("mcpmux:8490", "127.0.0.1:8490")))
        command = [
            program("prometheus"),
            f"--config.file={path}",
            f"--storage.tsdb.path={self.home / 'tsdb'}",
        ]
        ready = "Server is ready to receive web requests"
        with run_web_server([*command, f"--web.listen-address={address}"], ready, {}):
            yield f"http://{address}"


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path)


def test_secrets_are_for_nobody_else(example: Example):
    assert example.secrets.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in example.secrets.iterdir()} == {0o644}


def test_check_accepts_it(example: Example):
    with Running("check", str(example.mux), env={"PATH": PATH}) as check:
        assert check.wait() == 0, check.stderr
        for name in ("notes", "clock", "library"):
            assert re.search(rf"^{name} +ready ", check.stdout, re.MULTILINE)


def test_prometheus_reads_it_and_answers_the_dashboard(example: Example):
    with (
        Running("serve", str(example.mux), env={"PATH": PATH}),
        example.run_prometheus() as url,
        httpx.Client(base_url=url) as http,
    ):

        def found(expression: str) -> list[Any]:
            answer = http.get("/api/v1/query", params={"query": expression}).json()
            assert answer["status"] == "success", answer
            return list(answer["data"]["result"])

        deadline = time.monotonic() + WAIT_SECONDS
        while len(found("mcpmux_upstream_up == 1")) < 3:
            assert time.monotonic() < deadline
        for query in ASKED:
            text = query.expression.replace("$__rate_interval", "1m")
            found(re.sub(r'"\$\w+"', '".*"', text))
        assert {series["metric"]["alertname"] for series in found('ALERTS{alertstate="firing"}')} == set()
        assert found('count(mcpmux_upstream_up{instance=~".*"} == 0) or vector(0)')[0]["value"][1] == "0"


def test_it_serves_tells_and_stops(example: Example):
    assert not example.is_healthy()
    with Running("serve", str(example.mux), "--no-watch", env={"PATH": PATH}) as mux:
        assert example.port("8484") in mux.line(containing="/mcp")
        deadline = time.monotonic() + WAIT_SECONDS
        while not example.is_healthy():
            assert time.monotonic() < deadline
        program("curl")
        command = re.search(r"^curl -fsS \S+/mcp .*?\}\}\}'$", blocks_of_readme(), re.DOTALL | re.MULTILINE)
        assert command is not None
        assert json.loads(example.run(command[0]))["result"]["serverInfo"]["name"] == "mcpmux"
        metrics = f"http://127.0.0.1:{example.port('8490')}/metrics"
        response = httpx.get(metrics, headers={"Authorization": f"Bearer {example.secret('admin_token')}"})
        assert "\nmcpmux_audit_failing 0.0\n" in response.text
        mux.send_signal(signal.SIGHUP)
        assert json.loads(mux.line("stderr", "reading the configuration again"))["signal"] == "SIGHUP"
        assert mux.stop(signal.SIGTERM) == 0
        events = [json.loads(line)["event"] for line in mux.stderr.splitlines()]
        assert "audit log closed" in events
    log = str(example.folder / "log" / "audit")
    with Running("audit", "verify", log, "--key-file", str(example.secrets / "audit_key")) as verify:
        assert verify.wait() == 0, verify.stderr
