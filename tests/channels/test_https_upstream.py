"""An upstream at an https URL, and one behind a proxy, as a client of mcpmux sees them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mcpmux.config import ClientTls, Http, Secret, ServerTls
from mcpmux.errors import ConfigError, RpcError
from mcpmux.transports.tls import server_context
from tests.channels.test_redirects import answer, read
from tests.runtime.web_world import open_web
from tests.transports.certificates import Certificates
from tests.transports.forward_proxy import open_proxy


def server_tls(certificates: Certificates, **more: Any) -> Any:
    return server_context(ServerTls(certificate=certificates.server_with_key, **more))


async def trouble_of(mux: Any) -> str:
    with pytest.raises(RpcError) as caught:
        await read(mux)
    return caught.value.message


async def test_a_replaced_client_certificate_is_used_after_it_was_read(
    certificates: Certificates, tmp_path: Path
):
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    shutil.copy(certificates.strange_client, certificate)
    shutil.copy(certificates.strange_client_key, key)
    tls = ClientTls(ca=certificates.ca, certificate=str(certificate), key=str(key))

    def target(url: str) -> Http:
        return Http(url, tls=tls)

    context = server_tls(certificates, client_ca=certificates.ca)
    async with open_web(answer, tls=context, make_target=target) as (_, mux):
        assert "the server refuses our client certificate" in await trouble_of(mux)
        assert await mux.renew(mux.config) == ()
        shutil.copy(certificates.client, certificate)
        with pytest.raises(ConfigError, match=r"upstream web: tls\.key"):
            await mux.renew(mux.config)
        shutil.copy(certificates.client_key, key)
        assert await mux.renew(mux.config) == ("upstream web",)
        mux.restart("web")
        assert await read(mux) == []


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "TLS: the server's certificate is not trusted .*give the authority that signed it in `tls.ca`"),
        ({"ca": "ca"}, "TLS: the server wants a client certificate: give one in `tls.certificate`"),
        ({"ca": "missing"}, "tls.ca: .*missing.pem: cannot read the file"),
        (
            {"ca": "ca", "certificate": "strange_client", "key": "strange_client_key"},
            "TLS: the server refuses our client certificate",
        ),
    ],
)
async def test_what_is_wrong_with_tls_is_told_to_clients(
    certificates: Certificates, keys: dict[str, str], problem: str
):
    paths = {key: getattr(certificates, name) for key, name in keys.items()}

    def target(url: str) -> Http:
        return Http(url, tls=ClientTls(**paths))

    context = server_tls(certificates, client_ca=certificates.ca)
    with capture_logs() as logs:
        async with open_web(answer, tls=context, make_target=target) as (_, mux):
            message = await trouble_of(mux)
    assert re.search(problem, message), message
    assert any(re.search(problem, log.get("reason", "")) for log in logs)


async def test_server_that_is_not_verified_is_used_and_warned_of(certificates: Certificates):
    def target(url: str) -> Http:
        return Http(url, tls=ClientTls(verify=False))

    with capture_logs() as logs:
        async with open_web(answer, tls=server_tls(certificates), make_target=target) as (_, mux):
            assert await read(mux) == []
    assert any("tls.verify" in log["event"] and log["log_level"] == "warning" for log in logs)


async def test_tls_settings_of_a_plain_url_are_a_mistake():
    def target(url: str) -> Http:
        return Http(url, tls=ClientTls(verify=False))

    with capture_logs():
        async with open_web(answer, make_target=target) as (_, mux):
            assert "`tls` does not go with an http:// URL" in await trouble_of(mux)


@pytest.mark.parametrize("secure", [False, True])
async def test_proxy_of_the_configuration_is_used_even_for_loopback(certificates: Certificates, secure: bool):
    async with open_proxy() as proxy:

        def target(url: str) -> Http:
            tls = ClientTls(ca=certificates.ca) if secure else ClientTls()
            return Http(url, tls=tls, proxy=Secret(f"http://127.0.0.1:{proxy.port}"))

        tls = server_tls(certificates) if secure else None
        async with open_web(answer, tls=tls, make_target=target) as (_, mux):
            assert await read(mux) == []
    assert {method for method, _ in proxy.requests} >= ({"CONNECT"} if secure else {"POST"})


@pytest.mark.parametrize("bypassed", [False, True])
async def test_proxy_of_the_environment_is_used_unless_no_proxy_names_the_host(
    monkeypatch: pytest.MonkeyPatch, bypassed: bool
):
    """0.0.0.0 reaches this machine and is no loopback address."""
    async with open_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "0.0.0.0" if bypassed else "elsewhere.example")

        def target(url: str) -> Http:
            return Http(url.replace("127.0.0.1", "0.0.0.0"))

        async with open_web(answer, make_target=target) as (_, mux):
            assert await read(mux) == []
    assert bool(proxy.requests) is not bypassed


async def test_proxy_that_refuses_is_named_to_clients_without_its_password():
    async with open_proxy(b"Basic other") as proxy:

        def target(url: str) -> Http:
            return Http(url, proxy=Secret(f"http://me:PLANTED@127.0.0.1:{proxy.port}"))

        with capture_logs() as logs:
            async with open_web(answer, make_target=target) as (_, mux):
                message = await trouble_of(mux)
    assert f"the proxy http://127.0.0.1:{proxy.port} refuses the user and password" in message
    assert "PLANTED" not in message + repr(logs) + repr(target("http://h"))
