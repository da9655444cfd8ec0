"""The rooms put together: configuration in, nurseries around, exit out."""

from mcpmux.app.assembly import Mux, open_mux
from mcpmux.app.listeners import Announce
from mcpmux.app.serving import serve

__all__ = ["Announce", "Mux", "open_mux", "serve"]
