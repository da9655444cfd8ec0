"""The errors that stop at the wall around some work, and those that do not."""

from __future__ import annotations

import pytest
import trio

from mcpmux.errors import McpmuxError, Overdue
from mcpmux.transports.wall import walled


async def ends_with(error: BaseException | None = None) -> None:
    if error is not None:
        raise error


async def errors_of(work) -> list[BaseException]:
    errors: list[BaseException] = []
    await walled(work, McpmuxError, errors.extend)
    return errors


FIRST, SECOND = Overdue("late"), McpmuxError("other")


@pytest.mark.parametrize(
    ("end", "stopped"),
    [
        (None, []),
        (FIRST, [FIRST]),
        (ExceptionGroup("", [FIRST, ExceptionGroup("", [SECOND])]), [FIRST, SECOND]),
    ],
)
async def test_errors_stop_by_themselves_and_in_groups(end, stopped):
    assert await errors_of(ends_with(end)) == stopped


async def test_others_are_raised():
    with pytest.raises(ExceptionGroup) as raised:
        await errors_of(ends_with(ExceptionGroup("", [FIRST, ValueError("foreign")])))
    assert [repr(error) for error in raised.value.exceptions] == ["ValueError('foreign')"]
    with pytest.raises(ValueError, match="foreign"):
        await errors_of(ends_with(ValueError("foreign")))


async def test_errors_are_told_before_the_cancelling_beside_them_goes_on():
    async def fail_while_cancelled() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise FIRST

    errors: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await walled(fail_while_cancelled(), McpmuxError, errors.extend)
        raise AssertionError("it was not cancelled")
    assert scope.cancelled_caught
    assert errors == [FIRST]
