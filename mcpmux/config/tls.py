"""How TLS is spoken, with servers and with clients: settings alone, nothing is read here."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Flag, SecretText, Text, about
from mcpmux.config.secret import Secret

Host: TypeAlias = Annotated[str, Text("a host name or an IP address without brackets", r"[A-Za-z0-9._:%-]+")]
FilePath: TypeAlias = Annotated[str, Text("the path of a file", r"[^\x00]+")]
Password: TypeAlias = Annotated[Secret, SecretText()]


@frozen(kw_only=True)
class ServerTls:
    """TLS on a listener. Files are read at start and again with the configuration.

    They are relative to where mcpmux was started.
    """

    certificate: FilePath = field(
        metadata=about("PEM file with the certificate, followed by those of intermediate authorities.")
    )
    key: FilePath | None = field(
        default=None, metadata=about("PEM file with its private key; default: it is in `certificate`.")
    )
    key_password: Password | None = field(
        default=None, metadata=about("Passphrase of the private key, best taken from a variable.")
    )
    client_ca: FilePath | None = field(
        default=None,
        metadata=about("PEM file with authorities: clients must show a certificate that one has signed."),
    )


@frozen(kw_only=True)
class ClientTls:
    """TLS towards a server. Files are read at start and on a reload, relative to where mcpmux was started."""

    ca: FilePath | None = field(
        default=None,
        metadata=about("PEM file with the authorities to trust, in place of the system's."),
    )
    certificate: FilePath | None = field(
        default=None,
        metadata=about("PEM file with the certificate to show, for servers that ask for one."),
    )
    key: FilePath | None = field(
        default=None, metadata=about("PEM file with its private key; default: it is in `certificate`.")
    )
    key_password: Password | None = field(
        default=None, metadata=about("Passphrase of the private key, best taken from a variable.")
    )
    verify: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about("`false` believes any server, so anyone on the way can read and change everything."),
    )
    server_name: Host | None = field(
        default=None,
        metadata=about("Name that the server's certificate must have, when it is not the URL's host."),
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for keys that would have no effect."""
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise Unfit("`key` and `key_password` need `certificate` beside them")
        if not self.verify and self.ca is not None:
            raise Unfit("`ca` has no effect with `verify` false; remove one of them")
