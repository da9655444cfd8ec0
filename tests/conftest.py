"""What every test has: events on standard error, at a level that shows only trouble."""

from __future__ import annotations

import pytest

from mcpmux.logs import configure_logs


@pytest.fixture(autouse=True, scope="session")
def _logs_on_stderr() -> None:
    configure_logs("warning", "console")
