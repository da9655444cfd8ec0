"""How commands run what is asynchronous."""

from __future__ import annotations

import signal

import pytest
import trio

from mcpmux.cli.process import run


def test_ctrl_c_interrupts_a_command_where_it_waits_and_no_step_of_it() -> None:
    steps: list[str] = []

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("the step is finished")
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run(work)
    assert steps == ["the step is finished"]


def test_what_comes_of_it_is_returned_or_raised() -> None:
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    assert run(double, 21) == 42
    with pytest.raises(TypeError):
        run(double, None)  # type: ignore[arg-type]  # a mistake, on purpose
