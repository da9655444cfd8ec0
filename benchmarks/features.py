"""Rows: mcpmux with a feature beside mcpmux without it, on the same core, in turns.

With TLS, connections are kept, so handshakes are a small part of a run. All requests show the same token, as
those of a client do until it expires. Runs of what keeps or shows traffic are long: files rotate and are
compressed meanwhile, and no queue can take all of it. With both cores, of which load generator and upstreams
use one, the threads that write files can run beside the exchanges.

In a closed loop connections wait for answers: at a rate of 0.6 the mean latency is 1.67 times as long.
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
from benchmarks.naming import ADMIN, AUDIT, CAPTURE, http_config
from benchmarks.process import Child
from benchmarks.report import Row, at_least, at_most, rate_row, shares, time_row

HOST = "127.0.0.1"
LISTENER = "[[listeners.http]]\nport = 0\n"
TOKEN = "mcpmux_benchmark_0123456789abcdefghijklmnopqrstuvw"
TOKEN_SECONDS = 24 * 3600
RESOURCE = f"http://{HOST}/mcp"
KEYS = "keys.json"
METADATA = CAPTURE.replace("full", "metadata")
P99 = at_most(1.5, " × as long")
SUSTAINED_SECONDS = 30  # in which files are rotated and queues are full
SHORT = (
    f"Runs shorter than {SUSTAINED_SECONDS} s end before the queues of capture and audit log are full: they "
    "show more than what mcpmux can keep up."
)


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


def _watched(what: str, settings: str, share: float, bench: Bench, *, both_cores: bool = False) -> list[Row]:
    """Measure what keeps or shows traffic. `both_cores`: mcpmux may use the core of the others, too."""
    if both_cores:
        what += ", both cores"
    lasting = bench.lasting()
    if lasting.effort.seconds < SUSTAINED_SECONDS and SHORT not in bench.remarks:
        bench.remarks.append(SHORT)
    with bench.upstream(UPSTREAMS) as upstream, TemporaryDirectory() as folder:
        plain = LISTENER + http_config(upstream.lines(UPSTREAMS))
        featured = settings.format(folder=folder) + plain
        return _beside(lasting, what, plain, featured, share=share, both_cores=both_cores)


capture = partial(_watched, "full capture", CAPTURE, 0.6)
metadata = partial(_watched, "capture of metadata", METADATA, 0.75)
audit = partial(_watched, "audit log", AUDIT, 0.6)
admin = partial(_watched, "admin listener with its inspector", ADMIN, 0.75)
together = partial(_watched, "full capture, audit log and admin listener", CAPTURE + AUDIT + ADMIN, 0.4)


def _beside(
    bench: Bench,
    what: str,
    plain: str,
    featured: str,
    headers: Headers = (),
    *,
    share: float = 0.8,
    both_cores: bool = False,
) -> list[Row]:
    """Measure two configurations. `headers`: of the requests to the second; `share`: the goal."""
    measure = f"read 1 KB, 64 connections, modern, {what} (direct: without)"
    bench.note(measure)
    places = (bench.mux_core, bench.load_core) if both_cores else (bench.mux_core,)
    start = partial(Child, ["mcpmux", "serve", "-", *QUIET], places)
    with start(plain) as mux, start(featured) as other:
        pairs = bench.side_by_side(mux, other, headers)
    direct, through = [pair.direct.p99 for pair in pairs], [pair.through.p99 for pair in pairs]
    slowest = time_row(f"{measure}, p99", direct, through).judged(P99, shares(direct, through))
    return [rate_row(measure, pairs, at_least(share)), slowest]


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
