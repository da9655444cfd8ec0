"""From an upstream's settings to what gets its tokens: the one place that puts the parts together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from mcpmux.auth.address_policy import AddressPolicy
from mcpmux.auth.client_credentials import ClientCredentials
from mcpmux.auth.credential import Credential
from mcpmux.auth.finder import Finder
from mcpmux.auth.http import OAuthHttp
from mcpmux.auth.login import LoginFlow
from mcpmux.auth.token_store import TokenStore, state_folder
from mcpmux.auth.user_login import UserLogin
from mcpmux.config import Http, WebSocket
from mcpmux.config.auth import CLIENT_CREDENTIALS
from mcpmux.transports.http.route import HttpOrigin

Clock = Callable[[], float]


def default_store() -> TokenStore:
    """Where the environment says that state is kept."""
    return TokenStore(state_folder(os.environ))


def make_credential(
    name: str, target: Http | WebSocket, store: TokenStore | None = None, clock: Clock = time.time
) -> Credential | None:
    """What gets the tokens of an upstream; None when it is not configured for any."""
    if target.oauth is None:
        return None
    http = make_http(target)
    finder = Finder(target.url, target.oauth, http)
    if target.oauth.grant == CLIENT_CREDENTIALS:
        return ClientCredentials(name, target.oauth, finder, http, clock)
    return UserLogin(name, target.url, target.oauth, finder, http, store or default_store(), clock)


def make_login(name: str, target: Http | WebSocket, store: TokenStore, clock: Clock = time.time) -> LoginFlow:
    """A login for an upstream that is configured for one."""
    assert target.oauth is not None
    return LoginFlow(name, target.url, target.oauth, make_http(target), store, clock)


def make_http(target: Http | WebSocket) -> OAuthHttp:
    """What may be asked for an upstream, and how."""
    assert target.oauth is not None
    own = f"http{target.url[2:]}" if isinstance(target, WebSocket) else target.url
    trusted = [own] if target.oauth.issuer is None else [own, target.oauth.issuer]
    proxy = target.proxy if isinstance(target, Http) else None
    return OAuthHttp(AddressPolicy(trusted), HttpOrigin.from_url(own), target.tls, target.oauth.ca, proxy)
