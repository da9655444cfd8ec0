"""Several processes behind one address: the supervisor has the address, the workers have the clients.

Linux only: see `transports.handing`.
"""
