"""Authorities and certificates of every kind, as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

PASSPHRASE = "open sesame"
HOSTS = ("localhost", "127.0.0.1", "::1")


class Certificates:
    """An authority, a stranger's authority, and what they have signed; attributes are paths of PEM files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ours, strange = trustme.CA(), trustme.CA()
        past = datetime.now(UTC) - timedelta(days=1)
        self.ca = self._write("ca.pem", ours.cert_pem.bytes())
        self.strange_ca = self._write("strange-ca.pem", strange.cert_pem.bytes())
        self.server, self.server_key = self._issue("server", ours, *HOSTS)
        self.elsewhere, self.elsewhere_key = self._issue("elsewhere", ours, "elsewhere.example")
        self.expired, self.expired_key = self._issue(
            "expired", ours, *HOSTS, not_before=past - timedelta(days=9), not_after=past
        )
        self.client, self.client_key = self._issue("client", ours, "someone")
        self.strange_client, self.strange_client_key = self._issue("strange", strange, "someone")
        self.expired_client, self.expired_client_key = self._issue(
            "old-client", ours, "someone", not_before=past - timedelta(days=9), not_after=past
        )
        both = Path(self.server).read_bytes() + Path(self.server_key).read_bytes()
        self.server_with_key = self._write("both.pem", both)
        self.encrypted_key = self._write("locked.key", _encrypt(Path(self.server_key).read_bytes()))
        self.garbage = self._write("garbage.pem", b"no PEM at all\n")
        self.damaged = self._write(
            "damaged.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        )
        self.missing = str(folder / "missing.pem")

    def _issue(self, name: str, ca: trustme.CA, *identities: str, **when: Any) -> tuple[str, str]:
        issued = ca.issue_cert(*identities, **when)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        key = issued.private_key_pem.bytes()
        return self._write(f"{name}.pem", chain), self._write(f"{name}.key", key)

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)


def _encrypt(key: bytes) -> bytes:
    encryption = BestAvailableEncryption(PASSPHRASE.encode())
    return load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
