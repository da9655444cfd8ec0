"""Which reads are looked at: few of a server whose reads are for nobody else."""

from __future__ import annotations

from collections.abc import Awaitable

from mcpmux.channels.tap import Watch
from mcpmux.config import Tcp, Upstream
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.upstreams.response_cache import DOUBTS, PASSED, CacheStore, ResponseCache
from mcpmux.upstreams.status import UpstreamStatus

READ = Call(m.RESOURCES_READ, {"uri": raw("file:///a")}, {})


class _Asked:
    name = "x"
    watch: Watch | None = None

    def exchange(self, call: Call, notify: Notify) -> Awaitable[Fields]:
        raise AssertionError

    def patience(self, method: str) -> float:
        raise AssertionError

    @property
    def status(self) -> UpstreamStatus:
        raise AssertionError


ASKED = _Asked()


async def private(_notify: object) -> Fields:
    return {"contents": raw([]), "cacheScope": raw("private")}


async def public(_notify: object) -> Fields:
    return {"contents": raw([]), "cacheScope": raw("public"), "ttlMs": raw(60_000)}


async def unheard(_event: Event) -> None:
    raise AssertionError


async def doubtful() -> ResponseCache:
    memory = CacheStore().cache_of(Upstream(name="x", target=Tcp("127.0.0.1", 1)), "x")
    assert memory is not None
    for _ in range(DOUBTS):
        assert not memory.passes()
        await memory.read(READ, "file:///a", private, unheard, ASKED)
    return memory


async def test_after_many_doubts_one_read_of_many_is_looked_at(autojump_clock):
    memory = await doubtful()
    passed = [memory.passes() for _ in range(2 * (PASSED + 1))]
    assert passed == ([True] * PASSED + [False]) * 2


async def test_a_server_of_a_legacy_revision_is_never_looked_at(autojump_clock):
    memory = await doubtful()
    memory.modern = False
    assert all(memory.passes() for _ in range(PASSED + 10))


async def test_what_is_served_from_memory_ends_the_doubts(autojump_clock):
    """A server with one public resource that everybody reads, and many that are private."""
    memory = await doubtful()
    hot = Call(m.RESOURCES_READ, {"uri": raw("file:///hot")}, {})
    await memory.read(hot, "file:///hot", public, unheard, ASKED)
    for _ in range(DOUBTS - 1):
        await memory.read(READ, "file:///a", private, unheard, ASKED)
    await memory.read(hot, "file:///hot", private, unheard, ASKED)
    await memory.read(READ, "file:///a", private, unheard, ASKED)
    assert memory.counts.hits == 1
    assert not memory.passes()
