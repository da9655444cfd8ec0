"""The memory that large answers take, for as long as clients do not read them: of a whole process."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.runtime.served import ask, connected, result_of, started, started_mux

CLIENTS = 12
PAYLOAD = 2 * 2**20
STATUS = "/proc/self/status"
LARGE, SMALL = "bench:///large", "bench:///item/1"


def kib(process, what):
    lines = Path(STATUS.replace("self", str(process.pid))).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


@pytest.mark.slow
@pytest.mark.skipif(not Path(STATUS).exists(), reason=f"needs {STATUS}")
@pytest.mark.parametrize("prefix", ["s0", ""])
def test_an_unread_answer_takes_no_more_than_three_times_its_size(prefix):
    service = f"{prefix}+" if prefix else ""
    with ExitStack() as stack:
        _, (upstream,) = started(stack, "benchmarks.upstream", "--port=0")
        config = f'[upstreams.s0]\nurl = "http://127.0.0.1:{upstream}/mcp"\nprefix = "{prefix}"\n'
        mux, port = started_mux(stack, config)
        with connected(port) as client:
            ask(client, "resources/read", uri=service + SMALL)
            assert result_of(client)["contents"][0]["uri"] == service + SMALL
        earlier = kib(mux, "VmRSS")
        clients = [stack.enter_context(connected(port, SO_RCVBUF=4096)) for _ in range(CLIENTS)]
        for client in clients:
            ask(client, "resources/read", uri=service + LARGE)
        assert all(client.recv(1, socket.MSG_PEEK) for client in clients)  # each answer is on its way
        time.sleep(0.2)
        assert (kib(mux, "VmHWM") - earlier) * 1024 <= 3 * PAYLOAD * CLIENTS
        for client in clients:
            (content,) = result_of(client)["contents"]
            assert (content["uri"], len(content["text"])) == (service + LARGE, PAYLOAD)
