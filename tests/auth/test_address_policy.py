"""Whom an upstream may send mcpmux to for tokens."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mcpmux.auth.discovery import LOOPBACK, METADATA, PRIVATE, PUBLIC, OAuthHttp, kind_of
from mcpmux.config import Http, OAuth
from mcpmux.errors import RemoteProtocolError

KINDS = [
    ("8.8.8.8", PUBLIC),
    ("2606:4700::1111", PUBLIC),
    ("127.0.0.1", LOOPBACK),
    ("0.0.0.0", LOOPBACK),
    ("::1", LOOPBACK),
    ("::", LOOPBACK),
    ("10.1.2.3", PRIVATE),
    ("192.168.0.1", PRIVATE),
    ("100.64.0.1", PRIVATE),
    ("224.0.0.1", PRIVATE),
    ("fd12::1", PRIVATE),
    ("169.254.169.254", METADATA),
    ("fe80::1", METADATA),
    ("fd00:ec2::254", METADATA),
    ("100.100.100.200", METADATA),
    ("::ffff:169.254.169.254", METADATA),
    ("::ffff:10.0.0.1", PRIVATE),
    ("64:ff9b::a9fe:a9fe", METADATA),
    ("2002:7f00:1::", LOOPBACK),
    ("::169.254.169.254", METADATA),
    ("::10.0.0.1", PRIVATE),
    ("64:ff9b:1::8.8.8.8", PRIVATE),
    ("fec0::1", PRIVATE),
    ("168.63.129.16", METADATA),
]


@pytest.mark.parametrize(("address", "kind"), KINDS)
def test_addresses_are_known_for_what_they_are(address: str, kind: str) -> None:
    assert kind_of(ip_address(address)) is kind


@pytest.mark.parametrize(
    ("trusted", "asked"),
    [
        ("https://8.8.8.8/mcp", "https://9.9.9.9/token"),
        ("https://8.8.8.8/mcp", "https://8.8.8.8:8443/token"),
        ("http://127.0.0.1:1/mcp", "http://127.0.0.1:2/token"),
        ("http://127.0.0.1:1/mcp", "http://localhost:2/token"),
        ("https://10.0.0.1/mcp", "https://10.0.0.2/token"),
        ("https://10.0.0.1/mcp", "https://9.9.9.9/token"),
        ("http://10.0.0.1/mcp", "http://10.0.0.1/token"),
        ("https://169.254.1.1/mcp", "https://169.254.1.1/token"),
    ],
)
async def test_what_is_no_worse_than_the_upstream_may_be_asked(trusted: str, asked: str) -> None:
    policy = OAuthHttp(Http(trusted, oauth=OAuth()))
    origin = policy.origin_of(asked)
    assert await policy.find_addresses(origin.host, origin.port)


@pytest.mark.parametrize(
    ("trusted", "asked", "why"),
    [
        ("https://8.8.8.8/mcp", "https://10.0.0.1/", "a private address"),
        ("https://8.8.8.8/mcp", "https://127.0.0.1/", "a loopback address"),
        ("https://8.8.8.8/mcp", "https://localhost/", "a loopback address"),
        ("https://8.8.8.8/mcp", "https://[::1]/", "a loopback address"),
        ("https://8.8.8.8/mcp", "https://2130706433/", "a loopback address"),
        ("https://10.0.0.1/mcp", "https://127.0.0.1/", "a loopback address"),
        ("https://10.0.0.1/mcp", "https://169.254.169.254/", "a link-local or cloud metadata address"),
        ("https://169.254.1.1/mcp", "https://169.254.169.254/", "a link-local or cloud metadata address"),
        ("https://8.8.8.8/mcp", "https://[::ffff:169.254.169.254]/", "a link-local or cloud metadata"),
        ("https://8.8.8.8/mcp", "http://9.9.9.9/", "without TLS"),
        ("https://8.8.8.8/mcp", "http://8.8.8.8/", "without TLS"),
        ("http://10.0.0.1/mcp", "http://10.0.0.2/", "without TLS"),
        ("https://8.8.8.8/mcp", "https://me:secret@9.9.9.9/", "malformed"),
        ("https://8.8.8.8/mcp", "https://9.9.9.9/a b", "malformed"),
        ("https://8.8.8.8/mcp", "file:///etc/passwd", "is none"),
        ("https://8.8.8.8/mcp", "https://[", "is none"),
        ("https://8.8.8.8/mcp", "https://x:99999/", "is none"),
    ],
)
async def test_what_is_worse_may_not(trusted: str, asked: str, why: str) -> None:
    policy = OAuthHttp(Http(trusted, oauth=OAuth()))
    with pytest.raises(RemoteProtocolError, match=why) as caught:
        origin = policy.origin_of(asked)
        await policy.find_addresses(origin.host, origin.port)
    assert "secret" not in str(caught.value)
