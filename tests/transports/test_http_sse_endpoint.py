"""Where POSTs go: any way of writing an address of the same origin, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RemoteProtocolError
from mcpmux.transports.http.route import HttpOrigin, target_of
from mcpmux.transports.http.sse_streams import resolve_endpoint

BASE = "https://mcp.example.com/a/sse?key=1"

GOOD = [
    (b"/messages?session_id=1", "/messages?session_id=1"),
    (b"messages?session_id=1", "/a/messages?session_id=1"),
    (b"?session_id=1", "/a/sse?session_id=1"),
    (b"../m", "/m"),
    (b"https://mcp.example.com/m", "/m"),
    (b"https://mcp.example.com:443/m", "/m"),
    (b"HTTPS://MCP.EXAMPLE.COM/m", "/m"),
    (b"//mcp.example.com/m#fragment", "/m"),
    (b"https://mcp.example.com", "/"),
    (b"/%E2%82%AC/x?y=%20", "/%E2%82%AC/x?y=%20"),
]


@pytest.mark.parametrize(("reference", "target"), GOOD)
def test_an_address_of_the_same_origin_is_used(reference, target):
    assert target_of(resolve_endpoint(BASE, reference)) == target


@pytest.mark.parametrize(
    "reference",
    [
        b"https://evil.example.com/m",
        b"https://mcp.example.com.evil.example/m",
        b"https://mcp.example.com@evil.example/m",
        b"//evil.example.com/m",
        b"http://mcp.example.com/m",
        b"https://mcp.example.com:8443/m",
    ],
)
def test_an_address_of_another_origin_is_refused(reference):
    with pytest.raises(RemoteProtocolError, match="another origin"):
        resolve_endpoint(BASE, reference)


@pytest.mark.parametrize(
    "reference",
    [
        *(b"", b" ", b"/a b", b"/a\nb", b"/a\rb", b"/\x00", b"\xff\xfe", "/€".encode(), b"https://["),
        *(b"javascript:alert(1)", b"data:,x", b"ftp://mcp.example.com/m", b"https://mcp.example.com:port/m"),
        b'{"jsonrpc":"2.0"} x',
    ],
)
def test_garbage_is_refused(reference):
    with pytest.raises(RemoteProtocolError, match="no usable URI"):
        resolve_endpoint(BASE, reference)


@given(st.binary() | st.text().map(str.encode) | st.from_regex(rb"[a-z]{0,5}:?/{0,3}[^/?#]{0,20}[/?#].*"))
def test_whatever_a_server_says_posts_stay_at_its_origin(reference):
    try:
        resolved = resolve_endpoint(BASE, reference)
    except RemoteProtocolError:
        return
    assert HttpOrigin.from_url(resolved) == HttpOrigin.from_url(BASE)
    assert target_of(resolved).startswith("/")
    assert target_of(resolved).isprintable()
    assert " " not in target_of(resolved)
