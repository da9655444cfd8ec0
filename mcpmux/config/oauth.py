"""How mcpmux gets tokens for one upstream from its authorization server. Settings alone."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.auth import Scope, TrustedUrl
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Choice, HttpUrl, SecretText, Text, Whole, about
from mcpmux.config.secret import Secret
from mcpmux.config.tls import FilePath

AUTHORIZATION_CODE, CLIENT_CREDENTIALS = "authorization_code", "client_credentials"

ClientId: TypeAlias = Annotated[str, Text("printable ASCII text that is not empty", r"[\x20-\x7e]+")]
ClientSecret: TypeAlias = Annotated[
    Secret, SecretText("printable ASCII text that is not empty", r"[\x20-\x7e]+")
]


class MetadataUrl(HttpUrl, frozen=True):
    """The URL of a client's own metadata document: it is the client's name, so it is https and has a path."""

    expected: str = "an https:// URL with a path and without query"
    pattern: str = r"https://[^\s\x00-\x1f/?#@]+/[^\s\x00-\x1f?#]+"


@frozen(kw_only=True)
class OAuth:
    """Tokens for an upstream; without `client_id` mcpmux registers, where it may."""

    grant: Annotated[str, Choice((AUTHORIZATION_CODE, CLIENT_CREDENTIALS))] = field(
        default=AUTHORIZATION_CODE,
        metadata=about(
            "`authorization_code`: a person logs in with `mcpmux auth login`. "
            "`client_credentials`: mcpmux shows its own secret."
        ),
    )
    issuer: Annotated[str, TrustedUrl()] | None = field(
        default=None,
        metadata=about("The authorization server, and no other; default: the one that the upstream names."),
    )
    client_id: ClientId | None = field(
        default=None, metadata=about("Of mcpmux, where it was registered by hand.")
    )
    client_secret: ClientSecret | None = field(
        default=None,
        metadata=about("Goes with `client_id`, and needs `issuer`, which alone it is shown to."),
    )
    client_metadata_url: Annotated[str, MetadataUrl()] | None = field(
        default=None,
        metadata=about("URL of a client metadata document of yours: the client id where servers take such."),
    )
    scopes: tuple[Scope, ...] = field(
        default=(), metadata=about("Scopes to ask for; default: those that the upstream says it needs.")
    )
    redirect_port: Annotated[int, Whole(0, 65535)] = field(
        default=0,
        metadata=about("Loopback port that the browser comes back to at a login; 0: one that is free."),
    )
    ca: FilePath | None = field(
        default=None,
        metadata=about("PEM file with authorities to trust for the authorization server."),
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for keys that do not go together."""
        if self.client_secret is not None and self.client_id is None:
            raise Unfit("`client_secret` needs `client_id` beside it")
        if self.client_secret is not None and self.issuer is None:
            raise Unfit("`client_secret` needs `issuer`: the upstream must not choose who is shown it")
        if self.grant == CLIENT_CREDENTIALS and self.client_secret is None:
            raise Unfit('`grant` "client_credentials" needs `client_id`, `client_secret` and `issuer`')
        if self.client_id is not None and self.client_metadata_url is not None:
            raise Unfit("`client_id` and `client_metadata_url` are given; remove one of them")
