"""Deadlines of exchanges over HTTP: kept wherever the exchange waits, by one task, on a virtual clock."""

import math
import weakref
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from mcpmux.errors import Overdue, TransportClosed
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, PoolLimits
from mcpmux.transports.punctuality import SWEEP_SECONDS, Punctuality
from tests.transports.test_http_client import SHORT, Connection, read

PATIENCE = 30.0
LARGE = b"x" * 32 * 1024 * 1024  # more than any socket takes


@asynccontextmanager
async def served_by(script, **limits):
    """A pool whose deadlines are kept, and a server that treats each connection after the script."""

    async def serve(stream):
        async with stream:
            await script(Connection(stream))
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        origin = HttpOrigin(False, "127.0.0.1", listener.socket.getsockname()[1])
        with HttpPool(origin, limits=PoolLimits(**limits)) as pool:
            nursery.start_soon(pool.punctuality.run)
            yield pool
        nursery.cancel_scope.cancel()


async def ask(pool, body=b"", seconds=PATIENCE):
    response = await pool.send("POST", "/", (), body, idempotent=True, until=trio.current_time() + seconds)
    try:
        return await response.read()
    finally:
        response.release()


async def silent(connection):
    await connection.receive_request()


async def deaf(_connection):
    """Reads nothing: what is sent to it stays with the sender."""


async def breaks_off(connection):
    await connection.receive_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


@pytest.mark.parametrize(
    ("script", "body"),
    [(silent, b""), (deaf, LARGE), (breaks_off, b"")],
    ids=["silent", "deaf", "breaks off"],
)
async def test_an_exchange_ends_with_its_time(autojump_clock, script, body):
    async with served_by(script) as pool:
        began = trio.current_time()
        with pytest.raises(Overdue):
            await ask(pool, body)
        assert PATIENCE <= trio.current_time() - began <= PATIENCE + SWEEP_SECONDS + 1e-6


async def test_waiting_for_a_connection_counts(autojump_clock):
    async with served_by(silent, connections=1) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(partial(pool.send, "POST", "/", (), b"", idempotent=True))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        with pytest.raises(Overdue):
            await ask(pool)
        assert trio.current_time() - began == pytest.approx(PATIENCE)
        nursery.cancel_scope.cancel()


async def test_each_has_its_own_time_and_only_the_late_ones_are_cut_off(autojump_clock):
    ended = {}

    async def measure(seconds):
        began = trio.current_time()
        with pytest.raises(Overdue):
            await ask(pool, seconds=seconds)
        ended[seconds] = trio.current_time() - began

    async with served_by(silent) as pool:
        async with trio.open_nursery() as nursery:
            for seconds in (7.0, 3.0, 20.0):
                nursery.start_soon(measure, seconds)
        for seconds, after in ended.items():
            assert seconds <= after <= seconds + SWEEP_SECONDS + 1e-6
        assert len(ended) == 3


async def test_a_connection_is_used_again_after_exchanges_that_were_in_time(autojump_clock):
    asked = []

    async def patient(connection):
        while await connection.receive_request():
            asked.append(connection)
            await trio.sleep(PATIENCE - 1)
            await connection.send(SHORT)

    async with served_by(patient, idle_seconds=math.inf) as pool:
        for _ in range(3):
            assert await ask(pool) == b"ok"
            await trio.sleep(10 * PATIENCE)
        assert len(asked) == 3
        assert len(set(map(id, asked))) == 1


async def test_a_stream_takes_its_time(autojump_clock):
    async def slow(connection):
        await connection.receive_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        await trio.sleep(10 * PATIENCE)
        await connection.send(b"cd")

    async with served_by(slow) as pool:
        response = await pool.send("GET", "/", (), b"", idempotent=True, until=trio.current_time() + PATIENCE)
        response.take_time()
        assert await response.read() == b"abcd"
        response.release()


async def ask_until_interrupted(pool):
    """Ask what is not answered, and have the pool be interrupted meanwhile."""

    async def wait():
        with pytest.raises(TransportClosed):
            await ask(pool)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pool.interrupt()
    assert trio.current_time() < PATIENCE


async def test_when_nobody_keeps_time_any_more_whoever_waits_hears_it(autojump_clock):
    async with served_by(silent) as pool:
        await ask_until_interrupted(pool)


async def test_nothing_that_has_an_end_in_time_is_sent_when_nobody_keeps_time_any_more(autojump_clock):
    async with served_by(silent) as pool:
        pool.interrupt()
        with pytest.raises(TransportClosed, match="about to be closed"):
            await ask(pool)
        assert trio.current_time() < PATIENCE


async def test_who_is_interrupted_is_not_sent_again_though_it_may_be(autojump_clock):
    connections = []

    async def answers_once(connection):
        connections.append(connection)
        await connection.receive_request()
        await connection.send(SHORT)
        await connection.receive_request()

    async with served_by(answers_once) as pool:
        await read(pool)
        await ask_until_interrupted(pool)
        assert len(connections) == 1


async def test_who_is_interrupted_before_its_turn_is_not_sent_at_all(autojump_clock):
    asked = []
    go = trio.Event()

    async def answers_late(connection):
        while True:
            asked.append(await connection.receive_request())
            await go.wait()
            await connection.send(SHORT)

    async with served_by(answers_late, connections=1) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(read, pool)  # has no end in time, and leaves its connection
        await trio.testing.wait_all_tasks_blocked()

        async def wait():
            with pytest.raises(TransportClosed, match="about to be closed"):
                await ask(pool)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pool.interrupt()
        go.set()
    assert len(asked) == 1


async def test_a_connection_that_is_made_when_nobody_keeps_time_any_more_is_closed(autojump_clock):
    async with served_by(silent) as pool:
        route, wires = pool.route, []

        class Late:
            async def open(self):
                wires.append(await route.open())
                pool.interrupt()
                return wires[-1]

        pool.route = Late()
        with pytest.raises(TransportClosed, match="about to be closed"):
            await ask(pool)
        assert wires[0].socket.fileno() < 0


async def test_it_rests_while_nothing_is_watched(autojump_clock):
    """A task that woke ten times a second for each idle server would cost more than it saves."""
    punctuality = Punctuality()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(punctuality.run)
        before = autojump_clock.current_time()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1000):
            await trio.sleep_forever()
        assert autojump_clock.current_time() - before == pytest.approx(1000)
        statistics = trio.lowlevel.current_statistics()
        assert statistics.seconds_to_next_deadline == math.inf
        nursery.cancel_scope.cancel()


class Thing:
    """Something with a time of its own."""

    def __init__(self, until):
        self.until = until
        self.ended = False

    def cut_off(self):
        self.ended = True


async def test_nothing_that_was_forgotten_is_kept(autojump_clock):
    punctuality = Punctuality()
    thing = Thing(5.0)
    alive = weakref.ref(thing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(punctuality.run)
        punctuality.watch(thing)
        await trio.sleep(6)
        assert thing.ended
        punctuality.forget(thing)
        del thing
        await trio.testing.wait_all_tasks_blocked()
        assert alive() is None
        nursery.cancel_scope.cancel()
