"""Redis servers for tests: a shared one, which is only ever used, and those of one test alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.redis_server import RedisNode, RedisServer, RedisServers, redis_servers


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yield the URL of a Redis for tests whose keys have own prefixes."""
    with redis_servers(tmp_path_factory.mktemp("redis")) as servers:
        yield servers.start()


@pytest.fixture(scope="session")
def shared_redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisNode]]:
    """Yield a cluster of three Redis nodes for such tests."""
    with redis_servers(tmp_path_factory.mktemp("redis-cluster")) as servers:
        yield servers.start_cluster(3)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServers]:
    """Yield servers that this test may start and kill."""
    with redis_servers(tmp_path) as servers:
        yield servers
