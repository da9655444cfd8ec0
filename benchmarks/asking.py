"""Asks of the measuring process itself, one after the other, and how long they took."""

from __future__ import annotations

import time

from benchmarks.connection import Connection, WrongAnswer
from benchmarks.question import FIRST_ID, Client
from benchmarks.upstream import MODERN, TEXT_BYTES
from mcpmux.protocol import method as m


def first_answer(url: str, uri: str) -> float:
    """When the answer to a read was in."""
    connection = Connection(url)
    question = Client(connection, MODERN).question(m.RESOURCES_READ, uri, TEXT_BYTES)
    question.check(FIRST_ID, connection.exchange(question.encode(FIRST_ID)).body)
    connection.close()
    return time.perf_counter()


def timed_first_pages(url: str, lists: int) -> float:
    """Seconds that a client takes to ask so many times for the first page of the resources."""
    connection = Connection(url)
    client = Client(connection, MODERN)
    began = time.perf_counter()
    for _ in range(lists):
        client.first_resources()
    seconds = time.perf_counter() - began
    connection.close()
    return seconds


def timed_walk(url: str, expected: int) -> float:
    """Seconds that a client takes to list all resources. Raises WrongAnswer when some are missing."""
    connection = Connection(url)
    client = Client(connection, MODERN)
    began = time.perf_counter()
    found = client.walk_resources()
    seconds = time.perf_counter() - began
    connection.close()
    if found != expected:
        raise WrongAnswer(f"{found} resources are listed, not {expected}")
    return seconds
