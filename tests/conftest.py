"""What every test has: events on standard error, at a level that shows only trouble."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from mcpmux.cli.main import is_compiled
from mcpmux.logs import configure_logs
from tests.transports.certificates import Certificates

# A busy machine makes any example slow, which says nothing of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Tests that are started in the background of a shell ignore Ctrl-C, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _logs_on_stderr() -> None:
    configure_logs("warning", "console")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Files of authorities, certificates and keys."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `slow` run in CI, and when `-m` or a test's own name asks for them.

    Those marked `interpreted` are skipped when mcpmux is compiled.
    """
    if is_compiled():
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip("puts something of its own in mcpmux's place"))
    named = any("::" in argument for argument in config.args)
    if os.environ.get("CI") or config.option.markexpr or named:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
