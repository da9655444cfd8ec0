from __future__ import annotations

import pytest

from mcpmux.protocol.headers import OriginPolicy

LOCAL = OriginPolicy("127.0.0.1", (), ())
NAMED = OriginPolicy("10.0.0.5", ("MCP.example.com", "proxy.example.com:8443"), ("https://App.example.com",))


@pytest.mark.parametrize("policy", [LOCAL, NAMED])
@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.0.0.1:",
            "[::1]",
            "[::1]:8080",
            "::1",
        ),
        *("[0:0:0:0:0:0:0:1]:8080", "[0000::0001]"),
    ],
)
def test_the_loopback_names_are_ours_with_any_port(policy: OriginPolicy, host: str):
    assert policy.refuses(host, None) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:8080",
        "localhost.evil.example.com",
        "evil.example.com#localhost",
        "127.0.0.1.nip.io",
        "127.0.0.2",
        "[::2]:80",
        *(
            "127.0.0.1:80@evil.example.com",
            "localhost:x",
            "localhost:٣",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "localhost.",
        ),
        "",
    ],
)
def test_a_foreign_host_is_refused_and_named(host: str):
    reason = LOCAL.refuses(host, None)
    assert reason is not None
    assert repr(host) in reason
    assert "allowed_hosts" in reason


def test_the_address_is_compared_in_any_spelling():
    for address, host in (
        ("MyBox.LAN", "mybox.lan:8484"),
        ("2001:DB8:0:0::1", "[2001:db8::1]:8484"),
        ("fe80::1%eth0", "[fe80::1%eth0]"),
    ):
        policy = OriginPolicy(address, (), ())
        assert policy.refuses(host, None) is None
        assert policy.refuses(host, f"http://{host.partition('%')[0]}") is None or "%" in host
        assert policy.refuses("[2001:db8::2]", None) is not None


def test_a_listener_without_an_origin_setting_names_the_host_setting():
    headers = "box.lan:1", "http://box.lan:1"
    reason = OriginPolicy("0.0.0.0", (), None).refuses(*headers)
    assert reason == (
        "Origin 'http://box.lan:1' may not connect; add its host to the listener's allowed_hosts if it should"
    )
    assert OriginPolicy("0.0.0.0", ("box.lan",), None).refuses(*headers) is None


def test_an_empty_host_is_nobodys_even_if_the_address_is_empty():
    assert OriginPolicy("", ("mcp.example.com",), ()).refuses("a:b", None) is not None


def test_a_missing_host_is_refused():
    assert LOCAL.refuses("", None) is not None


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("10.0.0.5:80", True),
        ("mcp.example.com", True),
        ("mcp.EXAMPLE.com:8443", True),
        ("proxy.example.com:8443", True),
        ("other.example.com", False),
    ],
)
def test_the_address_and_the_allowed_hosts_are_accepted(host: str, accepted: bool):
    assert (NAMED.refuses(host, None) is None) is accepted


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_listening_everywhere_leaves_the_choice_to_the_allowed_hosts(address: str):
    assert OriginPolicy(address, (), ()).refuses("anything.example.com", None) is None
    limited = OriginPolicy(address, ("mcp.example.com",), ())
    assert limited.refuses("mcp.example.com", None) is None
    assert limited.refuses("anything.example.com", None) is not None


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:5173", True),
        ("https://mcp.example.com", True),
        ("https://app.example.com", True),
        ("https://APP.example.com", True),
        ("http://app.example.com", False),
        ("https://app.example.com:444", False),
        ("https://evil.example.com", False),
        ("http://localhost.evil.example.com", False),
        ("http://localhost@evil.example.com", False),
        ("null", False),
        ("", False),
        ("http://[::1", False),
    ],
)
def test_a_page_is_accepted_by_its_origin(origin: str, accepted: bool):
    """ "Servers MUST validate the Origin header on all incoming connections" (Streamable HTTP)."""
    reason = NAMED.refuses("localhost", origin)
    assert (reason is None) is accepted
    assert accepted or "allowed_origins" in str(reason)


@pytest.mark.parametrize(
    ("origin", "readable"),
    [
        *(("http://localhost:6274", True), ("https://127.0.0.1", True), ("http://[::1]:5173", True)),
        *(("https://app.example.com", True), ("https://mcp.example.com", False), ("http://10.0.0.5", False)),
        *(("chrome-extension://localhost", False), ("http://localhost@evil.example.com", False)),
        *(("http://localhost.evil.example.com", False), ("null", False), ("*", False), ("", False)),
        *(("http://localhost:80/x", False), ("http://localhost:80\x85", False)),
    ],
)
def test_only_local_pages_and_allowed_ones_may_read_answers(origin: str, readable: bool):
    """Allow a page of a host that is served here, unless it has another port."""
    fields = dict(NAMED.grants(origin))
    assert fields.get("Access-Control-Allow-Origin") == (origin if readable else None)
    assert not readable or NAMED.refuses("localhost", origin) is None
    asking = {"host": "localhost", "origin": origin, "access-control-request-method": "POST"}
    assert (NAMED.answer_preflight(asking) is not None) is readable


def test_what_a_page_asks_to_send_is_bounded():
    names = ", ".join([*(f"x-{number}" for number in range(1000)), "x" * 65])
    asking = {"host": "localhost", "origin": "http://localhost", "access-control-request-method": "GET"}
    plain = dict(LOCAL.answer_preflight(asking) or ())["Access-Control-Allow-Headers"].split(", ")
    asking["access-control-request-headers"] = names
    allowed = dict(LOCAL.answer_preflight(asking) or ())["Access-Control-Allow-Headers"].split(", ")
    assert allowed[len(plain) :] == [f"x-{number}" for number in range(32)]


def test_an_own_host_does_not_excuse_a_foreign_page():
    assert LOCAL.refuses("localhost", "https://evil.example.com") is not None
