"""Rows: mcpmux that speaks TLS or asks for a token, beside mcpmux that does not; on the same core, in turns.

Connections are kept, so handshakes are a small part of a run. All requests show the same token, as
those of a client do until it expires.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from tempfile import TemporaryDirectory
from threading import Thread

import msgspec
import trustme
from joserfc import jwt
from joserfc.jwk import RSAKey

from benchmarks.asking import Headers
from benchmarks.bench import QUIET, UPSTREAMS, Bench
from benchmarks.goal import at_least
from benchmarks.naming import http_config
from benchmarks.process import Child
from benchmarks.report import Row, rate_row

HOST = "127.0.0.1"
LISTENER = "[[listeners.http]]\nport = 0\n"
TOKEN = "mcpmux_benchmark_0123456789abcdefghijklmnopqrstuvw"
TOKEN_SECONDS = 24 * 3600
RESOURCE = f"http://{HOST}/mcp"
KEYS = "keys.json"


def tls_to_clients(bench: Bench) -> list[Row]:
    """Measure clients that speak HTTPS."""
    with bench.upstream(UPSTREAMS) as upstream, _certified() as (certificate, _):
        servers = http_config(upstream.lines(UPSTREAMS))
        secured = f'{LISTENER}tls.certificate = "{certificate}"\n{servers}'
        return _beside(bench, "TLS to clients", LISTENER + servers, secured)


def tls_to_servers(bench: Bench) -> list[Row]:
    """Measure servers that speak HTTPS."""
    with (
        _certified() as (certificate, ca),
        bench.upstream(UPSTREAMS) as plain,
        bench.upstream(UPSTREAMS, f"--tls={certificate}") as secured,
    ):
        servers = http_config(plain.lines(UPSTREAMS))
        secure_servers = http_config(secured.lines(UPSTREAMS), f'tls.ca = "{ca}"\n')
        return _beside(bench, "TLS to servers", LISTENER + servers, LISTENER + secure_servers)


def token(bench: Bench) -> list[Row]:
    """Measure clients that show a token whose hash is in the configuration."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    return _asking(bench, "a static token", f'[auth.tokens.benchmark]\nsha256 = "{digest}"\n', TOKEN)


def jwt_token(bench: Bench) -> list[Row]:
    """Measure clients that show a token of an authorization server, which mcpmux asks for its keys."""
    key = RSAKey.generate_key(2048, {"kid": "benchmark"})
    with TemporaryDirectory() as folder, _serving(folder) as issuer:
        Path(folder, KEYS).write_bytes(msgspec.json.encode({"keys": [key.as_dict(private=False)]}))
        claims = {"iss": issuer, "aud": RESOURCE, "sub": "benchmark", "exp": int(time.time()) + TOKEN_SECONDS}
        shown = jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)
        auth = f'[auth]\nresource = "{RESOURCE}"\n'
        auth += f'[auth.issuers.benchmark]\nissuer = "{issuer}"\njwks_url = "{issuer}/{KEYS}"\n'
        return _asking(bench, "a JWT", auth, shown)


def _asking(bench: Bench, what: str, auth: str, shown: str) -> list[Row]:
    """Measure with a configuration that asks for the token of each request, beside one that does not."""
    with bench.upstream(UPSTREAMS) as upstream:
        plain = LISTENER + http_config(upstream.lines(UPSTREAMS))
        return _beside(bench, what, plain, auth + plain, [("Authorization", f"Bearer {shown}")])


def _beside(bench: Bench, what: str, plain: str, secured: str, headers: Headers = ()) -> list[Row]:
    """Measure two configurations. `headers`: of the requests to the second."""
    measure = f"read 1 KB, 64 connections, modern, {what} (direct: without)"
    bench.note(measure)
    start = partial(Child, ["mcpmux", "serve", "-", *QUIET], bench.mux_core)
    with start(plain) as mux, start(secured) as other:
        pairs = bench.side_by_side(mux, other, headers)
    return [rate_row(measure, pairs, at_least(0.8))]


@contextmanager
def _certified() -> Iterator[tuple[Path, Path]]:
    """Yield a file with a key and certificate for this host, and one with the authority that signed it."""
    authority = trustme.CA()
    with TemporaryDirectory() as folder:
        certificate, ca = Path(folder, "certificate.pem"), Path(folder, "ca.pem")
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(certificate)
        authority.cert_pem.write_to_path(ca)
        yield certificate, ca


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no requests."""


@contextmanager
def _serving(folder: str) -> Iterator[str]:
    """Serve the files in `folder`, and yield the URL below which they are."""
    with TCPServer((HOST, 0), partial(_Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, name="keys").start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
