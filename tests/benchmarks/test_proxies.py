"""The lean server answers in both eras, and the proxies beside mcpmux pass on what it is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.asking import Client, check_text
from benchmarks.peers.install import CannotRun
from benchmarks.process import Child, free_port
from benchmarks.proxies import PROXIES, Proxy
from benchmarks.upstream import LEGACY, MODERN, TEXT_BYTES, TOOL, item_uri
from mcpmux.protocol import method as m
from tests.real.parts import program

CORE = min(os.sched_getaffinity(0))


def ask(url: str, era: str, method: str, subject: str) -> None:
    client = Client(url, era).open()
    for _ in range(3):  # the connection is kept
        client.send(method, subject)
        check_text(client.receive(), TEXT_BYTES)
    client.close()


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("--streams",)], ids=["JSON", "event stream"])
@pytest.mark.parametrize("era", [MODERN, LEGACY])
@pytest.mark.parametrize(("method", "subject"), [(m.RESOURCES_READ, item_uri(0)), (m.TOOLS_CALL, TOOL)])
def test_the_lean_server_answers(era, method, subject, options):
    with Child(["benchmarks.lean", "--port=0", f"--era={era}", *options], CORE) as server:
        (url,) = server.lines(1)
        ask(url, era, method, subject)


@pytest.mark.process
@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_passes_reads_on(name, tmp_path):
    proxy, port = PROXIES[name], free_port()
    program(proxy.command[0], proxy.package)
    with (
        Child(["benchmarks.lean", "--port=0", "--port=0"], CORE) as servers,
        proxy.start(servers.lines(2), port, CORE, tmp_path),
    ):
        ask(f"http://127.0.0.1:{port}/mcp", MODERN, m.RESOURCES_READ, item_uri(3))


def test_a_proxy_that_is_not_installed_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="apt-get install a-package"):
        Proxy("a-package", ("no-such-program",), "", "").start([], free_port(), CORE, tmp_path)
