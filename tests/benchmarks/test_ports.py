"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import socket

from benchmarks.process import PORTS, free_port


def test_a_port_is_given_once_and_never_one_that_is_listened_on():
    first = free_port()
    following = PORTS[(PORTS.index(first) + 1) % len(PORTS)]
    with socket.create_server(("127.0.0.1", first)), socket.socket() as taken:
        taken.bind(("127.0.0.1", following))
        taken.listen()
        ports = [free_port() for _ in range(20)]
    assert len({first, following, *ports}) == 22
