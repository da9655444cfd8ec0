"""TLS contexts out of settings, and TLS's errors in words that say what to change.

Promises: TLS 1.2 or newer; a file that cannot be used is named with its key and what is wrong with it; no
passphrase is asked for on a terminal or shown. Building a context reads files: do it in a thread.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from mcpmux.config import ClientTls, Secret, ServerTls
from mcpmux.errors import ConfigError
from mcpmux.protocol.principal import is_name

CurrentContext = Callable[[], ssl.SSLContext]
"""What a connection that comes now is secured with.

Each reading of the files has a context of its own: no session with an older one opens a door any more.
"""

HTTP_ALPN = ("http/1.1",)

_CERTIFICATE_MARK = b"-----BEGIN CERTIFICATE-----"
_TRUSTED_MARK = b"-----BEGIN TRUSTED CERTIFICATE-----"
_KEY_MARK = b"PRIVATE KEY-----"

_EXPIRED, _NOT_YET_VALID, _WRONG_HOST, _WRONG_ADDRESS = 10, 9, 62, 64
_UNTRUSTED = frozenset({2, 18, 19, 20, 21})
"""Codes of OpenSSL (x509_vfy.h): no issuer found, signed by itself, by something unknown."""

# Of a stream that ends during the handshake: Python 3.11.7 says the first, 3.11.2 the second.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"}
    | {"RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE", "BAD_RECORD_TYPE"}
)
_OLD_VERSION = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"})
_ON_CERTIFICATE = ("UNKNOWN_CA", "BAD_CERTIFICATE", "_CERTIFICATE_", "ACCESS_DENIED", "DECRYPT_ERROR")


def server_context(tls: ServerTls, alpn: tuple[str, ...] = HTTP_ALPN) -> ssl.SSLContext:
    """For a listener. Raises ConfigError that names the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, alpn)
    _load_certificate(context, tls.certificate, tls.key, tls.key_password)
    if tls.client_ca is not None:
        _load_authorities(context, "tls.client_ca", tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: ClientTls, alpn: tuple[str, ...] = HTTP_ALPN) -> ssl.SSLContext:
    """For connections to one server. Raises ConfigError that names the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, alpn)
    if tls.ca is not None:
        _load_authorities(context, "tls.ca", tls.ca)
    elif tls.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        _load_certificate(context, tls.certificate, tls.key, tls.key_password)
    return context


def _harden(context: ssl.SSLContext, alpn: tuple[str, ...]) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if alpn:
        context.set_alpn_protocols(list(alpn))


def _load_authorities(context: ssl.SSLContext, key: str, path: str) -> None:
    _expect_certificate(key, path)
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise _unfit(key, path, f"its certificates cannot be read: {_words(error)}") from None


def _load_certificate(
    context: ssl.SSLContext, certificate: str, key: str | None, key_password: Secret | None
) -> None:
    _expect_certificate("tls.certificate", certificate)
    key_name, key_path = ("tls.certificate", certificate) if key is None else ("tls.key", key)
    if _KEY_MARK not in _read(key_name, key_path):
        hint = "" if key is not None else "; give the file of the key in `tls.key`"
        raise _unfit(key_name, key_path, f"no private key in PEM format in it{hint}")
    asked = False

    def passphrase() -> str:
        """Called for an encrypted key only; without it OpenSSL would ask on the terminal."""
        nonlocal asked
        asked = True
        return key_password.reveal() if key_password is not None else ""

    try:
        context.load_cert_chain(certificate, key, passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = _key_trouble(error, asked, key_password, certificate)
    else:
        return
    raise _unfit(key_name, key_path, reason)


def _key_trouble(
    error: ssl.SSLError | OSError | ValueError, asked: bool, given: Secret | None, certificate: str
) -> str:
    if asked and (given is None or not given.reveal()):
        return "the private key is encrypted: give its passphrase in `tls.key_password`"
    if asked:
        return "the passphrase in `tls.key_password` does not open the private key"
    if isinstance(error, ssl.SSLError) and error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"the private key is not that of the certificate in {certificate}"
    return f"certificate and key cannot be used: {_words(error)}"


def _expect_certificate(key: str, path: str) -> None:
    data = _read(key, path)
    if _CERTIFICATE_MARK not in data and _TRUSTED_MARK not in data:
        raise _unfit(key, path, "no certificate in PEM format in it")


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unfit(key, path, f"cannot read the file: {_words(error)}") from None


def _unfit(key: str, path: str, problem: str) -> ConfigError:
    return ConfigError([f"{key}: {path}: {problem}"])


def _words(error: ssl.SSLError | OSError | ValueError) -> str:
    words = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
    return (words or type(error).__name__).lower().replace("_", " ")


def explain_server(error: ssl.SSLError) -> str:
    """What went wrong with a server that we connect to, and the key of its `tls` table that may help."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_verification(error)
    if isinstance(error, _ENDED):
        return "the server closed the connection during the handshake; does it speak TLS there?"
    if reason in _NO_TLS:
        return "the server does not speak TLS there; is it http:// (no s)?"
    if reason in _OLD_VERSION:
        return "the server speaks no version of TLS from 1.2 on"
    if "CERTIFICATE_REQUIRED" in reason:
        return "the server wants a client certificate: give one in `tls.certificate` and `tls.key`"
    if "ALERT" in reason and any(part in reason for part in _ON_CERTIFICATE):
        return f"the server refuses our client certificate ({_alert(reason)}): see `tls.certificate`"
    if "HANDSHAKE_FAILURE" in reason:
        return "the server refuses the handshake; it may want a client certificate (`tls.certificate`)"
    return _words(error)


def _explain_verification(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "the server's certificate has expired"
    if code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet; is this machine's clock right?"
    if code in (_WRONG_HOST, _WRONG_ADDRESS):
        return (
            f"the server's certificate is for another name ({error.verify_message.rstrip('.').lower()}); "
            "give the name that it has in `tls.server_name` if this is the right server"
        )
    if code in _UNTRUSTED:
        return (
            f"the server's certificate is not trusted ({error.verify_message}): "
            "give the authority that signed it in `tls.ca`"
        )
    return f"the server's certificate is not accepted: {error.verify_message}"


def explain_client(error: ssl.SSLError) -> str:
    """What went wrong with a client that connected to us."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, _ENDED):
        return "the client left during the handshake"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client shows no certificate, and this listener's `tls.client_ca` asks for one"
    if reason in _OLD_VERSION:
        return "the client speaks no version of TLS from 1.2 on"
    if "ALERT" in reason and any(part in reason for part in _ON_CERTIFICATE):
        return f"the client refuses our certificate ({_alert(reason)})"
    return _words(error)


def _alert(reason: str) -> str:
    return reason.partition("ALERT_")[2].lower().replace("_", " ")


# A client certificate's holder as a principal. Pure: TLS has verified the certificate already.
#
# The name is the first of: a URI (SPIFFE and the like), an e-mail address or a DNS name of its
# subjectAltName, the common name of its subject. The kind stands in it, so that no name of one kind passes
# for one of another.

_KINDS = {"URI": "uri", "email": "email", "DNS": "dns"}  # as the ssl module calls them, most telling first


def holder_of(certificate: Mapping[str, Any] | None) -> str:
    """`dns:host.example`, from what `ssl.SSLSocket.getpeercert` gives; "" when it names nobody."""
    if not certificate:
        return ""
    names = [(kind, value) for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    for kind, word in _KINDS.items():
        for found, value in names:
            if found == kind and is_name(value):
                return f"{word}:{value}"
    return next((f"cn:{value}" for value in _common_names(certificate) if is_name(value)), "")


def _common_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                yield value


# The certificates that a process shows, and the authorities that it trusts, read again while it serves.
#
# Promises: a handshake uses the files as they were read last, all of them or none; connections that exist
# go on. Files that are of no use change nothing.

READ_SECONDS = 10.0  # for all files, when they are read again


@dataclass(eq=False)
class _Served:
    """What is shown at one place: `now` is for handshakes, `mark` tells whether its files have changed."""

    where: str
    tls: ServerTls | ClientTls
    now: ssl.SSLContext
    mark: bytes

    def current(self) -> ssl.SSLContext:
        """See CurrentContext."""
        return self.now


class TlsContexts:
    """Those of one process: its listeners', and those towards upstreams."""

    def __init__(self) -> None:
        self._served: list[_Served] = []

    def __repr__(self) -> str:
        return f"<TlsContexts {[served.where for served in self._served]}>"

    async def open(self, where: str, tls: ServerTls | ClientTls) -> CurrentContext:
        """What connections of a listener, or to an upstream, are secured with.

        The same for upstreams with the same settings: a store of authorities is large. Raises ConfigError for
        files that are of no use.
        """
        known = (each for each in self._served if isinstance(tls, ClientTls) and each.tls == tls)
        if (served := next(known, None)) is not None:
            return served.current
        mark, context = await trio.to_thread.run_sync(_renewal_read, where, tls)
        served = _Served(where, tls, context, mark)
        self._served.append(served)
        return served.current

    def keep(self, towards: Collection[ClientTls]) -> None:
        """Connections to upstreams have one of these settings from now on: others are not read again."""
        self._served = [
            each for each in self._served if isinstance(each.tls, ServerTls) or each.tls in towards
        ]

    async def renew(self) -> tuple[str, ...]:
        """Read all files again: where they are other ones now.

        Raises ConfigError when some are of no use, or cannot be read in time; nothing has changed then.
        """
        read: list[tuple[bytes, ssl.SSLContext]] = []
        problems: list[str] = []
        with trio.move_on_after(READ_SECONDS) as patience:
            for served in self._served:
                if served.tls == ClientTls():
                    read.append((served.mark, served.now))  # the system's authorities, and no file
                    continue
                try:
                    read.append(
                        await trio.to_thread.run_sync(
                            _renewal_read, served.where, served.tls, abandon_on_cancel=True
                        )
                    )
                except ConfigError as error:
                    problems += error.problems
        if patience.cancelled_caught:
            problems.append(f"the files of certificates cannot be read within {READ_SECONDS:g} s")
        if problems:
            raise ConfigError(problems)
        changed = []
        for served, (mark, context) in zip(self._served, read, strict=True):
            if mark != served.mark:
                served.mark, served.now = mark, context
                changed.append(served.where)
        return tuple(changed)


def _renewal_read(where: str, tls: ServerTls | ClientTls) -> tuple[bytes, ssl.SSLContext]:
    try:
        mark = hashlib.sha256()  # of the files before they are used: what comes between is read next time
        authorities = tls.client_ca if isinstance(tls, ServerTls) else tls.ca
        for path in (tls.certificate, tls.key, authorities):
            mark.update(_bytes_of(path) if path is not None else b"")
        context = server_context(tls) if isinstance(tls, ServerTls) else client_context(tls)
    except ConfigError as error:
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None
    return mark.digest(), context


def _bytes_of(path: str) -> bytes:
    """Nothing for a file that cannot be read, of which `server_context` says why."""
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""
