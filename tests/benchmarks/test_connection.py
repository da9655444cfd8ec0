"""The load generator's connection reads every form in which the servers that are measured answer.

It also speaks TLS, and its requests have the headers that they are to have.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest
import trustme

from benchmarks.connection import Answer, Connection, WrongAnswer
from benchmarks.question import Client
from benchmarks.upstream import MODERN

JSON = b'{"jsonrpc":"2.0","id":1,"result":{}}'
EVENT = b"event: message\ndata: " + JSON + b"\n\n"


def response(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def sized(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    return response(body, b"content-type: " + kind, b"Content-Length: %d" % len(body), status=status)


def chunked(*parts: bytes, kind: bytes = b"text/event-stream") -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return response(framed + b"0\r\n\r\n", b"Content-Type: " + kind, b"Transfer-Encoding: chunked")


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """(the connection, the server's end of it)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        server, _ = listener.accept()
        with server:
            yield connection, server
        connection.close()


def received(connection: Connection) -> Answer:
    while (answer := connection.receive()) is None:
        pass
    return answer


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
    connection, server = ends
    for _ in range(2):  # and what follows is not disturbed
        server.sendall(data)
        answer = received(connection)
        assert (answer.status, bytes(answer.body)) == (200, JSON)


def test_answer_comes_in_pieces(ends):
    connection, server = ends
    data = chunked(EVENT)
    for byte in data[:-1]:
        server.sendall(bytes([byte]))
        assert connection.receive() is None
    server.sendall(data[-1:])
    assert bytes(received(connection).body) == JSON


def test_what_is_no_stream_is_taken_as_it_is(ends):
    connection, server = ends
    server.sendall(sized(b"26377683163003", b"text/plain"))
    assert bytes(received(connection).body) == b"26377683163003"


def test_error_page_is_taken_as_it_is(ends):
    connection, server = ends
    server.sendall(sized(b"<h1>no</h1>", b"text/html", b"502 Bad Gateway"))
    answer = received(connection)
    assert (answer.status, bytes(answer.body)) == (502, b"<h1>no</h1>")


def test_stream_without_an_answer_is_wrong(ends):
    connection, server = ends
    server.sendall(chunked(b": nothing\n\n"))
    with pytest.raises(WrongAnswer, match="without data"):
        received(connection)


def test_answer_of_unknown_length_is_wrong(ends):
    connection, server = ends
    server.sendall(response(JSON))
    with pytest.raises(WrongAnswer, match="without a length"):
        received(connection)


def test_request_has_the_headers_of_its_client(ends):
    connection, _ = ends
    question = Client(connection, MODERN, [("Authorization", "Bearer secret")]).question("tools/call", "t", 1)
    assert question.encode(1_000_001).count(b"\r\nAuthorization: Bearer secret\r\n") == 1


def test_answer_is_found_over_tls_from_whom_is_trusted():
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)

    def serve() -> None:
        for _ in range(2):
            accepted, _ = listener.accept()
            with suppress(OSError), server.wrap_socket(accepted, server_side=True) as secured:
                secured.sendall(sized(JSON))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/mcp"
        serving = Thread(target=serve)
        serving.start()
        with pytest.raises(ssl.SSLCertVerificationError):
            Connection(url, client)
        authority.configure_trust(client)
        connection = Connection(url, client)
        assert bytes(received(connection).body) == JSON
        connection.close()
        serving.join(5)
