from __future__ import annotations

import pytest

from mcpmux.transports import waiting
from tests.transports import ways

SLOW = pytest.mark.slow


WAYS = [pytest.param(True, id="epoll"), pytest.param(False, id="trio", marks=SLOW)]


@pytest.fixture(params=WAYS if waiting.has_epoll else WAYS[1:])
def received(request, monkeypatch):
    """Have one epoll wait for all connections, or trio for each, as on systems without it."""
    monkeypatch.setattr(waiting, "has_epoll", request.param)


@pytest.fixture(params=[pytest.param(False, id="plain"), pytest.param(True, id="tls", marks=SLOW)])
def secured(request, monkeypatch):
    """Have both ends speak TLS, or neither."""
    monkeypatch.setattr(ways, "secured", request.param)
    return request.param
