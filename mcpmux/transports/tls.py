"""TLS: contexts out of settings, errors that name the setting to change, and streams on top of any other.

Promises of contexts: TLS 1.2 or newer; an error names an unusable file, its key and the problem; no
passphrase is asked for on a terminal or shown. Building a context reads files: do it in a thread.

Promises of streams: the same calls and waits as the stream below, so that users need not know which one they
have; a failed handshake sends the peer the reason (an alert) before it ends. Closing never waits for
the peer.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from mcpmux.config import ClientTls, Secret, ServerTls
from mcpmux.errors import ConfigError, ConnectFailed, RemoteProtocolError, TransportClosed
from mcpmux.protocol.envelope import Part
from mcpmux.protocol.principal import is_name
from mcpmux.transports.byte_stream import RECEIVE_BYTES, PlainStream, reason_of
from mcpmux.transports.thread import run_in_thread

CurrentContext = Callable[[], ssl.SSLContext]
"""Returns the context for a connection that is made now."""

HTTP_ALPN = ("http/1.1",)

READ_SECONDS = 10.0  # for all files together, when they are read again


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Return the context for a listener. Raises ConfigError that names the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, HTTP_ALPN)
    _load_certificate(context, tls.certificate, tls.key, tls.key_password)
    if tls.client_ca is not None:
        _load_authorities(context, "tls.client_ca", tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: ClientTls, alpn: tuple[str, ...] = HTTP_ALPN) -> ssl.SSLContext:
    """Return the context for connections to one server. Raises ConfigError that names the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, alpn)
    if tls.ca is not None:
        _load_authorities(context, "tls.ca", tls.ca)
    elif tls.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if not tls.verify:
        # In this order: the mode cannot be CERT_NONE while host names are checked.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        _load_certificate(context, tls.certificate, tls.key, tls.key_password)
    return context


def _harden(context: ssl.SSLContext, alpn: tuple[str, ...]) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could make us work by renegotiating; compression can betray secrets by the length (CRIME).
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if alpn:
        context.set_alpn_protocols(list(alpn))


def _load_authorities(context: ssl.SSLContext, key: str, path: str) -> None:
    _expect(key, path, "certificate")
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise _unfit(key, path, f"its certificates cannot be read: {_words(error)}") from None


def _load_certificate(
    context: ssl.SSLContext, certificate: str, key: str | None, key_password: Secret | None
) -> None:
    # OpenSSL's own errors do not tell which of the two files is wrong.
    _expect("tls.certificate", certificate, "certificate")
    key_name, key_path = ("tls.certificate", certificate) if key is None else ("tls.key", key)
    hint = "" if key is not None else "; give the file of the key in `tls.key`"
    _expect(key_name, key_path, "private key", hint)
    password = "" if key_password is None else key_password.reveal()
    asked = False

    # Without it OpenSSL would ask on the terminal.
    def passphrase() -> str:
        """Return the passphrase of an encrypted key."""
        nonlocal asked
        asked = True
        return password

    try:
        context.load_cert_chain(certificate, key, passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        if asked and not password:
            reason = "the private key is encrypted: give its passphrase in `tls.key_password`"
        elif asked:
            reason = "the passphrase in `tls.key_password` does not open the private key"
        elif isinstance(error, ssl.SSLError) and error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            reason = f"the private key is not that of the certificate in {certificate}"
        else:
            reason = f"certificate and key cannot be used: {_words(error)}"
        raise _unfit(key_name, key_path, reason) from None


def _expect(key: str, path: str, what: str, hint: str = "") -> None:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _unfit(key, path, f"cannot read the file: {_words(error)}") from None
    if f"{what.upper()}-----".encode() not in data:
        raise _unfit(key, path, f"no {what} in PEM format in it{hint}")


def _unfit(key: str, path: str, problem: str) -> ConfigError:
    return ConfigError([f"{key}: {path}: {problem}"])


def _words(error: ssl.SSLError | OSError | ValueError) -> str:
    words = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
    return (words or type(error).__name__).lower().replace("_", " ")


_VERIFICATION = {
    10: "has expired",
    9: "is not valid yet; is this machine's clock right?",
    **dict.fromkeys(
        (62, 64),
        "is for another name ({lower}); "
        "give the name that it has in `tls.server_name` if this is the right server",
    ),
    **dict.fromkeys(
        (2, 18, 19, 20, 21), "is not trusted ({message}): give the authority that signed it in `tls.ca`"
    ),
}
"""By codes of OpenSSL (x509_vfy.h). The last ones: no issuer found, self-signed, an unknown issuer."""

_NO_TLS = (
    "^(WRONG_VERSION_NUMBER|HTTP_REQUEST|HTTPS_PROXY_REQUEST|PACKET_LENGTH_TOO_LONG"
    "|RECORD_LAYER_FAILURE|UNEXPECTED_MESSAGE|BAD_RECORD_TYPE)$"
)
_OLD_VERSION = "^(UNSUPPORTED_PROTOCOL|TLSV1_ALERT_PROTOCOL_VERSION|NO_PROTOCOLS_AVAILABLE)$"
_ON_CERTIFICATE = "ALERT(?=.*(UNKNOWN_CA|BAD_CERTIFICATE|_CERTIFICATE_|ACCESS_DENIED|DECRYPT_ERROR))"

# A pattern for OpenSSL's reason → its meaning. The first match counts.
_OF_SERVER = {
    _NO_TLS: "the server does not speak TLS there; is it http:// (no s)?",
    _OLD_VERSION: "the server speaks no version of TLS from 1.2 on",
    "CERTIFICATE_REQUIRED": (
        "the server wants a client certificate: give one in `tls.certificate` and `tls.key`"
    ),
    _ON_CERTIFICATE: "the server refuses our client certificate ({alert}): see `tls.certificate`",
    "HANDSHAKE_FAILURE": (
        "the server refuses the handshake; it may want a client certificate (`tls.certificate`)"
    ),
}
_OF_CLIENT = {
    "^PEER_DID_NOT_RETURN_A_CERTIFICATE$": (
        "the client shows no certificate, and this listener's `tls.client_ca` asks for one"
    ),
    _OLD_VERSION: "the client speaks no version of TLS from 1.2 on",
    _ON_CERTIFICATE: "the client refuses our certificate ({alert})",
}


def explain_server(error: ssl.SSLError) -> str:
    """Return the problem with a server that we connect to, and the key of its `tls` table that may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = error.verify_message
        words = _VERIFICATION.get(error.verify_code, "is not accepted: {message}")
        return "the server's certificate " + words.format(message=message, lower=message.rstrip(".").lower())
    ended = "the server closed the connection during the handshake; does it speak TLS there?"
    return _explain(error, ended, _OF_SERVER)


def explain_client(error: ssl.SSLError) -> str:
    """Return the problem with a client that connected to us."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    return _explain(error, "the client left during the handshake", _OF_CLIENT)


def _explain(error: ssl.SSLError, ended: str, meanings: Mapping[str, str]) -> str:
    # For a stream that ends during the handshake, Python 3.11.7 raises the first, 3.11.2 the second.
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ended
    reason = error.reason or ""
    alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
    for pattern, words in meanings.items():
        if re.search(pattern, reason):
            return words.format(alert=alert)
    return _words(error)


_KINDS = {"URI": "uri", "email": "email", "DNS": "dns"}  # the ssl module's names, most specific first


def holder_of(certificate: Mapping[str, Any] | None) -> str:
    """Return the holder's name, as `dns:host.example`; "" if the certificate has none.

    `certificate` is the value of `ssl.SSLSocket.getpeercert`. The name is the first of: a URI (SPIFFE and the
    like), an e-mail address or a DNS name of its subjectAltName, the common name of its subject.
    """
    facts = certificate or {}
    names = [(word, kind, facts.get("subjectAltName", ())) for kind, word in _KINDS.items()]
    names += [("cn", "commonName", part) for part in facts.get("subject", ())]
    for word, attribute, pairs in names:
        for kind, value in pairs:
            if kind == attribute and is_name(value):
                # The prefix keeps a name of one kind from passing for one of another.
                return f"{word}:{value}"
    return ""


@dataclass(eq=False)
class _Served:
    """The context of one place: `now` is for handshakes, `mark` shows whether its files have changed."""

    where: str
    tls: ServerTls | ClientTls
    now: ssl.SSLContext
    mark: bytes

    def current(self) -> ssl.SSLContext:
        return self.now


class TlsContexts:
    """The TLS contexts of one process, for listeners and upstreams, whose files are read again on demand.

    Promises: a handshake uses the files of the last successful reading, all of them or none; existing
    connections go on. Unusable files leave the old ones in use.
    """

    def __init__(self) -> None:
        self._served: list[_Served] = []

    async def open(self, where: str, tls: ServerTls | ClientTls) -> CurrentContext:
        """Return the contexts for a listener, or for connections to an upstream. Raises ConfigError."""
        # Upstreams with the same settings share one: a store of authorities is large.
        contexts = (context for context in self._served if isinstance(tls, ClientTls) and context.tls == tls)
        if (served := next(contexts, None)) is not None:
            return served.current
        mark, context = await trio.to_thread.run_sync(_read_files, where, tls)
        served = _Served(where, tls, context, mark)
        self._served.append(served)
        return served.current

    async def renew(self, wanted: Collection[ServerTls | ClientTls]) -> tuple[str, ...]:
        """Read all files of these settings again; return the places whose files have changed.

        Other settings of upstreams are forgotten. A listener keeps what it has. Raises ConfigError, without
        any change, if some files are unusable or cannot be read in time.
        """
        changed: list[tuple[_Served, bytes, ssl.SSLContext]] = []
        problems: list[str] = []
        with trio.move_on_after(READ_SECONDS) as patience:
            for served in self._served:
                # Files may go together with their settings. The system's authorities are no file.
                if served.tls not in wanted or served.tls == ClientTls():
                    continue
                try:
                    mark, context = await run_in_thread(_read_files, served.where, served.tls)
                except ConfigError as error:
                    problems += error.problems
                    continue
                except OSError as error:
                    problems.append(f"{served.where}: the files cannot be read: {reason_of(error)}")
                    continue
                if mark != served.mark:
                    changed.append((served, mark, context))
        if patience.cancelled_caught:
            problems.append(f"the files of certificates cannot be read within {READ_SECONDS:g} s")
        if problems:
            raise ConfigError(problems)
        # Only now, when all of them are good, and without a wait in between.
        for served, mark, context in changed:
            # A new context each time, so that no TLS session of an older one can be resumed.
            served.mark, served.now = mark, context
        self._served = [
            served for served in self._served if isinstance(served.tls, ServerTls) or served.tls in wanted
        ]
        return tuple(served.where for served, _, _ in changed)


def _read_files(where: str, tls: ServerTls | ClientTls) -> tuple[bytes, ssl.SSLContext]:
    try:
        mark = hashlib.sha256()  # taken before the files are used: a change in between is noticed next time
        authorities = tls.client_ca if isinstance(tls, ServerTls) else tls.ca
        for path in (tls.certificate, tls.key, authorities):
            if path is not None:
                with suppress(OSError):  # the functions below raise the error that explains it
                    mark.update(Path(path).read_bytes())
        context = server_context(tls) if isinstance(tls, ServerTls) else client_context(tls)
    except ConfigError as error:
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None
    return mark.digest(), context


RECORD_BYTES = 64 * 1024  # encrypted at a time, as the kernel may not take more
LINGER_RECEIVES = 16  # after a failed handshake, so that the peer reads our alert, not a reset
LINGER_SECONDS = 2.0
HANDSHAKE_SECONDS = 15.0  # two round trips and some arithmetic: a slower server does not speak TLS
HANDSHAKE_RECORD = 0x16  # the first byte that a client sends (RFC 8446, section 5.1)


class NotTls(RemoteProtocolError):
    """A client sent something else to a TLS port. It has got no answer yet."""


class TlsStream:
    """A TLS stream over `byte_stream`, which it owns. `handshake` comes first. `peer` names the other end."""

    def __init__(
        self, byte_stream: ByteStream, context: ssl.SSLContext, peer: str, server_name: str | None = None
    ) -> None:
        """`server_name`: the name that the server's certificate must have; None if the peer is a client."""
        self._below = byte_stream
        self._peer = peer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._proven = is_server = server_name is None  # TLS 1.3: a server may refuse us until it answers
        self._explain = explain_client if is_server else explain_server
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, server_name)
        self._early = b""  # decrypted, and not received yet
        self._unsent: bytes | memoryview = b""  # encrypted, and not taken by the stream below yet
        self._owed = 0  # how many bytes of the caller's data `_unsent` stands for
        self._ended = False  # no more bytes come
        self._broken: TransportClosed | ConnectFailed | None = None  # why it has ended
        self._receiving = False  # a task waits in `receive`, and all that comes is for it

    @property
    def descriptor(self) -> int:
        """The socket's descriptor."""
        return self._below.descriptor

    @property
    def early(self) -> bool:
        """Whether decrypted bytes or the end can be received, though the socket may be silent."""
        return bool(self._early) or self._ended

    async def handshake(self, begun: bytes = b"") -> None:
        """Do the handshake; `begun`: bytes that were received already.

        Raises ssl.SSLError, after sending the peer an alert, and TransportClosed.
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
        # The last receive of the handshake may have brought the first data.
        self._early = self._decrypt()

    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the peer's certificate as `ssl.SSLSocket.getpeercert` does: empty if it was not verified."""
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
            self._ended, self._broken = True, error.anew()
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
            raise self._broken.anew()
        return data

    def _pump(self) -> None:
        """Decrypt the bytes that the stream below has now; some of them are records for TLS alone."""
        while not (self._early or self._ended):
            try:
                data = self._below.receive_nowait()
            except TransportClosed as error:
                self._ended, self._broken = True, error.anew()
                return
            if data is None:
                return
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        # All of it is decrypted now: what waited in here would be found by no poller of the socket below.
        if data:
            self._incoming.write(data)
            self._early = self._decrypt()
        else:
            # Also without TLS's closing alert: HTTP frames its messages, so a cut is noticed (RFC 9112
            # section 9.8).
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
                # In TLS 1.3 a server refuses our certificate only after the handshake: that is a failure to
                # connect, until it has sent any data.
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
        # Bytes that were encrypted in an earlier call count now, when the stream below has taken them.
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
        """Pass encrypted bytes on without waiting; return whether the stream below has taken all."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            sent = self._below.send_nowait(self._unsent)
            self._unsent = self._unsent[sent:]
            if self._unsent:
                return False

    def send_eof(self) -> None:
        self._say_goodbye()
        self._below.send_eof()

    def is_readable(self) -> bool:
        return bool(self._early) or self._ended or self._below.is_readable()

    def is_finished(self) -> bool:
        if self._receiving:
            return False  # that task sees the end
        self._pump()
        return not self._early and self._ended

    def close(self) -> None:
        with suppress(TransportClosed):
            self._say_goodbye()
        self._below.close()

    def _say_goodbye(self) -> None:
        """Send TLS's closing alert, as far as the stream below takes it now."""
        # Without the peer's closing alert, for which closing never waits, it raises.
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._flush_nowait()


ByteStream = PlainStream | TlsStream
"""A connected stream of either kind. `PlainStream` documents the methods."""


async def linger(byte_stream: ByteStream, receives: int) -> None:
    """Receive and discard a bounded number of chunks. Raises TransportClosed."""
    # Closing a socket with unread bytes resets it, and the peer would lose what we have sent.
    byte_stream.send_eof()
    for _ in range(receives):
        if not await byte_stream.receive():
            return


async def connect_tls(
    byte_stream: ByteStream, context: ssl.SSLContext, peer: str, server_name: str
) -> TlsStream:
    """Open TLS to a server whose certificate must be for `server_name`, a host name or an IP address.

    `peer` names the server in errors. Raises ConnectFailed; `byte_stream` is closed whenever this raises.
    """
    name = server_name.partition("%")[0].rstrip(".")  # certificates have no address zone and no root dot
    try:
        tls = TlsStream(byte_stream, context, peer, name)
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
    """Accept TLS from a client that has connected. The caller owns the deadline, and the stream on an error.

    Raises NotTls, and TransportClosed with the reason, after the client was sent an alert.
    """
    begun = await byte_stream.receive()
    if not begun:
        raise TransportClosed("the client left before the handshake")
    # Looked at first: to a client without TLS an alert is noise, and plain HTTP can still answer it.
    if begun[0] != HANDSHAKE_RECORD:
        raise NotTls("this is a TLS port: use https://")
    tls = TlsStream(byte_stream, context, peer)
    try:
        await tls.handshake(begun)
    except ssl.SSLError as error:
        with trio.move_on_after(LINGER_SECONDS), suppress(TransportClosed):
            await linger(byte_stream, LINGER_RECEIVES)
        raise TransportClosed(explain_client(error)) from error
    return tls
