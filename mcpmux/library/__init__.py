"""mcpmux as a library, for programs on trio; `mcpmux.library.asyncio` has the same calls for asyncio."""

from mcpmux.errors import ConfigError, LocalProtocolError, McpmuxError, RemoteProtocolError, RpcError
from mcpmux.library.client import Client, Json, Notification, Notifications, OnNotification
from mcpmux.library.mux import Exchanges, FinishedExchange, LocalMux, Source, open_mux

__all__ = [
    "Client",
    "ConfigError",
    "Exchanges",
    "FinishedExchange",
    "Json",
    "LocalMux",
    "LocalProtocolError",
    "McpmuxError",
    "Notification",
    "Notifications",
    "OnNotification",
    "RemoteProtocolError",
    "RpcError",
    "Source",
    "open_mux",
]
