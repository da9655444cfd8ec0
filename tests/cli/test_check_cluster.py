"""`mcpmux check` with [cluster], and a real Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from mcpmux.cluster.letter import Card
from mcpmux.cluster.redis_store import open_redis_store
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.config import Secret
from mcpmux.config.cluster import Cluster
from tests.cli.invoking import Invoke
from tests.cluster.redis_server import RedisServer, redis_servers
from tests.process.running import Running, demo_table

KEY = "key of this cluster"
CONFIG = """
[merging]
cursor_key = "{key}"
[cluster]
url = "redis://{address}"
prefix = "{prefix}"
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with ExitStack() as stack:
        yield stack.enter_context(redis_servers(tmp_path_factory.mktemp("redis"))).start()


@pytest.fixture
def config(tmp_path: Path, redis: RedisServer) -> Path:
    path = tmp_path / "mcpmux.toml"
    path.write_text(demo_table("clock") + CONFIG.format(key=KEY, address=redis.address, prefix=tmp_path.name))
    return path


def join(redis: RedisServer, config: Path, name: str, *, key: str = KEY, ahead: float = 0.0) -> None:
    """Give a replica a long lease."""

    async def renew() -> None:
        settings = Cluster(url=Secret(f"redis://{redis.address}"), prefix=config.parent.name, timeout=10.0)
        async with open_redis_store(settings) as store:
            card = Card(name, f"http://{name}.example:9000", at=time.time() + ahead, lease=600.0)
            sealed = card.seal(ClusterSeal(key.encode()), f"id-{name}")
            await store.renew(f"id-{name}", sealed, 600.0, joining=True)

    trio.run(renew)


def test_the_store_and_the_replicas_are_told(invoke: Invoke, config: Path, redis: RedisServer) -> None:
    alone = invoke("check", str(config))
    assert alone.exit_code == 0, alone.stderr
    line = alone.stdout.splitlines()[-1]
    assert line.startswith(("cluster: redis ", "cluster: valkey "))
    assert line.endswith("; no replica is there now")
    for name in "ba":
        join(redis, config, name)
    both = invoke("check", str(config))
    assert both.exit_code == 0, both.stderr
    assert both.stdout.splitlines()[-1].endswith(
        "; 2 replicas: a (http://a.example:9000), b (http://b.example:9000)"
    )
    cluster = json.loads(invoke("check", str(config), "--json").stdout.splitlines()[-1])["cluster"]
    assert [replica["name"] for replica in cluster["replicas"]] == ["a", "b"]
    assert all(abs(replica["clock"]) < 10 for replica in cluster["replicas"])
    assert cluster["problems"] == []


def test_another_key_and_another_clock_are_problems(invoke: Invoke, config: Path, redis: RedisServer) -> None:
    join(redis, config, "late", ahead=-100.0)
    join(redis, config, "strange", key="another key")
    result = invoke("check", str(config))
    assert result.exit_code == 1
    assert "1 replica: late" in result.stdout
    stderr = " ".join(result.stderr.split())
    assert "cluster: 1 of 2 replicas have another `cursor_key` than this configuration" in stderr
    assert "is 100 s ahead of that of late; replicas refuse what they say to each other" in stderr


def test_a_store_that_does_not_answer_is_a_problem(config: Path) -> None:
    text = config.read_text()
    config.write_text(text.replace(text.partition("redis://")[2].partition('"')[0], "127.0.0.1:1"))
    # Not in this process: coredis leaves streams open where it cannot connect, and Python complains.
    with Running("check", str(config)) as checking:
        assert checking.wait() == 1
    assert checking.stdout.splitlines()[-1] == "cluster: the store does not answer"
    assert checking.stderr == (
        "Error: cluster: the store at 127.0.0.1:1 cannot be reached: connection refused; "
        "without it replicas cannot share sessions\n"
    )
