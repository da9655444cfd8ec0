"""`tls` and `proxy`: where they may stand, and what is shown of them."""

from __future__ import annotations

import pytest

from mcpmux.config import ClientTls, Http, Secret, ServerTls
from tests.config.documents import problems_of, read

WEB = '[upstreams.web]\nurl = "https://example.com/mcp"\n'


def test_every_key_is_read():
    config = read(
        WEB
        + """
        proxy = "http://me:${TOKEN}@proxy.example.com:3128"
        [upstreams.web.tls]
        ca = "ca.pem"
        certificate = "c.pem"
        key = "c.key"
        key_password = "${TOKEN}"
        server_name = "10.0.0.1"
        [[listeners.http]]
        port = 1
        [listeners.http.tls]
        certificate = "s.pem"
        key = "s.key"
        key_password = "${TOKEN}"
        client_ca = "ca.pem"
        """,
        {"TOKEN": "PLANTED"},
    )
    tls = ClientTls(
        ca="ca.pem",
        certificate="c.pem",
        key="c.key",
        key_password=Secret("PLANTED"),
        server_name="10.0.0.1",
    )
    proxy = Secret("http://me:PLANTED@proxy.example.com:3128")
    assert config.upstreams[0].target == Http("https://example.com/mcp", tls=tls, proxy=proxy)
    assert config.listeners.http[0].tls == ServerTls(
        certificate="s.pem", key="s.key", key_password=Secret("PLANTED"), client_ca="ca.pem"
    )
    assert "PLANTED" not in repr(config)


def test_host_apps_have_them_in_our_part_of_an_entry():
    entry = {"url": "https://h", "mcpmux": {"tls": {"verify": False}, "proxy": ""}}
    config = read({"mcpServers": {"web": entry}})
    assert config.upstreams[0].target == Http("https://h", tls=ClientTls(verify=False), proxy=Secret(""))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[upstreams.a]\ncommand = "x"\ntls = {}', "upstreams.a: `tls` does not go with `command`"),
        ('[upstreams.a]\ncommand = "x"\nproxy = ""', "upstreams.a: `proxy` does not go with `command`"),
        ('[upstreams.a]\nurl = "http://h"\ntls = {}', "upstreams.a: `tls` does not go with an http:// URL"),
        (WEB + 'tls = "ca.pem"', "upstreams.web.tls: expected a table, got text"),
        (WEB + 'tls = { cert = "x" }', "upstreams.web.tls.cert: unknown key"),
        (WEB + 'tls = { ca = "" }', "upstreams.web.tls.ca: expected the path of a file"),
        (WEB + 'tls = { verify = "no" }', "upstreams.web.tls.verify: expected true or false"),
        (WEB + 'tls = { key = "k" }', "upstreams.web.tls: `key` and `key_password` need `certificate`"),
        (WEB + 'tls = { key_password = "k" }', "upstreams.web.tls: `key` and `key_password` need"),
        (WEB + 'tls = { ca = "c", verify = false }', "upstreams.web.tls: `ca` has no effect with `verify`"),
        (WEB + 'proxy = "socks5://h:1"', 'upstreams.web.proxy: expected a URL such as "http://proxy'),
        (WEB + 'proxy = "http://me:PLANTED@h:99999"', 'upstreams.web.proxy: expected a URL such as "http'),
        (WEB + 'proxy = "me:PLANTED@h:1"', 'upstreams.web.proxy: expected a URL such as "http://proxy'),
        (WEB + 'proxy = "http://h/path"', 'upstreams.web.proxy: expected a URL such as "http://proxy'),
        (
            WEB + '[[listeners.http]]\nport = 1\ntls = { key = "k" }',
            "listeners.http[0].tls.certificate: expected a value, the key is missing",
        ),
    ],
)
def test_mistakes_are_named(text, problem):
    (sentence,) = problems_of(text)
    assert problem in sentence
    assert "PLANTED" not in sentence


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"command": "x", "mcpmux": {"tls": {}}}, "mcpServers.a: `tls` does not go with `command`"),
        ({"url": "http://h", "mcpmux": {"tls": {}}}, "mcpServers.a: `tls` does not go with an http:// URL"),
    ],
)
def test_mistakes_in_a_host_apps_file_are_named(entry, problem):
    (sentence,) = problems_of({"mcpServers": {"a": entry}})
    assert problem in sentence
