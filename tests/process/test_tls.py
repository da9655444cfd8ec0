"""https as real processes: `serve` with a certificate, and clients that trust its authority."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.process import free_port
from tests.process.running import COMMAND, WAIT_SECONDS, Running, demo_table
from tests.transports.certificates import PASSPHRASE, Certificates


def config_of(certificates: Certificates, key: str, more: str = "") -> bytes:
    text = f"""
        {demo_table("clock")}
        [[listeners.http]]
        port = 0
        tls = {{ certificate = {json.dumps(certificates.server)}, key = {json.dumps(key)}{more} }}
        """
    return text.encode()


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_https_is_served_and_the_systems_authorities_decide(certificates: Certificates) -> None:
    more = ', key_password = "${PASSPHRASE}"'
    with Running(
        "serve",
        "-",
        stdin=config_of(certificates, certificates.encrypted_key, more),
        env={"PASSPHRASE": PASSPHRASE},
    ) as mux:
        url = mux.line().strip()
        assert re.fullmatch(r"https://127\.0\.0\.1:\d+/mcp", url)
        trusting = run("ls", url, "tools", env={"SSL_CERT_FILE": certificates.ca})
        assert "now" in trusting.stdout
        doubting = run("ls", url, "tools", env={"SSL_CERT_FILE": certificates.strange_ca})
        assert doubting.returncode == 1
        assert "give the authority that signed it in `tls.ca`" in doubting.stderr
        plain = run("ls", url.replace("https", "http"), "tools")
        assert plain.returncode == 1
        assert "his is a TLS port: use https://" in plain.stderr
        assert mux.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_certificate_that_is_replaced_is_shown_after_a_reload(
    certificates: Certificates, tmp_path: Path, workers: int
) -> None:
    files = {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key"}

    def install(certificate: str, key: str) -> None:
        shutil.copy(certificate, files["certificate"])
        shutil.copy(key, files["key"])

    install(certificates.server, certificates.server_key)
    tls = "tls = {{ {} }}\n".format(", ".join(f"{key} = {json.dumps(str(files[key]))}" for key in files))
    path, admin, token = tmp_path / "mux.toml", free_port(), "0123456789abcdef"
    path.write_text(
        f"{demo_table('clock')}[[listeners.http]]\nport = 0\n{tls}"
        f'[admin]\nport = {admin}\ntoken = "{token}"\n{tls}'
    )
    here = ("-c", str(path), "--ca", certificates.ca)
    with Running("serve", str(path), "--no-watch", "--workers", str(workers)) as mux:
        port = urlsplit(mux.line().strip()).port
        assert port is not None
        mux.line()  # the admin listener is there, too

        def shown() -> set[str]:
            """Return the certificates of all workers and of the admin listener."""
            ports = [*[port] * 2 * workers, admin]
            return {ssl.get_server_certificate(("127.0.0.1", number)) for number in ports}

        old = shown()
        assert len(old) == 1
        assert run("ctl", "reload", *here).stdout == "nothing has changed since it was last read\n"
        shutil.copy(certificates.elsewhere, files["certificate"])  # and its key is still to come
        half = run("ctl", "reload", *here)
        assert half.returncode == 2
        assert "not that of the certificate" in half.stderr
        assert shown() == old
        install(certificates.elsewhere, certificates.elsewhere_key)
        assert "certificates: " in run("ctl", "reload", *here).stdout
        after = shown()
        assert len(after) == 1
        assert after != old
        install(certificates.server, certificates.server_key)
        mux.send_signal(signal.SIGHUP)
        mux.line("stderr", containing="SIGHUP")
        mux.line("stderr", containing="configuration reloaded")
        assert shown() == old
        assert mux.stop() == 0, mux.stderr


def test_certificate_that_cannot_be_used_is_a_mistake_in_the_configuration(
    certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "mux.toml"
    file.write_bytes(config_of(certificates, certificates.client_key))
    finished = run("serve", str(file))
    assert finished.returncode == 2
    assert "listener 127.0.0.1:0: tls.key: " in finished.stderr
    assert "the private key is not that of the certificate" in finished.stderr
    assert "Traceback" not in finished.stderr
