"""Settings of every test: its kind, the number of examples for laws, and a log that shows only trouble."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from mcpmux.cli.main import is_compiled
from mcpmux.logs import configure_logs
from mcpmux.protocol.revisions import NEWEST
from tests.step_watch import watch_steps
from tests.transports.certificates import Certificates

pytest_plugins = ("tests.cli.invoking", "tests.cluster.redis_fixtures", "tests.real.fixtures")

HERE = Path(__file__).parent
FOLDERS = {
    "static": "static",
    "process": "process",
    "real": "real",
    "browser": "browser",
    "chaos": "slow",
}
"""The kind of the tests in a folder. Those of all other folders run in this process, and by default."""
PROCESSES = frozenset({"demo_url", "redis", "shared_redis", "shared_redis_cluster"})
"""Fixtures that start a process."""
KINDS = frozenset({*FOLDERS.values()})
NONE_OF_THEM = "not static and not process and not real and not browser and not slow"
"""The `-m` of `pyproject.toml`."""
PARTIES = (("down", "up"), ("era", "revision"))
"""What tests call the revisions of the client and of the server."""

Pair = tuple[str, str]

# Hundreds of Pythons run these sources, and pytest rewrites each test module: compile them once, not in each
# process, also where the environment (of many containers) says not to keep bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A busy machine makes any example slow, through no fault of the code. `--hypothesis-profile ci` tries more.
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dev")

# Tests that are started in the background of a shell ignore Ctrl-C, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _logs_on_stderr() -> None:
    configure_logs("warning", "console")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Give back the log after a command that ran in this process and set it up."""
    logging = structlog.get_config()
    yield
    structlog.configure(**logging)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make files of authorities, certificates and keys."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders whose tests would be deselected: to collect them takes seconds of each worker."""
    if collection_path.parent != HERE or collection_path.name not in FOLDERS:
        return None
    return config.option.markexpr == NONE_OF_THEM or None


def pytest_collection_finish() -> None:
    """Keep what was collected out of the garbage collector, which tests run as they may."""
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers `-n auto` means: the suite waits more than it computes."""
    return 2 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def find_pair(item: pytest.Item) -> Pair | None:
    """Return the revisions of the client and of the server in a test, None if it has no such pair."""
    callspec = getattr(item, "callspec", None)
    params = callspec and callspec.params
    for client, server in PARTIES:
        if params and client in params and server in params:
            return params[client], params[server]
    return None


def mark_pairs(items: list[pytest.Item]) -> None:
    """Mark pairs of revisions as slow, except those that are equal and the farthest crossing of the eras."""
    pairs = {item: pair for item in items if (pair := find_pair(item))}
    crossings: dict[str, Pair] = {}
    for item, pair in pairs.items():
        test = item.nodeid.partition("[")[0]
        if (pair[0] == NEWEST) is not (pair[1] == NEWEST):
            crossings[test] = min(crossings.get(test, pair), pair)
    for item, pair in pairs.items():
        if pair[0] != pair[1] and pair != crossings.get(item.nodeid.partition("[")[0]):
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test one kind: what it is marked with itself, or that of its folder or fixtures.

    Tests marked `interpreted` are skipped when mcpmux is compiled. All asynchronous ones are watched.
    """
    mark_pairs(items)
    compiled = is_compiled()
    for item in items:
        watch_steps(item)
        if compiled and item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip("puts something of its own in mcpmux's place"))
        if not any(item.get_closest_marker(kind) for kind in KINDS):
            folder = item.path.relative_to(HERE).parts[0]
            if folder in FOLDERS:
                item.add_marker(FOLDERS[folder])
            elif not PROCESSES.isdisjoint(getattr(item, "fixturenames", ())):
                item.add_marker("process")
