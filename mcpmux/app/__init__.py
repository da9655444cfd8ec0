"""Assemble the parts: from a configuration to running nurseries and an exit code."""

from mcpmux.app.control import ConfigFile
from mcpmux.app.listeners import Announce
from mcpmux.app.mux import Mux, open_mux
from mcpmux.app.serving import serve

__all__ = ["Announce", "ConfigFile", "Mux", "open_mux", "serve"]
