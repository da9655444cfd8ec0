"""Coverage-guided fuzzing of the HTTP server's parser and of the envelope, with atheris (libFuzzer).

    python -m tests.fuzz.coverage_guided http -max_total_time=60 CORPUS_DIRECTORY
    python -m tests.fuzz.coverage_guided envelope -runs=1000000

Arguments after the name of the target go to libFuzzer (`-help=1` lists them). An input that breaks a law ends
the run with its traceback and is written to a file `crash-…`, which can be run again alone.
atheris (Linux, CPython) is installed by `pip install "atheris>=3"`, beside httptools and msgspec.
The test in `test_coverage_guided.py` does a short, bounded run of both in a separate environment, from the
inputs in `seeds`.

The first byte of an input determines the pieces into which the rest is cut. Laws: no exception but the
declared ones; the same requests, or the same refusal, for any pieces; an answer that can be encoded again.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import atheris

with atheris.instrument_imports(include=["mcpmux"]):
    from mcpmux.errors import RpcError
    from mcpmux.protocol.call import Call
    from mcpmux.protocol.envelope import BadMessage, Request, decode_message, encode_error, encode_reply
    from mcpmux.protocol.framing import read_batch
    from mcpmux.transports.http.request_parser import RequestParser

# High enough never to matter. The class of a configuration's limits needs libraries that are not installed.
LIMITS: Any = SimpleNamespace(max_head_bytes=1 << 20, max_header_fields=1 << 20, max_message_bytes=1 << 20)


def requests_in(pieces: list[bytes]) -> object:
    """Return the requests and the state of the server's parser after these pieces of a stream."""
    parser = RequestParser(LIMITS, "peer")
    for piece in pieces:
        if parser.refusal is None:
            parser.feed(piece)
    taken = [
        (request.method, request.path, request.headers, request.body, request.keep_alive)
        for request in parser.requests
    ]
    return taken, parser.refusal and parser.refusal.status, None if parser.refusal else parser.phase


def fuzz_http(data: bytes) -> None:
    """Parse one stream, whole and in pieces."""
    size, stream = (data[0] % 16 + 1 if data else 1), data[1:]
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    whole, cut = requests_in([stream]), requests_in(pieces)
    if whole != cut:
        raise AssertionError(f"cut into {size}: {cut!r}, whole: {whole!r}")


def fuzz_envelope(data: bytes) -> None:
    """Decode one message, alone and as a batch."""
    for decode in (decode_message, read_batch):
        try:
            message = decode(data)
        except BadMessage as bad:
            encode_error(bad.id, bad)
            continue
        if isinstance(message, Request):
            encode_reply(message.id, {})
            try:
                Call.of(message.method, message.params)
            except RpcError:
                continue


def main() -> None:
    """Fuzz without returning: libFuzzer ends the process, with status 0 when every law held."""
    target = {"http": fuzz_http, "envelope": fuzz_envelope}[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
