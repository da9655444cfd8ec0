from __future__ import annotations

import pytest

from mcpmux.transports.waiting import available
from tests.transports import ways

SLOW = pytest.mark.slow


@pytest.fixture(params=[ways.TOGETHER, pytest.param(ways.ALONE, marks=SLOW)] if available else [ways.ALONE])
def received(request, monkeypatch):
    """A server's connections are received for together, or each by its own task."""
    monkeypatch.setattr(ways, "received", request.param)
    return request.param


@pytest.fixture(params=[pytest.param(False, id="plain"), pytest.param(True, id="tls", marks=SLOW)])
def secured(request, monkeypatch):
    """Both ends speak TLS, or neither does."""
    monkeypatch.setattr(ways, "secured", request.param)
    return request.param
