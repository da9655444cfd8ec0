"""A real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Run one browser for all tests that need one; each test opens an isolated tab."""
    running = Browser(tmp_path_factory.mktemp("chromium"))
    yield running
    running.stop()
