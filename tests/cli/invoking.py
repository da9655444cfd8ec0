"""The command line in this process and in real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from mcpmux.cli.main import cli
from tests.process.running import Running

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    """Return a function that runs one command in this process: `invoke("ls", url)`. Not on a terminal."""

    def run(*args: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(cli, args, input=stdin, prog_name="mcpmux")

    return run


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    """Run the demo in another process, and yield its URL."""
    with Running("demo", "--http", "127.0.0.1:0") as demo:
        yield demo.line().strip()
        assert demo.stop() == 0, demo.stderr
