"""Serve from several processes behind one address: the supervisor has the address, workers have the clients.

Linux only: see `transports.handing`.
"""
