"""TLS on top of any other stream, at either end of it.

Promises: the same calls and the same waits as the stream below has, so that who uses a stream need not know;
a failed handshake tells the peer why (an alert) before it ends. What comes with one receive is decrypted at
once, so nothing waits in here while the stream below is silent. Closing never waits for the peer.

A stream that ends without TLS's own goodbye counts as ended: HTTP frames its messages itself (RFC 9112,
section 9.8).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

import trio

from mcpmux.errors import ConnectFailed, RemoteProtocolError, TransportClosed
from mcpmux.transports.byte_stream import RECEIVE_BYTES, Part, PlainStream
from mcpmux.transports.tls.context import explain_client, explain_server

RECORD_BYTES = 64 * 1024  # encrypted at a time: what the kernel may not take is held no further ahead
LINGER_RECEIVES = 16  # after a failed handshake, so that the peer reads our alert, not a reset
LINGER_SECONDS = 2.0
HANDSHAKE_SECONDS = 15.0  # two round trips and some arithmetic: who takes longer does not speak TLS
HANDSHAKE_RECORD = 0x16  # the first byte that a client sends (RFC 8446, section 5.1)


class NotTls(RemoteProtocolError):
    """What a client sent to a TLS port is something else. Nothing was answered."""


@dataclass(slots=True, eq=False, repr=False)
class TlsStream:
    """A TLS stream over `byte_stream`, which it owns. `handshake` comes first. `peer` names the other end."""

    _below: ByteStream
    context: InitVar[ssl.SSLContext]
    _peer: str
    _: KW_ONLY
    server_side: InitVar[bool] = False
    server_name: InitVar[str | None] = None
    _incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO, init=False)
    _outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO, init=False)
    _tls: ssl.SSLObject = field(init=False)
    _explain: Callable[[ssl.SSLError], str] = field(init=False)
    _proven: bool = field(init=False)  # TLS 1.3: a server may refuse us after the handshake, until it answers
    _early: bytes = b""  # decrypted before anybody asked for it
    _unsent: bytes | memoryview = b""  # encrypted, and not taken by the stream below yet
    _owed: int = 0  # how many bytes of the caller's data `_unsent` stands for
    _ended: bool = False  # nothing more comes
    _broken: TransportClosed | ConnectFailed | None = None  # why it has ended
    _receiving: bool = False  # somebody waits in `receive`, to whom all that comes belongs

    def __post_init__(self, context: ssl.SSLContext, server_side: bool, server_name: str | None) -> None:
        self._explain = explain_client if server_side else explain_server
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._proven = server_side

    async def handshake(self, begun: bytes = b"") -> None:
        """Agree on keys; `begun` is what was received already.

        Raises ssl.SSLError, after telling the peer, and TransportClosed.
        """
        self._incoming.write(begun)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._below.receive()
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            except ssl.SSLError:
                with suppress(TransportClosed):
                    await self._flush()
                raise
        await self._flush()
        self._early = self._decrypt()

    def peer_certificate(self) -> dict[str, Any] | None:
        """What `ssl.SSLSocket.getpeercert` gives: of a certificate that was verified; else nothing."""
        return self._tls.getpeercert()

    async def receive(self) -> bytes:
        if self._early or self._ended:
            await trio.lowlevel.checkpoint()
            return self._take_early()
        self._receiving = True
        try:
            while not (self._early or self._ended):
                self._feed(await self._below.receive())
        except TransportClosed as error:
            self._ended, self._broken = True, error
        finally:
            self._receiving = False
        return self._take_early()

    async def receive_into(self, room: memoryview) -> int:
        data = await self.receive()
        taken = min(len(data), len(room))
        room[:taken] = data[:taken]
        self._early = data[taken:]
        return taken

    def receive_nowait(self) -> bytes | None:
        self._pump()
        return self._take_early() if self._early or self._ended else None

    def _take_early(self) -> bytes:
        data, self._early = self._early, b""
        if not data and self._broken is not None:
            raise self._broken
        return data

    def _pump(self) -> None:
        """Decrypt what the stream below has by now; some of it says nothing to anybody but TLS."""
        while not (self._early or self._ended):
            try:
                data = self._below.receive_nowait()
            except TransportClosed as error:
                self._ended, self._broken = True, error
                return
            if data is None:
                return
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
            self._early = self._decrypt()
        else:
            self._ended = True

    def _decrypt(self) -> bytes:
        parts: list[bytes] = []
        while self._incoming.pending:
            try:
                data = self._tls.read(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError as error:
                words = f"TLS: {self._explain(error)}"
                unproven = ConnectFailed(f"cannot connect to {self._peer}: {words}")
                self._ended, self._broken = True, TransportClosed(words) if self._proven else unproven
                break
            if not data:
                self._ended = True
                break
            parts.append(data)
        if parts:
            self._proven = True
        if self._outgoing.pending:
            with suppress(TransportClosed):
                self._flush_nowait()  # an alert, or the answer to a change of keys
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while (sent := self.send_nowait(rest)) < len(rest):
            rest = rest[sent:]
            await self.wait_sendable()

    def send_nowait(self, data: bytes | memoryview) -> int:
        if not self._flush_nowait():
            return 0
        done, self._owed = self._owed, 0
        view = memoryview(data)
        while done < len(view):
            try:
                written = self._tls.write(view[done : done + RECORD_BYTES])
            except ssl.SSLError as error:
                raise TransportClosed(f"TLS: {self._explain(error)}") from error
            if not self._flush_nowait():
                self._owed = written
                break
            done += written
        return done

    def send_parts_nowait(self, parts: Sequence[Part]) -> int:
        sent = 0
        for part in parts:
            taken = self.send_nowait(part)
            sent += taken
            if taken < len(part):
                break
        return sent

    async def wait_sendable(self) -> None:
        await self._below.wait_sendable()

    async def _flush(self) -> None:
        while not self._flush_nowait():
            await self._below.wait_sendable()

    def _flush_nowait(self) -> bool:
        """True when the stream below has taken everything."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._below.send_nowait(self._unsent) :]
            if self._unsent:
                return False

    def send_eof(self) -> None:
        self._say_goodbye()
        self._below.send_eof()

    def is_readable(self) -> bool:
        return bool(self._early) or self._ended or self._below.is_readable()

    def is_finished(self) -> bool:
        if self._receiving:
            return False  # that task sees the end by itself
        self._pump()
        return not self._early and self._ended

    def close(self) -> None:
        with suppress(TransportClosed):
            self._say_goodbye()
        self._below.close()

    def _say_goodbye(self) -> None:
        """Tell the peer that the stream is whole, unless something else of it is still stuck."""
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()  # it wants to read the peer's goodbye too, which we do not wait for
        self._flush_nowait()


ByteStream = PlainStream | TlsStream
"""A connected stream of either kind. `PlainStream` says what they do."""


async def linger(byte_stream: ByteStream, receives: int) -> None:
    """Say that nothing more comes, and receive a bounded rest: closing on it would reset what was sent.

    Raises TransportClosed.
    """
    byte_stream.send_eof()
    for _ in range(receives):
        if not await byte_stream.receive():
            return


async def connect_tls(
    byte_stream: ByteStream, context: ssl.SSLContext, peer: str, server_name: str
) -> TlsStream:
    """TLS to a server that is to prove that it is `server_name`, a host name or an IP address.

    `peer` names the server in errors. Raises ConnectFailed; `byte_stream` is closed whenever this raises.
    """
    name = server_name.partition("%")[0].rstrip(".")  # no zone of an address, no root of a name
    try:
        tls = TlsStream(byte_stream, context, peer, server_name=name)
        with trio.move_on_after(HANDSHAKE_SECONDS):
            await tls.handshake()
            return tls
        reason = f"the handshake did not end within {HANDSHAKE_SECONDS:g} s; does the server speak TLS there?"
    except ssl.SSLError as error:
        reason = explain_server(error)
    except (TransportClosed, ValueError) as error:
        reason = f"the handshake broke off: {error}"
    except BaseException:
        byte_stream.close()
        raise
    byte_stream.close()
    raise ConnectFailed(f"cannot connect to {peer}: TLS: {reason}")


async def accept_tls(byte_stream: ByteStream, context: ssl.SSLContext, peer: str) -> TlsStream:
    """TLS for a client that has connected. The caller owns the deadline, and the stream if this raises.

    Raises NotTls, and TransportClosed with the reason after the client was told.
    """
    begun = await byte_stream.receive()
    if not begun:
        raise TransportClosed("the client left before the handshake")
    if begun[0] != HANDSHAKE_RECORD:
        raise NotTls("this is a TLS port: use https://")
    tls = TlsStream(byte_stream, context, peer, server_side=True)
    try:
        await tls.handshake(begun)
    except ssl.SSLError as error:
        with trio.move_on_after(LINGER_SECONDS), suppress(TransportClosed):
            await linger(byte_stream, LINGER_RECEIVES)
        raise TransportClosed(explain_client(error)) from error
    return tls
