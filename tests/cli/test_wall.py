"""Commands run asynchronous functions, and print their failures for people."""

from __future__ import annotations

import errno
import signal

import click
import pytest
import structlog
import trio
from click.testing import CliRunner

from mcpmux.cli.main import LazyCommands
from mcpmux.cli.options import quiet_option
from mcpmux.cli.process import Mistake, error_for_user, run, until_interrupted
from mcpmux.errors import ConfigError, RpcError, TransportError


def test_groups_are_told_as_their_causes() -> None:
    group = ExceptionGroup("", [TransportError("no way"), ExceptionGroup("", [RpcError(1, "no such thing")])])
    verdict = error_for_user(group)
    assert isinstance(verdict, click.ClickException)
    assert (verdict.exit_code, verdict.message) == (1, "no way; no such thing")


def test_interrupt_beats_everything_that_came_with_it() -> None:
    verdict = error_for_user(BaseExceptionGroup("", [KeyboardInterrupt(), TransportError("lost")]))
    assert isinstance(verdict, click.exceptions.Exit)
    assert verdict.exit_code == 130


def test_broken_pipe_is_left_to_click_which_is_silent() -> None:
    broken = BrokenPipeError(32, "Broken pipe")
    assert error_for_user(ExceptionGroup("", [broken])) is broken


def test_a_full_disk_is_told_as_that_and_not_as_our_fault() -> None:
    verdict = error_for_user(ExceptionGroup("", [OSError(errno.ENOSPC, "No space left on device")]))
    assert isinstance(verdict, click.ClickException)
    assert (verdict.exit_code, verdict.message) == (1, "the output: cannot write: no space left on device")
    verdict = error_for_user(OSError(errno.EIO, "Input/output error", "a\x1b.json"))
    assert isinstance(verdict, click.ClickException)
    assert verdict.message == "a\\x1b.json: cannot write: input/output error"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "x.py"), "too many open files"),  # also of an import
        (MemoryError(), "out of memory"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_a_limit_of_the_system_is_told_as_that(fault: Exception, words: str) -> None:
    verdict = error_for_user(ExceptionGroup("", [fault]))
    assert isinstance(verdict, click.ClickException)
    assert verdict.message == f"a limit of this system is reached: {words}; `ulimit -a` shows it"


def test_configuration_mistakes_are_listed_one_per_line() -> None:
    verdict = error_for_user(ConfigError(["a: wrong", "b: wrong\x1b[31m too"]))
    assert isinstance(verdict, Mistake)
    assert verdict.exit_code == 2
    assert verdict.message == "2 mistakes:\n  a: wrong\n  b: wrong\\x1b[31m too"


@pytest.mark.parametrize("fault", [ValueError("\x07oops"), ExceptionGroup("", [ValueError("\x07oops")])])
def test_our_own_fault_is_one_sentence_that_says_where_to_see_more(fault: Exception) -> None:
    verdict = error_for_user(fault)
    assert isinstance(verdict, click.ClickException)
    assert verdict.exit_code == 1
    assert verdict.message.startswith("ValueError: \\x07oops; this is a bug in mcpmux")


@click.command()
@quiet_option
def faulty() -> None:
    raise ValueError("oops")


@pytest.mark.parametrize(("level", "traced"), [("error", False), ("debug", True)])
def test_traceback_is_shown_at_debug_level_only(level: str, traced: bool) -> None:
    group = LazyCommands(sections={"Commands": {"faulty": f"{__name__}:faulty"}})
    logging = structlog.get_config()
    try:
        result = CliRunner().invoke(group, ["faulty", "--log-level", level])
    finally:
        structlog.configure(**logging)
    assert result.exit_code == 1
    assert ("Traceback" in result.stderr) == traced
    assert result.stderr.splitlines()[-1].startswith("Error: ValueError: oops; ")


def test_ctrl_c_interrupts_a_command_only_where_it_waits() -> None:
    steps: list[str] = []

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("the step is finished")
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run(work)
    assert steps == ["the step is finished"]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 0), (ValueError("oops"), None)])
def test_ctrl_c_ends_a_command_that_runs_until_then(error: BaseException, code: int | None) -> None:
    async def work() -> None:
        async with trio.open_nursery():
            raise error  # the nursery puts it into a group

    with pytest.raises((click.exceptions.Exit, BaseExceptionGroup)) as raised, until_interrupted():
        run(work)
    assert getattr(raised.value, "exit_code", None) == code


def test_what_comes_of_it_is_returned_or_raised() -> None:
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    assert run(double, 21) == 42
    with pytest.raises(TypeError):
        run(double, None)  # type: ignore[arg-type]  # a mistake, on purpose
