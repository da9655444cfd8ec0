"""https as real processes: `serve` with a certificate, and clients that trust its authority."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.cli.running import COMMAND, WAIT_SECONDS, Running, demo_command
from tests.transports.certificates import PASSPHRASE, Certificates


def config_of(certificates: Certificates, key: str, more: str = "") -> bytes:
    command, *arguments = demo_command("clock").split()
    text = f"""
        [upstreams.clock]
        command = {json.dumps(command)}
        args = {json.dumps(arguments)}
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
