"""The admin listener: whether there is one, where, for whom, and how much of the traffic it remembers."""

from __future__ import annotations

import ipaddress
from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.listener import HostHeader
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Choice, SecretText, Size, Whole, about
from mcpmux.config.secret import Secret
from mcpmux.config.tls import Host, ServerTls

MIN_TOKEN = 16  # characters; random text of this length cannot be guessed
AdminToken: TypeAlias = Annotated[
    Secret,
    SecretText(f"at least {MIN_TOKEN} letters, digits and -._~", rf"[A-Za-z0-9._~-]{{{MIN_TOKEN},}}"),
]


@frozen(kw_only=True)
class Admin:
    """A listener for the people who run mcpmux: what passes, and how the upstreams are. Never for clients."""

    host: Host = field(
        default="127.0.0.1",
        metadata=about(
            "Address to listen on; one that is not loopback needs a `token`, and should have `tls`."
        ),
    )
    port: Annotated[int, Whole(0, 65535)] | None = field(
        default=None, metadata=about("TCP port; 0 lets the system choose one. Without a port it is off.")
    )
    token: AdminToken | None = field(
        default=None,
        metadata=about(
            "What must be shown to get in. Default: a new one at each start, in the URL it prints."
        ),
    )
    allowed_hosts: tuple[HostHeader, ...] = field(
        default=(),
        metadata=about("Host headers to accept besides the address itself and the loopback names."),
    )
    tls: ServerTls | None = field(default=None, metadata=about("Serve https with this certificate."))
    ready: Annotated[str, Choice(("listening", "any", "all"))] = field(
        default="any",
        metadata=about(
            "When `/health/ready` says yes, unless mcpmux stops: `listening` always, `any` when every "
            "upstream was tried and one is ready, `all` when every one is."
        ),
    )
    keep_exchanges: Annotated[int, Whole(1, 10_000_000)] = field(
        default=100_000, metadata=about("Exchanges that are remembered; the oldest go first.")
    )
    keep_bytes: Annotated[int, Size(2**20)] = field(
        default=256 * 2**20, metadata=about("Memory for what is remembered, about.")
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for a door to the network that has no key of the user's."""
        if self.token is None and not is_loopback(self.host):
            raise Unfit(f"`host` {self.host} is reached from the network; set `token` too, or use 127.0.0.1")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
