from __future__ import annotations

import pytest

from mcpmux.config import (
    ClientTls,
    Http,
    HttpListener,
    Stdio,
    Tcp,
    TcpListener,
    Unix,
    UnixListener,
    Upstream,
    WebSocket,
    WebSocketListener,
)
from mcpmux.config.argument import parse_listen_argument, parse_upstream_argument, parse_upstream_arguments
from mcpmux.config.listener import parse_http_argument
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "upstream"),
    [
        ("docs=https://example.com/mcp", Upstream(name="docs", target=Http("https://example.com/mcp"))),
        ("w=wss://example.com/mcp", Upstream(name="w", target=WebSocket("wss://example.com/mcp"))),
        ("t=tcp://[::1]:9000", Upstream(name="t", target=Tcp("::1", 9000))),
        ("t=tls://a.example:9000/", Upstream(name="t", target=Tcp("a.example", 9000, ClientTls()))),
        ("u=unix:a b.sock", Upstream(name="u", target=Unix("a b.sock"))),
        ("unix:///run/my.sock", Upstream(name="my", prefix="", target=Unix("/run/my.sock"))),
        ("tcp://b.example:1", Upstream(name="b.example:1", prefix="", target=Tcp("b.example", 1))),
        ("docs=npx -y 'a b'", Upstream(name="docs", target=Stdio("npx", ("-y", "a b")))),
        ("docs=run --mode=fast", Upstream(name="docs", target=Stdio("run", ("--mode=fast",)))),
        (
            "https://example.com/mcp?a=b",
            Upstream(name="example.com", prefix="", target=Http("https://example.com/mcp?a=b")),
        ),
        (
            "uvx mcp-server-time",
            Upstream(name="mcp-server-time", prefix="", target=Stdio("uvx", ("mcp-server-time",))),
        ),
        ("run --mode=fast", Upstream(name="run", prefix="", target=Stdio("run", ("--mode=fast",)))),
        ("/opt/My_Server.py", Upstream(name="My_Server", prefix="", target=Stdio("/opt/My_Server.py"))),
        ("a=$HOME/${x}", Upstream(name="a", target=Stdio("$HOME/${x}"))),
    ],
)
def test_argument_is_a_url_or_a_command_line(text, upstream):
    assert parse_upstream_argument(text) == upstream


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http://me:secret@127.0.0.1:8484/mcp?key=secret", "127.0.0.1:8484"),
        ("ws://[::1]:9/", "[::1]:9"),
        ("python old.py", "old"),
        ("/usr/bin/python3.11 -u -m mcp_server_time --zone UTC", "mcp_server_time"),
        ("python -m mcpmux.demo.notes", "mcpmux.demo.notes"),
        ("python -c 'print(1)'", "python"),
        ("npx -y @scope/server-files@1.2.3 /tmp", "server-files"),
        ("npx --yes server-files", "server-files"),
        ("npx --registry https://me:secret@host server-files", "server-files"),
        ("npx https://me:secret@host", "npx"),
        ("uv run --directory /secret server.py", "server"),
        ("uvx --from git+https://secret@host/x time", "time"),
        ("node --import=x dist/index.mjs", "index"),
        ("./run.sh secret", "run"),
    ],
)
def test_a_server_without_a_name_is_called_by_what_it_is(text, name):
    assert parse_upstream_argument(text).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected [NAME=]URL or [NAME=]COMMAND LINE"),
        ("docs=", "expected [NAME=]URL or [NAME=]COMMAND LINE"),
        ("docs=''", "expected [NAME=]URL or [NAME=]COMMAND LINE"),
        ("=npx hunter2", "expected a name before ="),
        ("docs=npx 'hunter2", "quotation marks do not match"),
        ("https://", "expected a URL"),
        ("ws://", "expected a URL"),
        ("tcp://example.com", "expected a URL"),
        ("tcp://example.com:1/path", "expected a URL"),
        ("tls://hunter2@example.com:1", "expected a URL"),
        ("unix:", "expected a URL"),
        ("unix:/run/", "expected a URL"),
        ("docs=https://hunter2@", "expected a URL"),
        ("My_Docs=npx", "`My_Docs` is no name; expected a-z, 0-9, `.` and `-`, such as `my-docs`"),
    ],
)
def test_argument_that_is_neither_is_a_mistake(text, said):
    with pytest.raises(InvalidValue) as caught:
        parse_upstream_argument(text)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_single_argument_may_go_without_a_name():
    (upstream,) = parse_upstream_arguments(["npx server"])
    assert upstream.prefix == ""


def test_several_arguments_are_read_in_order():
    upstreams = parse_upstream_arguments(["b=npx", "a=https://example.com"])
    assert [(upstream.name, upstream.prefix) for upstream in upstreams] == [("b", "b"), ("a", "a")]


def test_every_mistake_in_several_arguments_is_told():
    with pytest.raises(ConfigError) as caught:
        parse_upstream_arguments(["a=npx", "npx", "a=npx", "b='"])
    assert caught.value.problems == [
        "--upstream number 2: expected NAME= in front, as there are several",
        "--upstream number 4: expected a command line, its quotation marks do not match",
        "--upstream a: another upstream has the same name",
        "--upstream a: another upstream has the same name",
    ]


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("127.0.0.1:8484", HttpListener(host="127.0.0.1", port=8484)),
        ("localhost:0", HttpListener(host="localhost", port=0)),
        ("[::1]:65535", HttpListener(host="::1", port=65535)),
        ("8484", HttpListener(host="127.0.0.1", port=8484)),
    ],
)
def test_listener_is_host_and_port(text, listener):
    assert parse_http_argument(text) == listener


@pytest.mark.parametrize(
    "text", ["", "65536", ":8484", "localhost", "localhost:65536", "::1:8484", "a b:1", "a:1\n"]
)
def test_listener_that_is_not_is_a_mistake(text):
    with pytest.raises(InvalidValue, match="HOST:PORT"):
        parse_http_argument(text)


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("http://127.0.0.1:0", HttpListener(port=0)),
        ("http://localhost:1/a/b", HttpListener(host="localhost", port=1, path="/a/b")),
        ("ws://127.0.0.1:8485", WebSocketListener(port=8485)),
        ("ws://[::1]:8485/ws", WebSocketListener(host="::1", port=8485, path="/ws")),
        ("tcp://127.0.0.1:8486", TcpListener(port=8486)),
        ("tcp://127.0.0.1:8486/", TcpListener(port=8486)),
        ("unix:mux.sock", UnixListener(path="mux.sock")),
        ("unix:///run/mux.sock", UnixListener(path="/run/mux.sock")),
    ],
)
def test_listener_is_a_url(text, listener):
    assert parse_listen_argument(text) == listener


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected http://HOST:PORT, ws://"),
        ("127.0.0.1:8484", "expected http://HOST:PORT, ws://"),
        ("ws:127.0.0.1:8484", "expected http://HOST:PORT, ws://"),
        ("pigeon://a:1", "expected http://HOST:PORT, ws://"),
        ("unix:", "expected http://HOST:PORT, ws://"),
        ("tcp://127.0.0.1", 'expected "HOST:PORT"'),
        ("tcp://127.0.0.1:1/mcp", "has no path"),
        ("ws://127.0.0.1:1/a?b", 'a path starting with "/"'),
        ("wss://127.0.0.1:1/mcp", "needs a certificate"),
        ("tls://127.0.0.1:1", "needs a certificate"),
        ("https://127.0.0.1:1", "needs a certificate"),
    ],
)
def test_listener_url_that_is_none_is_a_mistake(text, said):
    with pytest.raises(InvalidValue) as caught:
        parse_listen_argument(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text", ["docs.example.com/mcp", "docs=localhost:8000", "docs=10.0.0.1:80/mcp?key=hunter2"]
)
def test_url_without_its_scheme_is_no_command(text):
    with pytest.raises(InvalidValue, match="a URL begins with https://") as caught:
        parse_upstream_argument(text)
    assert "hunter2" not in str(caught.value)


def test_program_whose_path_has_dots_and_blanks_is_a_command(tmp_path):
    for name in ("my.tools", "my tools"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server").touch(0o755)
        path = str(tmp_path / name / "server")
        assert parse_upstream_argument(f"docs={path}").target == Stdio(path)
