"""Streams to servers and to clients: real sockets, and bounds in virtual time."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MemoryReceiveStream, MemorySendStream

from mcpmux.config import ClientTls, ServerTls
from mcpmux.errors import ConnectFailed, TransportError
from mcpmux.transports.byte_stream import KEEP_ALIVE, open_socket
from mcpmux.transports.stream import (
    REFUSED_CONNECTIONS,
    PatientStream,
    open_tcp,
    open_tcp_listeners,
    open_unix,
    open_unix_listener,
    serve_streams,
)
from mcpmux.transports.tls import server_context


async def test_a_peer_that_reads_nothing_in_time_counts_as_gone(autojump_clock):
    sender = MemorySendStream(send_all_hook=trio.sleep_forever)
    stream = PatientStream(trio.StapledStream(sender, MemoryReceiveStream()), stall=5)
    with pytest.raises(trio.BrokenResourceError, match="read nothing for 5 s"):
        await stream.send_all(b"x")
    assert trio.current_time() == 5


async def test_a_peer_that_reads_slowly_is_waited_for(autojump_clock):
    async def dawdle() -> None:
        await trio.sleep(4)

    sender = MemorySendStream(send_all_hook=dawdle)
    stream = PatientStream(trio.StapledStream(sender, MemoryReceiveStream()), stall=5)
    await stream.send_all(b"x" * 100_000)
    assert trio.current_time() > 20
    assert await sender.get_data() == b"x" * 100_000


async def echo(stream, _crowded: str) -> None:
    async for chunk in stream:
        await stream.send_all(chunk)


@asynccontextmanager
async def serving(listeners, handle, limit=10, tls=None, share=10):
    stopping = trio.Event()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_streams, listeners, handle, stopping, limit, share, tls)
            yield stopping
            nursery.cancel_scope.cancel()


async def check_echo(stream) -> None:
    async with stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"


async def test_tcp_listeners_serve_on_the_port_that_they_tell():
    port, listeners = await open_tcp_listeners("127.0.0.1", 0)
    async with serving(listeners, echo):
        await check_echo(await open_tcp("127.0.0.1", port, None))


async def test_tls_wraps_what_tcp_opens(tmp_path: Path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = server_context(ServerTls(certificate=str(tmp_path / "server.pem")))
    port, listeners = await open_tcp_listeners("127.0.0.1", 0)
    async with serving(listeners, echo, tls=lambda: context):
        tls = ClientTls(ca=str(tmp_path / "ca.pem"), server_name="localhost")
        await check_echo(await open_tcp("127.0.0.1", port, tls))
        with pytest.raises(ConnectFailed, match=r"TLS: the server's certificate is not trusted.*`tls.ca`"):
            await open_tcp("127.0.0.1", port, ClientTls(server_name="localhost"))
        with pytest.raises(ConnectFailed, match="another name"):
            await open_tcp("127.0.0.1", port, ClientTls(ca=str(tmp_path / "ca.pem")))


async def test_who_cannot_be_reached_is_named(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            TransportError,
            match=f"cannot listen on 127.0.0.1:{port}: address already in use; .*choose another port",
        ):
            await open_tcp_listeners("127.0.0.1", port)
    with pytest.raises(TransportError, match="requested address; choose an address of this machine"):
        await open_tcp_listeners("192.0.2.1", 0)
    with pytest.raises(ConnectFailed, match=f"cannot connect to 127.0.0.1:{port}: connection refused"):
        await open_tcp("127.0.0.1", port, None)
    with pytest.raises(
        ConnectFailed, match=f"cannot connect to unix:{tmp_path}/no: no such file or directory"
    ):
        await open_unix(f"{tmp_path}/no")


async def test_connections_are_bounded_and_one_crash_touches_no_other():
    seen: list[str] = []
    release = trio.Event()

    async def handle(stream, crowded: str) -> None:
        seen.append(crowded)
        await stream.send_all(b"in")
        if len(seen) == 1:
            raise RuntimeError("a fault")
        await release.wait()

    port, listeners = await open_tcp_listeners("127.0.0.1", 0)
    async with serving(listeners, handle, limit=2):
        first = await trio.open_tcp_stream("127.0.0.1", port)
        assert await first.receive_some() == b"in"
        assert await first.receive_some() == b""
        streams = []
        for _ in range(2 + REFUSED_CONNECTIONS):
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
            assert await streams[-1].receive_some() == b"in"
        assert seen == [*[""] * 3, *["limits.max_connections"] * REFUSED_CONNECTIONS]
        surplus = await trio.open_tcp_stream("127.0.0.1", port)
        assert await surplus.receive_some() == b""
        for stream in (first, surplus, *streams):
            await trio.aclose_forcefully(stream)


def own_address() -> str:
    """Return an address of this machine that is not a loopback one; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


async def test_one_address_has_its_share_and_this_machine_is_not_one():
    seen: list[str] = []

    async def handle(stream, crowded: str) -> None:
        seen.append(crowded)
        await stream.send_all(b"in")
        await stream.receive_some()

    address = own_address()
    port, listeners = await open_tcp_listeners("0.0.0.0", 0)
    async with serving(listeners, handle, limit=6, share=2), AsyncExitStack() as streams:  # one is refused
        for host in (*[address] * 3, *["127.0.0.1"] * 4):
            stream = await streams.enter_async_context(await trio.open_tcp_stream(host, port))
            assert await stream.receive_some() == b"in"
        assert seen == ["", "", "limits.max_connections_per_address", "", "", "", ""]


async def test_stopping_lets_nobody_in_and_waits_for_those_inside():
    inside, release = trio.Event(), trio.Event()

    async def handle(stream, _crowded: str) -> None:
        inside.set()
        await release.wait()
        await stream.send_all(b"done")

    port, listeners = await open_tcp_listeners("127.0.0.1", 0)
    stopping = trio.Event()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_streams, listeners, handle, stopping, 10, 10)
            stream = await open_tcp("127.0.0.1", port, None)
            await inside.wait()
            stopping.set()
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ConnectFailed):
                await open_tcp("127.0.0.1", port, None)
            release.set()
            async with stream:
                assert await stream.receive_some() == b"done"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_a_unix_socket_has_its_permissions_and_is_removed_at_the_end(tmp_path: Path, mode: int):
    path = tmp_path / "mux.sock"
    async with open_unix_listener(str(path), mode) as listener, serving([listener], echo):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        await check_echo(await open_unix(str(path)))
    assert not path.exists()


async def test_a_socket_that_a_dead_process_left_behind_is_replaced(tmp_path: Path):
    path = str(tmp_path / "mux.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    async with open_unix_listener(path, 0o600) as listener, serving([listener], echo):
        await check_echo(await open_unix(path))


async def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path):
    path = str(tmp_path / "mux.sock")
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(path)
        alive.listen(0)
        for _ in range(3):  # also with its queue full
            with pytest.raises(TransportError, match="another process listens there already"):
                async with open_unix_listener(path, 0o600):
                    pass
        assert stat.S_ISSOCK(os.lstat(path).st_mode)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("elsewhere")])
async def test_any_other_file_is_left_alone(tmp_path: Path, make):
    path = tmp_path / "mux.sock"
    make(path)
    with pytest.raises(TransportError, match="a file that is no socket is there"):
        async with open_unix_listener(str(path), 0o600):
            pass
    assert stat.S_IFMT(os.lstat(path).st_mode) != stat.S_IFSOCK


async def test_a_file_that_is_not_ours_any_more_is_not_removed(tmp_path: Path):
    path = tmp_path / "mux.sock"
    async with open_unix_listener(str(path), 0o600):
        path.rename(tmp_path / "ours")
        path.touch()
    assert path.exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("x" * 200, "path too long"),
        ("no/such/directory", "no such file or directory; make the folder"),
        ("a\0b", "null"),
    ],
)
async def test_a_path_that_cannot_be_is_told(tmp_path: Path, path: str, reason: str):
    with pytest.raises(TransportError, match=f"(?s)cannot listen on unix:.*{reason}"):
        async with open_unix_listener(f"{tmp_path}/{path}", 0o600):
            pass


def options_of(sock):
    return [(level, option, sock.getsockopt(level, option)) for level, option, _ in KEEP_ALIVE]


async def test_the_kernel_watches_every_connection_to_a_server():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with listeners[0]:
        byte_stream = await open_socket("127.0.0.1", port)
        stream = await open_tcp("127.0.0.1", port, None)
        assert isinstance(stream, trio.SocketStream)
        async with stream:
            assert options_of(byte_stream.socket) == KEEP_ALIVE
            assert options_of(stream.socket) == KEEP_ALIVE
        await byte_stream.aclose()
