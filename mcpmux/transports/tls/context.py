"""TLS contexts out of settings, and TLS's errors in words that say what to change.

Promises: TLS 1.2 or newer; a file that cannot be used is named with its key and what is wrong with it; no
passphrase is asked for on a terminal or shown. Building a context reads files: do it in a thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from mcpmux.config import ClientTls, Secret, ServerTls
from mcpmux.errors import ConfigError

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
