"""The client of the benchmarks reads every form in which servers answer, and refuses wrong answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchmarks.asking import Client, check_text
from benchmarks.process import MeasurementFailed
from benchmarks.upstream import TEXT_BYTES, item_uri
from mcpmux.protocol import method as m

TEXT = "x" * TEXT_BYTES
JSON = (
    b'{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"bench:///item/0","text":"%b"}]}}' % TEXT.encode()
)
EVENT = b"event: message\ndata: " + JSON + b"\n\n"


def response(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def sized(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    return response(body, b"content-type: " + kind, b"Content-Length: %d" % len(body), status=status)


def chunked(*parts: bytes, kind: bytes = b"text/event-stream") -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return response(framed + b"0\r\n\r\n", b"Content-Type: " + kind, b"Transfer-Encoding: chunked")


@pytest.fixture
def ends() -> Iterator[tuple[Client, socket.socket]]:
    """Yield the client, and the server's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        server, _ = listener.accept()
        with server:
            yield client, server
        client.close()


@pytest.mark.parametrize(
    "data",
    [
        sized(JSON),
        sized(EVENT, b"text/event-stream"),
        chunked(EVENT),
        chunked(b"id: 1\ndata: \n\n", EVENT[:20], EVENT[20:]),
        chunked(JSON[:5], JSON[5:], kind=b"application/json"),
    ],
    ids=["json", "sized stream", "stream", "stream in parts", "chunked json"],
)
def test_answer_is_found_in_every_framing(ends, data):
    client, server = ends
    for _ in range(2):  # the first answer does not disturb the second one
        server.sendall(data)
        client.read(item_uri(0))
        assert b"\r\nMcp-Method: resources/read\r\n" in server.recv(65536)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (sized(b"<h1>no</h1>", b"text/html", b"502 Bad Gateway"), "status 502: b'<h1>no"),
        (sized(b"{}"), "not an answer"),
        (sized(JSON.replace(b'"id":1', b'"id":2')), "an answer to 2"),
        (sized(JSON.replace(b"xx", b"x")), "not one of 1024"),
        (b"hello\r\n\r\n", "no HTTP"),
    ],
    ids=["status", "no answer", "other id", "other length", "no HTTP"],
)
def test_wrong_answer_ends_the_measurement(ends, data, why):
    client, server = ends
    server.sendall(data)
    with pytest.raises(MeasurementFailed, match=why):
        client.read(item_uri(0))


def test_request_has_the_headers_that_are_given(ends):
    client, _ = ends
    request = client.frame(m.TOOLS_CALL, "t", headers=[("Authorization", "Bearer secret")])
    assert request.count(b"\r\nAuthorization: Bearer secret\r\n") == 1


def test_only_one_text_of_the_right_length_is_accepted(ends):
    client, server = ends
    server.sendall(sized(JSON))
    client.send(m.RESOURCES_READ, item_uri(0))
    result = client.receive()
    check_text(result, TEXT_BYTES)
    with pytest.raises(MeasurementFailed, match="not one of 5"):
        check_text(result, 5)
