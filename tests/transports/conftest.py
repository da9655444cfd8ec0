from __future__ import annotations

import pytest

from mcpmux.transports.waiting import available
from tests.transports import ways


@pytest.fixture(params=[ways.TOGETHER, ways.ALONE])
def received(request, monkeypatch):
    """A server's connections are received for together, or each by its own task."""
    if request.param == ways.TOGETHER and not available:
        pytest.skip("Linux only")
    monkeypatch.setattr(ways, "received", request.param)
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def secured(request, monkeypatch):
    """Both ends speak TLS, or neither does."""
    monkeypatch.setattr(ways, "secured", request.param)
    return request.param
