"""Rows: mcpmux beside well-known HTTP proxies, in front of servers that do not use mcpmux's code.

The servers are `lean.py`, the quickest that Python has, or made with the official Python SDK, as many are. In
each round of a run every proxy gets requests in turn. nginx and haproxy keep their connections on both sides,
have one thread and know nothing of MCP: they show the cost of a proxy in C. The relay passes bytes on without
parsing: two receives, two sends and the waits for them, which is the kernel's part.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.bench import UPSTREAMS, Bench, Used, measured
from benchmarks.compiled import is_compiled
from benchmarks.load import Tally
from benchmarks.naming import CALL, READ, Load, exposed_subjects, http_config
from benchmarks.peers.install import PIP, CannotRun, Environment, install
from benchmarks.peers.peer import Launch, Running, listening
from benchmarks.process import Child, free_port
from benchmarks.report import (
    MICRO,
    Goal,
    Pair,
    Row,
    at_least,
    at_most,
    failed_row,
    latency_row,
    rate_row,
    ratio_row,
)

START_SECONDS = 10
SDK_PROGRAM = Path(__file__).parent / "peers" / "programs" / "sdk_server.py"
SDK = Environment(PIP, "mcp", ("mcp>=2.3,<3", "uvicorn", "uvloop", "httptools"))

NGINX_CONFIG = """\
daemon off;
master_process off;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  upstream servers {{
    {servers}
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://servers;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""

HAPROXY_CONFIG = """\
global
  nbthread 1
  maxconn 1024
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  balance roundrobin
  {servers}
"""


class Proxy(NamedTuple):
    """A program and how it is configured. `server`: the line for one server, by its number and address."""

    package: str
    command: Sequence[str]
    config: str
    server: str

    def start(self, urls: Sequence[str], port: int, core: int, folder: Path) -> Running:
        """Start its process, and wait until it listens. Raises CannotRun."""
        program = shutil.which(self.command[0], path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise CannotRun(f"it is not installed: `apt-get install {self.package}`")
        addresses = [url.split("/")[2] for url in urls]
        servers = [self.server.format(number=number, address=url) for number, url in enumerate(addresses)]
        path = folder / "config"
        path.write_text(self.config.format(servers="\n".join(servers), port=port))
        running = Running(Launch([program, *self.command[1:], str(path)]), core, folder)
        running.wait_until(lambda: listening(port), START_SECONDS)
        return running


PROXIES = {
    "nginx": Proxy("nginx-light", ("nginx", "-p", ".", "-c"), NGINX_CONFIG, "server {address};"),
    "haproxy": Proxy("haproxy", ("haproxy", "-db", "-f"), HAPROXY_CONFIG, "server s{number} {address}"),
}
MUX, RELAY = "mcpmux", "a relay of bytes"


class Target(NamedTuple):
    """Servers, or something in front of them: URLs, the process, and what it is asked for."""

    urls: Sequence[str]
    process: Used
    subjects: Sequence[str] = ()


Start = Callable[[Bench], AbstractContextManager[Target]]


@contextmanager
def _lean(bench: Bench) -> Iterator[Target]:
    with bench.upstream(UPSTREAMS, "--era", READ.era, server="benchmarks.lean") as process:
        yield Target(process.lines(UPSTREAMS), process)


@contextmanager
def _sdk(bench: Bench) -> Iterator[Target]:
    """Start servers made with the SDK. Raises CannotRun."""
    python = install("peer-python-sdk", SDK).python
    ports = [free_port() for _ in range(UPSTREAMS)]
    launch = Launch([python, "-P", "-O", str(SDK_PROGRAM), *map(str, ports)])
    with TemporaryDirectory() as folder, Running(launch, bench.load_core, Path(folder)) as process:
        for port in ports:
            process.wait_until(partial(listening, port), START_SECONDS)
        yield Target([f"http://127.0.0.1:{port}/mcp" for port in ports], process)


def latency(bench: Bench) -> list[Row]:
    """Measure one exchange at a time."""
    measure = "latency of a 1 KB read, 1 connection, lean servers, p50"
    rounds = _rounds(bench, measure, READ._replace(connections=1), _lean)
    goals = {MUX: at_most(90, " µs", absolute=True)} if is_compiled() else {}
    rows = [
        latency_row(_through(measure, name), pairs, lambda tally: tally.p50, goals.get(name))
        for name, pairs in rounds.pairs.items()
    ]
    return [*rows, *rounds.failed, *_compared(measure, rounds, lambda tally: 1 / tally.p50, at_least(1))]


def _rates(measure: str, load: Load, start: Start, bench: Bench) -> list[Row]:
    try:
        rounds = _rounds(bench, measure, load, start)
    except CannotRun as trouble:
        return [failed_row(measure, trouble)]
    goals = {MUX: at_least(0.65 if is_compiled() else 0.45)}
    rows = [rate_row(_through(measure, name), pairs, goals.get(name)) for name, pairs in rounds.pairs.items()]
    goal = at_least(0.7) if is_compiled() else None
    return [*rows, *rounds.failed, *_compared(measure, rounds, lambda tally: tally.rate, goal)]


read = partial(_rates, "read 1 KB, 64 connections, modern, lean servers", READ, _lean)
call = partial(_rates, "call a tool, 64 connections, modern, lean servers", CALL, _lean)
read_of_sdk = partial(
    _rates, "read 1 KB, 64 connections, modern, servers made with the official Python SDK", READ, _sdk
)


def _through(measure: str, name: str) -> str:
    return measure if name == MUX else f"{measure}: {name} in place of mcpmux"


class Found(NamedTuple):
    """Pairs of each target, and a row for each that could not run."""

    pairs: Mapping[str, list[Pair]]
    failed: Sequence[Row]


def _compared(measure: str, rounds: Found, of: Callable[[Tally], float], goal: Goal | None) -> list[Row]:
    """Compare mcpmux with nginx, round by round: `of` is more when it is better."""
    if "nginx" not in rounds.pairs:
        return []
    nginx, mux = ([of(pair.through) for pair in rounds.pairs[name]] for name in ("nginx", MUX))
    return [ratio_row(f"{measure}: mcpmux beside nginx", nginx, mux, " × as good", goal)]


def _rounds(bench: Bench, measure: str, load: Load, start: Start) -> Found:
    bench.note(measure)
    failed = []
    with ExitStack() as stack:
        urls, upstream, _ = stack.enter_context(start(bench))
        mux = stack.enter_context(bench.mux(http_config(urls)))
        targets = {MUX: Target(mux.lines(1), mux, exposed_subjects(load, UPSTREAMS))}
        for name, proxy in PROXIES.items():
            folder, port = Path(stack.enter_context(TemporaryDirectory())), free_port()
            try:
                process = stack.enter_context(proxy.start(urls, port, bench.mux_core, folder))
            except CannotRun as trouble:
                failed.append(failed_row(_through(measure, name), trouble))
            else:
                targets[name] = Target([f"http://127.0.0.1:{port}/mcp"], process, load.subjects)
        relay = stack.enter_context(Child(["benchmarks.relay", urls[0]], bench.mux_core))
        targets[RELAY] = Target(relay.lines(1), relay, load.subjects)
        pairs: dict[str, list[Pair]] = {name: [] for name in targets}
        names = list(targets)
        for number in range(bench.effort.runs):
            direct, direct_cpu = measured(lambda: bench.load(load, urls[:1], load.subjects), upstream)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                target = targets[name]
                run = partial(bench.load, load, target.urls, target.subjects)
                tally, used = measured(run, target.process)
                pairs[name].append(Pair(direct, tally, used, direct_cpu))
    cost = {name: median(pair.mux_cpu for pair in rounds) * MICRO for name, rounds in pairs.items()}
    bench.remarks.append(
        f"{measure}: the relay, which is the kernel's part and little else, took {cost[RELAY]:.0f} µs for an "
        f"exchange, mcpmux {cost[MUX]:.0f} µs."
    )
    return Found(pairs, failed)
