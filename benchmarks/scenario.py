"""The table of everything that is measured: what `--only` calls it, and what measures it.

A new measurement is a function of a `Bench` that gives rows, in a module of its subject, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from benchmarks import (
    fanout,
    features,
    footprint,
    lists,
    pipes,
    proxies,
    rates,
    several,
)
from benchmarks.bench import Bench
from benchmarks.process import MeasurementFailed, on_core
from benchmarks.report import Row, failed_row


class Scenario(NamedTuple):
    """Measures some rows. `quick`: `--quick` has them too."""

    measure: Callable[[Bench], list[Row]]
    quick: bool


SCENARIOS = {
    "lean-read": Scenario(proxies.read, quick=True),
    "lean-call": Scenario(proxies.call, quick=False),
    "lean-latency": Scenario(proxies.latency, quick=False),
    "sdk-read": Scenario(proxies.read_of_sdk, quick=False),
    "read": Scenario(rates.read_modern, quick=True),
    "read-legacy": Scenario(rates.read_legacy, quick=True),
    "call": Scenario(rates.call, quick=False),
    "call-legacy": Scenario(rates.call_legacy, quick=False),
    "call-streamed": Scenario(rates.call_streamed, quick=False),
    "large": Scenario(rates.read_large, quick=True),
    "latency": Scenario(rates.own_core, quick=True),
    "latency-one-core": Scenario(rates.one_core, quick=False),
    "list": Scenario(lists.cold, quick=True),
    "list-slow": Scenario(lists.cold_slow, quick=True),
    "list-warm": Scenario(lists.warm, quick=True),
    "list-many": Scenario(lists.many, quick=False),
    "list-many-counted": Scenario(lists.many_counted, quick=False),
    "cache": Scenario(rates.read_slow, quick=True),
    "stdio": Scenario(pipes.stdio, quick=True),
    "stdio-client": Scenario(pipes.client, quick=False),
    "capture": Scenario(features.capture, quick=False),
    "capture-metadata": Scenario(features.metadata, quick=False),
    "audit": Scenario(features.audit, quick=False),
    "admin": Scenario(features.admin, quick=False),
    "watched": Scenario(features.together, quick=False),
    "capture-both": Scenario(partial(features.capture, both_cores=True), quick=False),
    "audit-both": Scenario(partial(features.audit, both_cores=True), quick=False),
    "admin-both": Scenario(partial(features.admin, both_cores=True), quick=False),
    "watched-both": Scenario(partial(features.together, both_cores=True), quick=False),
    "tls-clients": Scenario(features.tls_to_clients, quick=False),
    "tls-servers": Scenario(features.tls_to_servers, quick=False),
    "token": Scenario(features.token, quick=False),
    "jwt": Scenario(features.jwt_token, quick=False),
    "start": Scenario(footprint.start, quick=True),
    "memory": Scenario(footprint.memory, quick=True),
    "large-memory": Scenario(footprint.large, quick=False),
    "fanout": Scenario(fanout.rows, quick=False),
    "workers": Scenario(several.two_workers, quick=False),
    "cluster": Scenario(several.beside_one_alone, quick=False),
    "replicas": Scenario(several.two_replicas, quick=False),
}


def measure(bench: Bench, names: Iterable[str]) -> list[Row]:
    """Return the rows of these scenarios, in the order of the table. A failed one has a row with a reason."""
    selection = set(names)
    with on_core(bench.load_core):  # this process asks too
        return [row for name in SCENARIOS if name in selection for row in _measured(bench, name)]


def _measured(bench: Bench, name: str) -> list[Row]:
    try:
        return SCENARIOS[name].measure(bench)
    except (MeasurementFailed, OSError) as error:
        bench.note(f"{name}: {error}")
        return [failed_row(name, error)]
