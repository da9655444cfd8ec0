"""Certificates that are replaced while they are served: real handshakes, in memory."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from mcpmux.config import ClientTls, ServerTls
from mcpmux.errors import ConfigError
from mcpmux.transports import tls as served_module
from mcpmux.transports.tls import CurrentContext, TlsContexts, server_context
from tests.transports.certificates import Certificates


def tls_in(folder: Path, certificates: Certificates, *, ask: bool = False) -> ServerTls:
    """Copy a listener's files into `folder`, so that they can be replaced. Return their settings."""
    copies = {"certificate": certificates.server, "key": certificates.server_key}
    if ask:
        copies["client_ca"] = certificates.ca
    for name, path in copies.items():
        shutil.copy(path, folder / name)
    own = {name: str(folder / name) for name in copies}
    return ServerTls(certificate=own["certificate"], key=own["key"], client_ca=own.get("client_ca"))


def shake_hands(current: CurrentContext, certificates: Certificates, name: str, client: str = "") -> None:
    """Connect a client that expects `name`. Raises ssl.SSLError of the side that refuses the other."""
    trusting = ssl.create_default_context(cafile=certificates.ca)
    if client:
        trusting.load_cert_chain(getattr(certificates, client), getattr(certificates, f"{client}_key"))
    meet(trusting, current, name, None)


def meet(
    trusting: ssl.SSLContext, current: CurrentContext, name: str, session: ssl.SSLSession | None
) -> ssl.SSLObject:
    """Do the handshake of a client and a server, and return the client's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = trusting.wrap_bio(to_client, to_server, server_hostname=name, session=session)
    theirs = current().wrap_bio(to_server, to_client, server_side=True)
    waiting = {ours, theirs}
    while waiting:
        for end in (ours, theirs):
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                pass
    theirs.write(b"x")  # and what a client needs to come again
    ours.read(1)
    return ours


async def test_handshakes_use_the_files_as_they_were_read_last(certificates: Certificates, tmp_path: Path):
    served = TlsContexts()
    tls = tls_in(tmp_path, certificates)
    context = await served.open("listener a:1", tls)
    shake_hands(context, certificates, "localhost")
    assert await served.renew([tls]) == ()
    shutil.copy(certificates.elsewhere, tmp_path / "certificate")
    shutil.copy(certificates.elsewhere_key, tmp_path / "key")
    shake_hands(context, certificates, "localhost")
    assert await served.renew([tls]) == ("listener a:1",)
    shake_hands(context, certificates, "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, certificates, "localhost")
    assert await served.renew([tls]) == ()


async def test_the_authorities_of_clients_are_replaced(certificates: Certificates, tmp_path: Path):
    served = TlsContexts()
    tls = tls_in(tmp_path, certificates, ask=True)
    context = await served.open("listener a:1", tls)
    shake_hands(context, certificates, "localhost", "client")
    with pytest.raises(ssl.SSLError):
        shake_hands(context, certificates, "localhost", "strange_client")
    shutil.copy(certificates.strange_ca, tmp_path / "client_ca")
    assert await served.renew([tls]) == ("listener a:1",)
    shake_hands(context, certificates, "localhost", "strange_client")
    with pytest.raises(ssl.SSLError):
        shake_hands(context, certificates, "localhost", "client")
    with pytest.raises(ssl.SSLError):
        shake_hands(context, certificates, "localhost")


async def test_files_that_are_of_no_use_change_nothing_anywhere(certificates: Certificates, tmp_path: Path):
    served = TlsContexts()
    (tmp_path / "b").mkdir()
    ours, other = tls_in(tmp_path, certificates), tls_in(tmp_path / "b", certificates)
    good = await served.open("listener a:1", ours)
    await served.open("listener b:1", other)
    shutil.copy(certificates.elsewhere, tmp_path / "certificate")
    shutil.copy(certificates.elsewhere_key, tmp_path / "key")
    shutil.copy(certificates.elsewhere, tmp_path / "b" / "certificate")  # and not yet its key
    with pytest.raises(ConfigError, match=r"listener b:1: tls\.key: .*not that of the certificate"):
        await served.renew([ours, other])
    shake_hands(good, certificates, "localhost")
    shutil.copy(certificates.elsewhere_key, tmp_path / "b" / "key")
    assert await served.renew([ours, other]) == ("listener a:1", "listener b:1")


async def test_files_whose_settings_are_gone_are_not_read(certificates: Certificates, tmp_path: Path):
    """A listener goes on with what it has, until the next start."""
    served = TlsContexts()
    shutil.copy(certificates.ca, ca := tmp_path / "ca")
    ours, other = tls_in(tmp_path, certificates), ClientTls(ca=str(ca))
    current = await served.open("listener a:1", ours)
    towards = await served.open("upstream b", other)
    for name in ("certificate", "key", "ca"):
        (tmp_path / name).unlink()
    settings: dict[str, ServerTls | ClientTls] = {"listener a:1": ours, "upstream b": other}
    for place, tls in settings.items():
        with pytest.raises(ConfigError, match=rf"^{place}: .*no such file"):
            await served.renew([tls])
    assert await served.renew([]) == ()
    shake_hands(current, certificates, "localhost")
    shutil.copy(certificates.ca, ca)
    assert (await served.open("upstream b", other))() is not towards()


async def test_a_file_that_is_of_no_use_at_the_start_is_named(certificates: Certificates):
    with pytest.raises(ConfigError, match=r"listener a:1: tls\.certificate: .*missing\.pem"):
        await TlsContexts().open("listener a:1", ServerTls(certificate=certificates.missing))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_distrusted_client_cannot_resume_an_old_session(
    certificates: Certificates, tmp_path: Path, version: ssl.TLSVersion
):
    served = TlsContexts()
    tls = tls_in(tmp_path, certificates, ask=True)
    current = await served.open("listener a:1", tls)
    client = ssl.create_default_context(cafile=certificates.ca)
    client.load_cert_chain(certificates.client, certificates.client_key)
    client.maximum_version = version
    session = meet(client, current, "localhost", None).session
    assert meet(client, current, "localhost", session).session_reused
    shutil.copy(certificates.strange_ca, tmp_path / "client_ca")
    assert await served.renew([tls]) == ("listener a:1",)
    with pytest.raises(ssl.SSLError):
        meet(client, current, "localhost", session)


async def test_what_is_replaced_while_it_is_read_is_read_the_next_time(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tls = tls_in(tmp_path, certificates)

    def slowly(tls: ServerTls) -> ssl.SSLContext:
        context = server_context(tls)
        shutil.copy(certificates.elsewhere, tmp_path / "certificate")
        shutil.copy(certificates.elsewhere_key, tmp_path / "key")
        return context

    served = TlsContexts()
    with monkeypatch.context() as patched:
        patched.setattr(served_module, "server_context", slowly)
        current = await served.open("listener a:1", tls)
    shake_hands(current, certificates, "localhost")
    assert await served.renew([tls]) == ("listener a:1",)
    shake_hands(current, certificates, "elsewhere.example")
