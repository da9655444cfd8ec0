"""Requests that two readers could take for different ones, sent to a running `mcpmux` over real sockets.

Behind each stands a second request, which a reader with another view of the first one would see. It must
never be answered: the one answer is the refusal, and the connection ends with it. More of them, in any
pieces, are in `transports/test_http_request.py` and `test_chunk_lines.py`. Sources: RFC 9112 sections 2.2,
3.2, 5.1, 5.2, 6.1, 6.3, 7.1 and 11.2; RFC 9110 section 5.5.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.process.running import Running, demo_table

SECONDS = 10.0
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
MESSAGE = {"jsonrpc": "2.0", "id": 7, "method": "server/discover", "params": {"_meta": META}}
BODY = json.dumps(MESSAGE).encode()
FIELDS = (
    b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: server/discover\r\n"
)
START = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
PLAIN = START + FIELDS
CHUNKED = PLAIN + b"Transfer-Encoding: chunked\r\n\r\n"
NEXT = PLAIN + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
LAST = NEXT.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost", 1)
ONE_CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
WHOLE = ONE_CHUNK + b"0\r\n\r\n"
SIZED = LENGTH + b"\r\n" + BODY

REFUSED: dict[str, tuple[bytes, int]] = {
    # Where does the body end?
    "two lengths": (PLAIN + b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "length in hex": (PLAIN + b"Content-Length: 0x0\r\n\r\n", 400),
    "length with underscore": (PLAIN + b"Content-Length: 1_0\r\n\r\n", 400),
    "length with a blank in it": (PLAIN + b"Content-Length: 0 5\r\n\r\n", 400),
    "length, then chunked": (PLAIN + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "coding identity": (PLAIN + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "coding identity, with length": (PLAIN + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\n", 400),
    "coding empty": (PLAIN + b"Transfer-Encoding:\r\n\r\n", 400),
    "coding quoted": (PLAIN + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 400),
    "coding with a parameter": (PLAIN + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 400),
    "coding before a vertical tab": (PLAIN + b"Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n", 400),
    "coding behind a blank name": (PLAIN + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "coding folded": (PLAIN + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "coding chunked twice in a list": (PLAIN + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    "coding identity in a second field": (
        PLAIN + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        400,
    ),
    # The size of a chunk
    "chunk size with plus": (CHUNKED + b"+0\r\n\r\n", 400),
    "chunk size with underscore": (CHUNKED + b"0_0\r\n\r\n", 400),
    "chunk size behind a blank": (CHUNKED + b" 0\r\n\r\n", 400),
    "chunk size missing": (CHUNKED + b"\r\n\r\n", 400),
    "chunk size of many digits": (CHUNKED + b"f" * 400 + b"\r\n", 400),
    "chunk larger than any message": (CHUNKED + b"7fffffff\r\n" + b"a" * 9000, 413),
    "chunk size ended by carriage return": (CHUNKED + b"1\ra\r\n0\r\n\r\n", 400),
    "extension": (CHUNKED + b'2;a="b c"\r\n{}\r\n0\r\n\r\n', 400),
    "extension of the last chunk": (CHUNKED + b"2\r\n{}\r\n0;a=b\r\n\r\n", 400),
    "extension with a carriage return": (CHUNKED + b"2;x\r{}\r\n0\r\n\r\n", 400),
    "extension with NUL": (CHUNKED + b"2;x\0\r\n{}\r\n0\r\n\r\n", 400),
    "trailer that frames": (CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    # Where does a line end, and the head?
    "bare line feeds": (NEXT.replace(b"\r\n", b"\n"), 400),
    "two carriage returns": (START + b"X: y\r\r\n" + FIELDS + LENGTH + b"\r\n" + BODY, 400),
    "tab before a colon": (START + b"X\t: y\r\n\r\n", 400),
    "NUL in a name": (START + b"X\0: y\r\n\r\n", 400),
    "control in a value": (START + b"X: \x01\r\n\r\n", 400),
    "letter beyond ASCII in a name": (START + b"\xc3\xa4: y\r\n\r\n", 400),
    # For whom is it?
    "host twice, different": (START + b"Host: elsewhere\r\n\r\n", 400),
    "target of a served host, host another": (
        b"POST http://localhost/mcp HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
        400,
    ),
    # Is it HTTP/1.1 at all?
    "HTTP/0.9": (b"GET /mcp\r\n\r\n", 505),
    "HTTP/1.2": (b"GET /mcp HTTP/1.2\r\nHost: localhost\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "version in lower case": (b"GET /mcp http/1.1\r\nHost: localhost\r\n\r\n", 400),
    "blank behind the version": (b"GET /mcp HTTP/1.1 \r\nHost: localhost\r\n\r\n", 400),
    "tabs in the first line": (b"GET\t/mcp\tHTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "nonsense": (b"\x00\xff\x00\xff\r\n\r\n", 400),
}

TAKEN: dict[str, bytes] = {
    "blank and tab around the coding": PLAIN + b"Transfer-Encoding: \t chunked \r\n\r\n" + WHOLE,
    "coding in upper case": PLAIN + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n" + WHOLE,
    "size with leading zeros": CHUNKED + b"000" + WHOLE,
    "trailers, which are no headers": CHUNKED + ONE_CHUNK + b"0\r\nHost: elsewhere\r\nMcp-Method: x\r\n\r\n",
    "upgrade to h2c": PLAIN + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + SIZED,
    "upgrade to WebSocket": PLAIN + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + SIZED,
    "coding with another name": PLAIN
    + b"Transfer_Encoding: chunked\r\nX-Transfer-Encoding: chunked\r\n"
    + SIZED,
    "absolute form": NEXT.replace(b"/mcp", b"http://localhost/mcp", 1),
    "one empty line before": b"\r\n" + NEXT,
}

CONFIG = """
[listeners]
http = ["127.0.0.1:0"]
[limits]
max_head_bytes = "2KiB"
max_message_bytes = "8KiB"
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run one mcpmux for all cases, and yield its port."""
    config = tmp_path_factory.mktemp("smuggling") / "mux.toml"
    config.write_text(demo_table("clock") + CONFIG)
    with Running("serve", str(config)) as running:
        number = urlsplit(running.line(containing="http://").split()[-1]).port
        assert number is not None
        assert [status_of(answer) for answer in answers(number, LAST)] == [200]
        yield number
        assert [status_of(answer) for answer in answers(number, LAST)] == [200]
        running.stop()
        assert "request handler failed" not in running.stderr
        assert "Traceback" not in running.stderr


def answers(port: int, data: bytes) -> list[bytes]:
    """Return the answers to `data` until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        connection.sendall(data)
        received = b""
        while part := connection.recv(65536):
            received += part
    return re.split(rb"(?=HTTP/1\.1 [0-9]{3} )", received)[1:]


def status_of(answer: bytes) -> int:
    return int(answer[9:12])


def test_ambiguous_requests_are_refused_and_nothing_behind_them_is_read(port: int, subtests: pytest.Subtests):
    for name, (sent, status) in REFUSED.items():
        with subtests.test(name):
            received = answers(port, sent + NEXT)
            assert [status_of(answer) for answer in received] == [status]
            assert b"\r\nConnection: close\r\n" in received[0]
            assert b'"error"' in received[0]


def test_unusual_but_clear_requests_are_answered_and_so_is_the_next(port: int, subtests: pytest.Subtests):
    for name, sent in TAKEN.items():
        with subtests.test(name):
            received = answers(port, sent + LAST)
            assert [status_of(answer) for answer in received] == [200, 200]
            assert all(b'"supportedVersions"' in answer for answer in received)


def test_garbage_behind_a_good_request_is_refused_after_its_answer(port: int):
    received = answers(port, NEXT + b"garbage\r\n\r\n" + NEXT)
    assert [status_of(answer) for answer in received] == [200, 400]


@pytest.mark.parametrize("host", [b"elsewhere", b"localhost, elsewhere", b"localhost elsewhere", b""])
def test_host_that_is_not_served_is_refused_each_time(port: int, host: bytes):
    stranger = NEXT.replace(b"Host: localhost", b"Host: " + host)
    assert [status_of(answer) for answer in answers(port, stranger + LAST)] == [403, 200]
