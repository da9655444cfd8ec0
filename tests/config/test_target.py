from __future__ import annotations

import pytest

from mcpmux.config import (
    ClientTls,
    Http,
    Secret,
    Tcp,
    TcpListener,
    Unix,
    UnixListener,
    WebSocket,
    WebSocketListener,
)
from tests.config.documents import problems_of, read

KEY = {"X-Key": "k"}


@pytest.mark.parametrize(
    ("table", "target", "display"),
    [
        ({"url": "http://a/b"}, Http("http://a/b"), "http://a/b"),
        (
            {"url": "ws://u:p@a:1/b?c=d", "headers": KEY},
            WebSocket("ws://u:p@a:1/b?c=d", {"X-Key": Secret("k")}),
            "ws://***@a:1/b?***",
        ),
        (
            {"url": "wss://a", "tls": {"verify": False}},
            WebSocket("wss://a", {}, ClientTls(verify=False)),
            "wss://a",
        ),
        ({"url": "tcp://a.b:9"}, Tcp("a.b", 9), "tcp://a.b:9"),
        ({"url": "tls://[::1]:9", "tls": {"ca": "x"}}, Tcp("::1", 9, ClientTls(ca="x")), "tls://[::1]:9"),
        ({"url": "unix:/run/x"}, Unix("/run/x"), "unix:/run/x"),
        ({"url": "unix://x"}, Unix("//x"), "unix://x"),
    ],
)
def test_the_scheme_of_the_url_decides(table, target, display):
    read_target = read({"upstreams": {"x": table}}).upstreams[0].target
    assert read_target == target
    assert read_target.display == display
    assert "p@" not in repr(read_target)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"url": "tcp://a:1", "headers": KEY}, "`headers` does not go with a tcp:// URL"),
        ({"url": "unix:a", "headers": KEY}, "`headers` does not go with a unix: URL"),
        ({"url": "ws://a", "transport": "sse"}, "`transport` does not go with a ws:// URL"),
        ({"url": "tls://a:1", "proxy": ""}, "`proxy` does not go with a tls:// URL"),
        ({"url": "ws://a", "tls": {}}, "`tls` does not go with a ws:// URL; expected wss://"),
        ({"url": "tcp://a:1", "tls": {}}, "`tls` does not go with a tcp:// URL; expected tls://"),
        ({"url": "http://a", "tls": {}}, "`tls` does not go with an http:// URL; expected https://"),
        ({"url": "unix:a", "tls": {}}, "`tls` does not go with a unix: URL"),
        ({"url": "unix:a", "args": []}, "`args` does not go with `url`"),
    ],
)
def test_settings_that_do_not_go_with_the_scheme_are_mistakes(table, problem):
    assert problems_of({"upstreams": {"x": table}}) == [f"upstreams.x: {problem}"]


@pytest.mark.parametrize(
    "url", ["pigeon://a", "a:1", "WS://a", "ws:///a", "tcp://a", "tcp://a:0", "tcp://a:99999"]
)
def test_any_other_url_is_a_mistake(url):
    (problem,) = problems_of({"upstreams": {"x": {"url": url}}})
    assert problem.startswith("upstreams.x.url: expected a URL: http://")


def test_listeners_of_streams_are_tables_or_text():
    listeners = read(
        {
            "upstreams": {"x": {"command": "x"}},
            "listeners": {
                "websocket": ["[::1]:1", {"port": 2, "path": "/x"}],
                "tcp": ["a:1", {"host": "b", "port": 2}],
                "unix": ["${DIR}/a", {"path": "b", "mode": "660"}],
            },
        },
        {"DIR": "/run"},
    ).listeners
    assert listeners.websocket == (
        WebSocketListener(host="::1", port=1),
        WebSocketListener(port=2, path="/x"),
    )
    assert listeners.tcp == (TcpListener(host="a", port=1), TcpListener(host="b", port=2))
    assert listeners.unix == (UnixListener(path="/run/a"), UnixListener(path="b", mode="660"))


@pytest.mark.parametrize(
    ("listeners", "problem"),
    [
        ({"tcp": ["8484"]}, 'tcp[0]: expected "HOST:PORT", for example "127.0.0.1:8484" or "[::1]:8484"'),
        (
            {"tcp": [{"port": 1, "path": "/"}]},
            "tcp[0].path: unknown key; expected one of `host`, `port`, `tls`, `view`",
        ),
        ({"unix": [""]}, "unix[0]: expected the path of a socket"),
        ({"unix": [{"path": "a", "mode": "0999"}]}, 'unix[0].mode: expected permissions such as "0600"'),
        ({"unix": [{"path": "a", "mode": 600}]}, "unix[0].mode: expected text, got a number"),
        ({"websocket": [{"host": "a"}]}, "websocket[0].port: expected a value, the key is missing"),
    ],
)
def test_mistakes_in_listeners_are_told(listeners, problem):
    document = {"upstreams": {"x": {"command": "x"}}, "listeners": listeners}
    assert problems_of(document) == [f"listeners.{problem}"]
