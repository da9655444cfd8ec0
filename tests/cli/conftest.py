"""The command line in this process and in real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import structlog
from click.testing import CliRunner, Result

from mcpmux.cli.main import cli
from tests.cli.running import Running

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that runs in this process writes the log as it was told, and only for its test."""
    logging = structlog.get_config()
    yield
    structlog.configure(**logging)


@pytest.fixture
def invoke() -> Invoke:
    """Run one command in this process: `invoke("ls", url)`. Not on a terminal."""

    def run(*args: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(cli, args, input=stdin, prog_name="mcpmux")

    return run


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    """The URL of a demo that runs in a process of its own."""
    with Running("demo", "--http", "127.0.0.1:0") as demo:
        yield demo.line().strip()
        assert demo.stop() == 0, demo.stderr
