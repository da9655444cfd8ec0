"""Who is asked who they are, as the configuration says; and listeners that ask nobody, which may not be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog
import trio

from mcpmux.config import Config, HttpListener, TcpListener, UnixListener, WebSocketListener, find_open_doors
from mcpmux.config.listener import is_loopback
from mcpmux.errors import ConfigError

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

log = structlog.get_logger()

AnyListener = HttpListener | WebSocketListener | TcpListener | UnixListener


def check_doors(config: Config) -> None:
    """Raises ConfigError for listeners that would let strangers in unasked, and for keys that cannot be used.

    Reads files: call it in a thread.
    """
    problems = [f"{where}: {text}" for where, text in find_open_doors(config.listeners, config.auth)]
    if problems:
        raise ConfigError(problems)
    if config.auth.issuers:
        from mcpmux.auth.jwks import check_key_file

        for name, issuer in config.auth.issuers.items():
            check_key_file(name, issuer)


async def make_gate(config: Config) -> Gate | None:
    """What asks clients who they are; None when nobody is asked anywhere. Raises as `check_doors`."""
    await trio.to_thread.run_sync(check_doors, config)
    listeners: tuple[AnyListener, ...] = (*config.listeners.http, *config.listeners.streams)
    if not config.auth.asks_tokens and not any(asks_certificate(each) for each in listeners):
        return None
    if config.auth.asks_tokens:
        _warn_of_plain_text(config)
    from mcpmux.auth.gate import Gate
    from mcpmux.auth.http import fetch_json

    return Gate(config.auth, _name_of(config), fetch_json, time.time)


def adopt(gate: Gate, config: Config) -> None:
    """Let the gate ask what another configuration says."""
    gate.adopt(config.auth, _name_of(config))


def _name_of(config: Config) -> str:
    return config.identity.title or config.identity.name


def gate_of(listener: AnyListener, gate: Gate | None) -> Gate | None:
    """What asks the clients of one listener; None when they are not asked."""
    if gate is None or isinstance(listener, UnixListener):
        return None  # whoever may open the socket's file is somebody on this machine
    if asks_certificate(listener) or (gate.asks_tokens and not isinstance(listener, TcpListener)):
        return gate
    return None


def asks_certificate(listener: AnyListener) -> bool:
    """Whether clients of a listener have to show a certificate."""
    return (
        not isinstance(listener, UnixListener)
        and listener.tls is not None
        and listener.tls.client_ca is not None
    )


def _warn_of_plain_text(config: Config) -> None:
    listeners: tuple[HttpListener | WebSocketListener, ...]
    listeners = (*config.listeners.http, *config.listeners.websocket)
    for listener in listeners:
        if listener.tls is None and not is_loopback(listener.host):
            log.warning(
                "tokens travel unencrypted to this listener unless something in front of it speaks TLS",
                listener=f"{listener.host}:{listener.port}",
            )
